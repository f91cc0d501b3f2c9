// Package volumes makes the directories that a pod's containers mount.
//
// Each volume of a pod is a directory DIR/UID/volumes/NAME (a hostPath volume is
// its path). Setup makes and refreshes those that containers use, and may be called at
// any time; TearDown removes them. Volumes whose content comes from the API
// (configMap, secret, downwardAPI, projected) are written so that a reader sees
// the old content or the new, never a mixture: files are symbolic links to files
// below ..data, a link that is replaced by rename, as in the kubelet.
//
// It mounts nothing into containers: the runtime does, and Resolve returns what to
// mount. It supports no PersistentVolumes.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/downward"
	"github.com/hawser-project/hawser/node/runtime"
)

// Objects reads what volumes show from the API.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	// Token returns a token of the pod's service account, fresh enough for the
	// time until the next refresh.
	Token(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, error)
}

// A SetupError says which volume could not be made.
type SetupError struct {
	Volume string
	Err    error
}

// Error uses the kubelet's words, which users search for.
func (e *SetupError) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

// Unwrap returns Err.
func (e *SetupError) Unwrap() error { return e.Err }

// A Set makes the volumes of all pods of a node.
type Set struct {
	dir     string
	objects Objects
	mayMake func(path string, privileged bool) (real string, err error)
	answers func(ctx context.Context, path string) error
}

// New makes a Set that keeps volumes below dir, one directory a pod. It creates
// nothing. mayMake returns a path of a hostPath volume, which may not exist, without symbolic
// links, or an error if it must not be made; nil allows paths that have none. privileged says whether
// a privileged container mounts the volume. answers returns an error for a path of a hostPath volume
// that must not be asked for, because nobody might answer; nil if all may be.
func New(dir string, objects Objects, mayMake func(path string, privileged bool) (real string, err error), answers func(ctx context.Context, path string) error) *Set {
	return &Set{dir: dir, objects: objects, mayMake: mayMake, answers: answers}
}

func (s *Set) volumesDir(uid types.UID) string {
	return filepath.Join(s.dir, string(uid), "volumes")
}

// Setup makes the volumes of the pod that do not exist, and brings the content of
// the others up to date. It tries all of them; the error joins one SetupError for
// each that failed. As the kubelet does, it leaves out those that no container uses;
// an ephemeral container may use one later.
func (s *Set) Setup(ctx context.Context, pod *corev1.Pod, facts downward.Facts) error {
	if len(pod.Spec.Volumes) > 0 {
		if err := os.MkdirAll(s.volumesDir(pod.UID), 0o755); err != nil {
			return fmt.Errorf("make directory of volumes: %w", err)
		}
	}
	var errs []error
	used := inUse(pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !used[v.Name] {
			continue
		}
		if err := s.setup(ctx, pod, v, facts); err != nil {
			errs = append(errs, &SetupError{Volume: v.Name, Err: err})
		}
	}
	return errors.Join(errs...)
}

