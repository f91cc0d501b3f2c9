// This file lists the node's images.

package node

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

const (
	// DefaultMaxImages is the default of Config.MaxImages, as the kubelet's
	// nodeStatusMaxImages.
	DefaultMaxImages = 50
	// maxImageNames bounds the names of one image, as the kubelet does.
	maxImageNames = 5
	// maxImageName bounds a name, in bytes, because pods choose it and all names must fit
	// in one object. Valid references are shorter.
	maxImageName = 1024
)

// imagesOf lists images as a status does: the largest first and no more than limit,
// unless that is negative.
func imagesOf(images []runtime.Image, limit int) []corev1.ContainerImage {
	list := make([]corev1.ContainerImage, 0, len(images))
	for _, i := range images {
		names := slices.DeleteFunc(slices.Clone(i.Names), func(n string) bool { return n == "" || len(n) > maxImageName })
		if len(names) == 0 {
			continue
		}
		list = append(list, corev1.ContainerImage{Names: names[:min(len(names), maxImageNames)], SizeBytes: i.SizeBytes})
	}
	// By name where the size is the same, so that a status changes only when images do.
	slices.SortFunc(list, func(a, b corev1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), cmp.Compare(a.Names[0], b.Names[0]))
	})
	if limit >= 0 && len(list) > limit {
		list = list[:limit]
	}
	return list
}
