// This file makes the directories at which other volumes are mounted below one with content from the API.

package volumes

import (
	"fmt"
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
		if !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
			return
		}
		by := make(map[string]*corev1.VolumeMount, len(mounts))
		for i := range mounts {
			by[inContainer(mounts[i])] = &mounts[i]
		}
		for _, m := range mounts {
			at := inContainer(m)
			above, over := at, (*corev1.VolumeMount)(nil) // the deepest mount above it
			for above != "/" && over == nil {
				above = filepath.Dir(above)
				over = by[above]
			}
			if over == nil || over.Name != volume || over.SubPath != "" || over.SubPathExpr != "" {
				continue
			}
			if path := strings.TrimPrefix(strings.TrimPrefix(at, above), "/"); filepath.IsLocal(path) {
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

// makeNested makes directories in dir that are missing. The volume's own files and directories stay
// as they are: a file can be mounted on a file. A directory in one of its own would go, with what is
// mounted there, when the content is replaced.
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
		if info, err := root.Lstat(firstElement(path)); err == nil && !info.IsDir() {
			continue
		}
		if err := root.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make mount points in volume: %w", err)
		}
	}
	return nil
}