// inUse has the names of the volumes that containers of the pod mount, have as a device, or take
// variables from.
func inUse(pod *corev1.Pod) map[string]bool {
	used := map[string]bool{}
	add := func(c *corev1.Container) {
		for i := range c.VolumeMounts {
			used[c.VolumeMounts[i].Name] = true
		}
		for i := range c.VolumeDevices {
			used[c.VolumeDevices[i].Name] = true
		}
		for i := range c.Env {
			if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
				used[from.FileKeyRef.VolumeName] = true
			}
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			add(&list[i])
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		add((*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	return used
}

func (s *Set) setup(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, facts downward.Facts) error {
	dir := filepath.Join(s.volumesDir(pod.UID), v.Name)
	if !filepath.IsLocal(v.Name) {
		return fmt.Errorf("volume name %q is not a file name", v.Name)
	}
	c := collector{ctx: ctx, objects: s.objects, pod: pod, facts: facts}
	var err error
	switch src := v.VolumeSource; {
	case src.EmptyDir != nil:
		return emptyDir(dir, src.EmptyDir, fsGroup(pod), memorySize(pod, src.EmptyDir, facts))
	case src.HostPath != nil:
		return s.hostPath(ctx, src.HostPath, privileged(pod, v.Name))
	case src.ConfigMap != nil:
		c.mode = mode(src.ConfigMap.DefaultMode)
		err = c.configMap(src.ConfigMap.Name, src.ConfigMap.Items, optional(src.ConfigMap.Optional))
	case src.Secret != nil:
		c.mode = mode(src.Secret.DefaultMode)
		err = c.secret(src.Secret.SecretName, src.Secret.Items, optional(src.Secret.Optional))
	case src.DownwardAPI != nil:
		c.mode = mode(src.DownwardAPI.DefaultMode)
		err = c.downward(src.DownwardAPI.Items)
	case src.Projected != nil:
		c.mode = mode(src.Projected.DefaultMode)
		err = c.projected(src.Projected.Sources)
	default:
		return errors.New("this kind of volume is not supported here: use emptyDir, hostPath, configMap, secret, downwardAPI or projected")
	}
	if err != nil {
		return err
	}
	return writeAtomically(dir, c.files, fsGroup(pod), nestedMountPoints(pod, v.Name))
}

func mode(m *int32) os.FileMode {
	if m == nil {
		return os.FileMode(corev1.ConfigMapVolumeSourceDefaultMode)
	}
	return os.FileMode(*m) & os.ModePerm
}

func optional(b *bool) bool { return b != nil && *b }

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

// Resolve returns the host's directory for a mount of the named volume, which Setup has made: base is the
// volume, and sub the path in it, empty for the whole volume. subPath is that of the
// mount, with its variables expanded; missing directories of it are made, with the mode
// of the volume. It refuses a path that leaves the volume, also by a symbolic link that
// a container made. A container can make such a link later, so the caller that mounts
// sub must open it below base and must not follow a link out of base. Whether a hostPath may be mounted
// the caller checks before: for a missing subPath one privileged container that mounts the volume is enough.
func (s *Set) Resolve(pod *corev1.Pod, volume, subPath string) (base, sub string, err error) {
	i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
	if i < 0 {
		return "", "", fmt.Errorf("volume %q not found in pod %q", volume, pod.Name)
	}
	base = filepath.Join(s.volumesDir(pod.UID), volume)
	hp := pod.Spec.Volumes[i].HostPath
	if hp != nil {
		base = hp.Path
	}
	if _, err = os.Stat(base); err != nil {
		return "", "", fmt.Errorf("volume %q: %w", volume, err)
	}
	if subPath == "" {
		return base, "", nil
	}
	if !filepath.IsLocal(subPath) {
		return "", "", fmt.Errorf("subPath %q leaves volume %q", subPath, volume)
	}
	sub = filepath.Clean(subPath)
	root, err := openRoot(base)
	if err != nil {
		return "", "", fmt.Errorf("open volume: %w", err)
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	// os.Root refuses a path that leads out at each step.
	if _, err = root.Stat(sub); errors.Is(err, os.ErrNotExist) {
		if hp != nil {
			err = s.makeInHostPath(root, base, sub, privileged(pod, volume))
		} else {
			err = makeBelow(root, sub)
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("subPath %q: %w", sub, err)
	}
	return base, sub, nil
}

// real is path without symbolic links, if it may be made.
func (s *Set) real(path string, privileged bool) (string, error) {
	if s.mayMake == nil {
		return path, nil
	}
	return s.mayMake(path, privileged)
}

// privileged reports whether a privileged container of the pod mounts the volume.
func privileged(pod *corev1.Pod, volume string) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		sc := c.SecurityContext
		return sc != nil && sc.Privileged != nil && *sc.Privileged &&
			slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
	})
}

// makeInHostPath makes the directories of sub that are missing in the hostPath volume root, which
// is at base.
func (s *Set) makeInHostPath(root *os.Root, base, sub string, privileged bool) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	path, err := s.real(filepath.Join(base, sub), privileged)
	if err != nil {
		return fmt.Errorf("it does not exist and is not made: %w", err)
	}
	if top, terr := filepath.EvalSymlinks(base); terr != nil || !runtime.Under(path, top) {
		return errors.Join(terr, errors.New("it leaves the volume"))
	}
	d, err := walk(path, makeDirLike(info.Mode()))
	if err != nil {
		return err
	}
	return d.Close()
}

// ReadFile reads a file of at most that many bytes in a volume at base. Links are followed within
// the volume. What is no regular file is not opened: containers may put a FIFO or a device there.
func ReadFile(base, path string, most int64) ([]byte, error) {
	root, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: base, Err: err}
	}
	fd, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err = errors.Join(err, unix.Close(root)); err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	found := os.NewFile(uintptr(fd), path)
	defer found.Close()
	info, err := found.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > most:
		return nil, fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}

// openRoot opens a volume.
func openRoot(base string) (*os.Root, error) {
	// os.OpenRoot would wait for the other end of a FIFO.
	fd, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: base, Err: err}
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd))
	return root, errors.Join(err, unix.Close(fd))
}

// makeBelow makes the directories of sub that are missing in root.
func makeBelow(root *os.Root, sub string) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	for at := range eachParent(sub) {
		err := root.Mkdir(at, 0o700)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil {
			err = setVolumeMode(root, at, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachParent yields the parent directories of path, topmost first, and then path.
func eachParent(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i, c := range path + "/" {
			if c == '/' && !yield(path[:i]) {
				return
			}
		}
	}
}

// setVolumeMode gives a new directory the mode of its volume. The kernel has set its
// group if the volume has one. The directory is opened first, so that a file that
// replaces it meanwhile is not changed, and a FIFO is not waited for.
func setVolumeMode(root *os.Root, path string, volume fs.FileInfo) error {
	d, err := root.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	if info, err := d.Stat(); err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		return err // it was replaced meanwhile
	}
	return d.Chmod(volume.Mode() & (fs.ModePerm | fs.ModeSetgid))
}

// TearDown removes the volumes of a pod with their content. It does not touch the
// directories of hostPath volumes. It is no error if the volumes do not exist.
func (s *Set) TearDown(uid types.UID) error {
	if uid == "" || !filepath.IsLocal(string(uid)) {
		return fmt.Errorf("remove volumes: bad pod uid %q", uid)
	}
	dir := s.volumesDir(uid)
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unmountBelow(dir); err != nil {
		return fmt.Errorf("remove volumes of pod %s: %w", uid, err)
	}
	if err := runtime.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove volumes of pod %s: %w", uid, err)
	}
	return nil
}
