// This file is about the paths of hostPath volumes that containers may not use.

package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

// hostPathOf is the path of a hostPath volume; empty for others.
func hostPathOf(pod *corev1.Pod, volume string) string {
	i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
	if i < 0 || pod.Spec.Volumes[i].HostPath == nil {
		return ""
	}
	return pod.Spec.Volumes[i].HostPath.Path
}

// hostPathAllowed refuses a hostPath volume in the agent's own directory, which has the
// keys of the node and the Secrets of all pods, or in another one that containers do not see,
// wherever that is mounted. The logs of containers are allowed, because log collectors read
// them. It returns the path without symbolic links.
func (p places) hostPathAllowed(path string) (string, error) {
	real := resolved(path)
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return "", fmt.Errorf("check hostPath: %w", err)
	}
	in := func(dir string) bool {
		return slices.ContainsFunc(runtime.Aliases(resolved(dir), mounts), func(at string) bool { return runtime.Under(real, at) })
	}
	switch hidden := slices.IndexFunc(p.hide, in); {
	case in(p.logs()):
	case in(p.dir):
		return "", fmt.Errorf("hostPath %q is in the agent's own directory %s: only privileged containers may use it", path, p.dir)
	case hidden >= 0:
		return "", fmt.Errorf("hostPath %q is in %s, which is hidden from containers: only privileged ones may use it", path, p.hide[hidden])
	}
	return real, nil
}

// mayMake is hostPathAllowed for a path that is missing. Privileged containers may use all paths.
func (p places) mayMake(path string, privileged bool) (string, error) {
	if privileged {
		return resolved(path), nil
	}
	return p.hostPathAllowed(path)
}

// resolved returns path without symbolic links, also if its last parts do not exist. If they
// cannot be told, they stay: making the volume or the mount returns the error.
func resolved(path string) string {
	path = filepath.Clean(path)
	real, err := filepath.EvalSymlinks(path)
	switch {
	case err == nil:
		return real
	case errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path):
		return filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path))
	}
	return path
}
