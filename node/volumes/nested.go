// This file makes the directories at which other volumes are mounted below one with content from the API.

package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// nestedMountPoints lists the paths in the named volume at which a container of the pod mounts
// another. One below a mount in between is not among them: its place is in that volume.
func nestedMountPoints(pod *corev1.Pod, volume string) []string {
	var list []string
	add := func(mounts []corev1.VolumeMount) {
		for _, m := range mounts {
			at := inContainer(m)
			var over *corev1.VolumeMount // the deepest mount above it
			for i := range mounts {
				path := inContainer(mounts[i])
				if strings.HasPrefix(at, path+"/") && (over == nil || len(path) > len(inContainer(*over))) {
					over = &mounts[i]
				}
			}
			if over == nil || over.Name != volume || over.SubPathExpr != "" {
				continue
			}
			path := filepath.Join(over.SubPath, strings.TrimPrefix(at, inContainer(*over)+"/"))
			if filepath.IsLocal(path) {
				list = append(list, path)
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		add(c.VolumeMounts)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].VolumeMounts)
	}
	return list
}

// inContainer is the path in the container of a mount, without a slash at its end.
func inContainer(m corev1.VolumeMount) string { return filepath.Join("/", m.MountPath) }

// makeNested makes directories in dir that are missing. A file of the volume stays: a file can be
// mounted on it.
func makeNested(dir string, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("make mount points in volume: %w", err)
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	for _, path := range paths {
		if _, err := root.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := root.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make mount points in volume: %w", err)
		}
	}
	return nil
}
