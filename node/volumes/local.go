// This file makes emptyDir volumes and checks hostPath volumes.

package volumes

import (
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
)

// emptyDir makes an empty directory that every user may write to, if there is none
// yet: what containers have made of it is left alone. Medium Memory is a tmpfs where
// one may be mounted, and a directory like any other elsewhere.
func emptyDir(dir string, src *corev1.EmptyDirVolumeSource, group *int64) error {
	_, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = makeEmpty(dir, group)
	}
	if err != nil {
		return fmt.Errorf("make emptyDir: %w", err)
	}
	if src.Medium == corev1.StorageMediumMemory {
		return mountMemory(dir, src, group)
	}
	return nil
}

// emptyMode lets every user write, and keeps files in the pod's group.
func emptyMode(group *int64) os.FileMode {
	if group != nil {
		return 0o777 | os.ModeSetgid
	}
	return 0o777
}

// makeEmpty makes dir under another name first, so that it is as it should be once
// it is there.
func makeEmpty(dir string, group *int64) (err error) {
	fresh, err := os.MkdirTemp(filepath.Dir(dir), ".empty-")
	if err != nil {
		return err
	}
	if err = own(fresh, group); err == nil {
		err = os.Chmod(fresh, emptyMode(group))
	}
	if err == nil {
		err = os.Rename(fresh, dir)
	}
	if err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return nil
}

func mountMemory(dir string, src *corev1.EmptyDirVolumeSource, group *int64) error {
	if mounted, err := mountinfo.Mounted(dir); err != nil || mounted {
		return err
	}
	options := "mode=0777"
	if group != nil {
		options = "mode=02777,gid=" + strconv.FormatInt(*group, 10)
	}
	if q := src.SizeLimit; q != nil && q.Value() > 0 {
		options += ",size=" + strconv.FormatInt(q.Value(), 10)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	if err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mount memory for emptyDir: %w", err)
	}
	return nil
}

// unmountBelow unmounts all that is mounted at or below dir, innermost first, so
// that removing dir cannot remove what belongs to somebody else.
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

// hostPath checks that the path is of the type asked for, and makes it where the
// type says so.
func hostPath(src *corev1.HostPathVolumeSource) error {
	if !filepath.IsAbs(src.Path) {
		return fmt.Errorf("hostPath %q is not absolute", src.Path)
	}
	kind := corev1.HostPathUnset
	if src.Type != nil {
		kind = *src.Type
	}
	if err := makeHostPath(src.Path, kind); err != nil {
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

func makeHostPath(path string, kind corev1.HostPathType) error {
	_, err := os.Stat(path)
	if !errors.Is(err, os.ErrNotExist) {
		return nil // also when it cannot be read: the check says so
	}
	switch kind {
	case corev1.HostPathDirectoryOrCreate:
		return os.MkdirAll(path, 0o755)
	case corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644) //nolint:gosec // what the pod's author asked for
		if err != nil {
			return err
		}
		return f.Close()
	}
	return nil
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
