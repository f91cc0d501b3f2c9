// This file makes emptyDir volumes and checks hostPath volumes.

package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	componentresource "k8s.io/component-helpers/resource"

	"github.com/hawser-project/hawser/node/downward"
)

// emptyDir makes an empty directory that every user may write to. An existing one is
// left unchanged: containers have written to it. Medium Memory is a tmpfs if this
// process may mount one, of at most that many bytes, and else a plain directory. There is
// no other: a node has no huge pages for pods.
func emptyDir(dir string, src *corev1.EmptyDirVolumeSource, group *int64, most int64) error {
	if src.Medium != corev1.StorageMediumDefault && src.Medium != corev1.StorageMediumMemory {
		return fmt.Errorf("unknown storage medium %q", src.Medium)
	}
	_, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = makeEmpty(dir, emptyMode(src, group), group)
	}
	if err != nil {
		return fmt.Errorf("make emptyDir: %w", err)
	}
	if src.Medium == corev1.StorageMediumMemory {
		return mountMemory(dir, group, most)
	}
	return nil
}

// emptyMode lets every user write, and keeps files in the pod's group. In memory, as with the
// kubelet's tmpfs, nobody removes what is another's.
func emptyMode(src *corev1.EmptyDirVolumeSource, group *int64) os.FileMode {
	mode := os.FileMode(0o777)
	if group != nil {
		mode |= os.ModeSetgid
	}
	if src.Medium == corev1.StorageMediumMemory {
		mode |= os.ModeSticky
	}
	return mode
}

// makeEmpty makes dir under a temporary name and renames it, so that dir has its mode
// and group as soon as it exists.
func makeEmpty(dir string, mode os.FileMode, group *int64) (err error) {
	fresh, err := os.MkdirTemp(filepath.Dir(dir), ".empty-")
	if err != nil {
		return err
	}
	if err = own(fresh, nil, group); err == nil {
		err = os.Chmod(fresh, mode)
	}
	if err == nil {
		err = os.Rename(fresh, dir)
	}
	if err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return nil
}

// memorySize bounds an emptyDir in memory, as the kubelet does: by what the node gives to pods, by the
// pod's limit of memory and by the volume's. What a container has written there outlives it, and
// with it its cgroup, so that the limit of the next container does not count it. 0 means no bound.
func memorySize(pod *corev1.Pod, src *corev1.EmptyDirVolumeSource, f downward.Facts) int64 {
	size := f.Allocatable.Memory().Value()
	narrow := func(q *resource.Quantity) {
		if v := q.Value(); v > 0 && (size == 0 || v < size) {
			size = v
		}
	}
	if downward.Limited(pod, corev1.ResourceMemory) {
		limits := componentresource.PodLimits(pod, componentresource.PodResourcesOptions{})
		narrow(limits.Memory())
	}
	if src.SizeLimit != nil {
		narrow(src.SizeLimit)
	}
	return size
}

func mountMemory(dir string, group *int64, most int64) error {
	if mounted, err := mountinfo.Mounted(dir); err != nil || mounted {
		return err
	}
	options := "mode=1777"
	if group != nil {
		options = "mode=03777,gid=" + strconv.FormatInt(*group, 10)
	}
	if most > 0 {
		options += ",size=" + strconv.FormatInt(most, 10)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	if err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mount memory for emptyDir: %w", err)
	}
	return nil
}

// OnDisk says whether an emptyDir that Resolve returned takes place on the node's disk.
func OnDisk(dir string, src *corev1.EmptyDirVolumeSource) bool {
	if src.Medium == corev1.StorageMediumDefault {
		return true
	}
	mounted, err := mountinfo.Mounted(dir)
	return err == nil && !mounted // one that is not there takes none
}

// unmountBelow unmounts every mount at or below dir, the latest first, so that removing
// dir cannot remove files of another file system.
func unmountBelow(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(real))
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW); err == nil {
			continue
		}
		// Still in use by a process that is ending: detach it from the tree.
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// hostPath checks that the path has the type in src. For the types ...OrCreate it makes
// the path. Without a type it makes a directory, as container runtimes do.
func (s *Set) hostPath(ctx context.Context, src *corev1.HostPathVolumeSource, privileged bool) error {
	if !filepath.IsAbs(src.Path) {
		return fmt.Errorf("hostPath %q is not absolute", src.Path)
	}
	if s.answers != nil {
		if err := s.answers(ctx, src.Path); err != nil {
			return fmt.Errorf("hostPath: %w", err)
		}
	}
	kind := corev1.HostPathUnset
	if src.Type != nil {
		kind = *src.Type
	}
	if err := s.makeHostPath(src.Path, kind, privileged); err != nil {
		return fmt.Errorf("hostPath: %w", err)
	}
	if kind == corev1.HostPathUnset {
		return nil
	}
	info, err := os.Stat(src.Path)
	if err != nil {
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	if want, ok := hostPathTypes[kind]; !ok {
		return fmt.Errorf("hostPath type %q is unknown", kind)
	} else if !want.is(info.Mode()) {
		return fmt.Errorf("hostPath type check failed: %s is not a %s", src.Path, want.name)
	}
	return nil
}

func (s *Set) makeHostPath(path string, kind corev1.HostPathType, privileged bool) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return nil // also if it cannot be read: hostPath's check returns the error
	}
	dir := kind == corev1.HostPathUnset || kind == corev1.HostPathDirectoryOrCreate
	if !dir && kind != corev1.HostPathFileOrCreate {
		return nil
	}
	real, err := s.real(path, privileged)
	if err != nil {
		return fmt.Errorf("it does not exist and is not made: %w", err)
	}
	name, missing := "", makeDir
	if !dir {
		real, name, missing = filepath.Dir(real), filepath.Base(real), nil
	}
	d, err := walk(real, missing)
	if err != nil {
		return err
	}
	defer d.Close()
	if dir {
		return nil
	}
	fd, err := unix.Openat(int(d.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	if errors.Is(err, unix.EEXIST) {
		return nil // hostPath checks what it is
	}
	if err != nil {
		return &os.PathError{Op: "make", Path: path, Err: err}
	}
	return unix.Close(fd)
}

type hostPathType struct {
	name string
	is   func(fs.FileMode) bool
}

func typeIs(t fs.FileMode) func(fs.FileMode) bool {
	return func(m fs.FileMode) bool { return m.Type() == t }
}

var hostPathTypes = map[corev1.HostPathType]hostPathType{
	corev1.HostPathDirectory:         {"directory", fs.FileMode.IsDir},
	corev1.HostPathDirectoryOrCreate: {"directory", fs.FileMode.IsDir},
	corev1.HostPathFile:              {"file", fs.FileMode.IsRegular},
	corev1.HostPathFileOrCreate:      {"file", fs.FileMode.IsRegular},
	corev1.HostPathSocket:            {"socket", typeIs(fs.ModeSocket)},
	corev1.HostPathCharDev:           {"character device", typeIs(fs.ModeDevice | fs.ModeCharDevice)},
	corev1.HostPathBlockDev:          {"block device", typeIs(fs.ModeDevice)},
}
