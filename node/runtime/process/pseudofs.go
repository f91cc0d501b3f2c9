package process

// /proc, /sys, /dev and /tmp of a container.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// Files of /proc and /sys that expose or change the machine's state, as container runtimes
// cover them.
var (
	masked = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
		"/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
	frozen = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

func (r *rootfs) proc() error {
	target, err := r.dir("/proc", 0o555)
	if err != nil {
		return err
	}
	if err := unix.Mount("proc", target, "proc", unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, ""); err != nil {
		// Some kernels and containers do not allow a new /proc in a user namespace.
		if err := bind("/proc", target, true); err != nil {
			return fmt.Errorf("mount /proc: %w", err)
		}
	}
	if r.spec.Container.Security.Privileged {
		return nil
	}
	for _, path := range frozen {
		if err := r.cover(path, func(target string, _ bool) error {
			if err := bind(target, target, true); err != nil {
				return err
			}
			return restrict(target, true, unix.MOUNT_ATTR_RDONLY)
		}); err != nil {
			return err
		}
	}
	return r.mask("/proc")
}

// mask covers the paths of masked that are below top.
func (r *rootfs) mask(top string) error {
	for _, path := range masked {
		if !runtime.Under(path, top) {
			continue
		}
		if err := r.cover(path, r.nothing); err != nil {
			return err
		}
	}
	return nil
}

// nothing mounts an empty directory or file on target.
func (r *rootfs) nothing(target string, dir bool) error {
	if !dir {
		return bind(filepath.Join(r.path, "dev/null"), target, false)
	}
	return unix.Mount("tmpfs", target, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0555,size=4k")
}

// cover calls with for path in the new root, if it exists there.
func (r *rootfs) cover(path string, with func(target string, dir bool) error) error {
	target, err := securejoin.SecureJoin(r.path, path)
	if err != nil {
		return err
	}
	info, err := os.Stat(target)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := with(target, info.IsDir()); err != nil {
		return fmt.Errorf("cover %s: %w", path, err)
	}
	return nil
}

// sys mounts the machine's /sys read-only, and of the control groups only the container's
// own.
func (r *rootfs) sys() error {
	target, err := r.dir("/sys", 0o555)
	if err != nil {
		return err
	}
	if r.spec.Container.Security.Privileged {
		if err := bind("/sys", target, true); err != nil {
			return fmt.Errorf("mount /sys: %w", err)
		}
		return nil
	}
	// Mounts below /sys are left out; a user namespace may not uncover what they hide.
	if bind("/sys", target, false) != nil {
		if err := bind("/sys", target, true); err != nil {
			return fmt.Errorf("mount /sys: %w", err)
		}
	}
	if err := restrict(target, true, unix.MOUNT_ATTR_RDONLY); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := r.mask("/sys"); err != nil {
		return err
	}
	return r.cover("/sys/fs/cgroup", r.ownGroups)
}

// ownGroups mounts the container's control groups at target as the only ones.
func (r *rootfs) ownGroups(target string, _ bool) error {
	if dir, ok := r.spec.Cgroup[""]; ok {
		if err := bind(dir, target, true); err != nil {
			return err
		}
		return restrict(target, true, unix.MOUNT_ATTR_RDONLY)
	}
	if err := unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k"); err != nil {
		return err
	}
	for controller, dir := range r.spec.Cgroup {
		at := filepath.Join(target, controller)
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		if err := bind(dir, at, true); err != nil {
			return err
		}
	}
	return restrict(target, true, unix.MOUNT_ATTR_RDONLY)
}

// dev makes a /dev with the usual few devices, and terminals and shared memory of its own.
func (r *rootfs) dev() error {
	target, err := r.dir("/dev", 0o755)
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC|r.noDevices(), "mode=0755,size=64m"); err != nil {
		return fmt.Errorf("mount /dev: %w", err)
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		node := filepath.Join(target, name)
		if err := os.WriteFile(node, nil, 0o666); err != nil {
			return err
		}
		if err := bind("/dev/"+name, node, false); err != nil {
			return fmt.Errorf("bind /dev/%s: %w", name, err)
		}
	}
	if r.spec.Container.Security.Privileged {
		if err := machineDevices(target); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, filepath.Join(target, name)); err != nil {
			return err
		}
	}
	pts, shm := filepath.Join(target, "pts"), filepath.Join(target, "shm")
	for _, d := range []string{pts, shm} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("devpts", pts, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("mount /dev/pts: %w", err)
	}
	if err := unix.Mount("shm", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size=64m"); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	return nil
}

// machineDevices makes the machine's device files below target, for a privileged container. As
// with container runtimes terminals and the console are not among them.
func machineDevices(target string) error {
	return filepath.WalkDir("/dev", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // it is gone
		case d.IsDir() && slices.Contains([]string{"/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/hugepages"}, path):
			return fs.SkipDir
		case d.Type()&fs.ModeDevice == 0 || path == "/dev/console" || path == "/dev/ptmx":
			return nil
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			return nil // it is gone
		}
		to := filepath.Join(target, strings.TrimPrefix(path, "/dev"))
		if err = os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		err = unix.Mknod(to, st.Mode, int(st.Rdev)) //nolint:gosec // the kernel's device numbers have 32 bits
		switch {
		case errors.Is(err, unix.EEXIST): // a container of any kind has it
			return nil
		case errors.Is(err, unix.EPERM): // root of a container or of a user namespace
			if touch(to) == nil && bind(path, to, false) != nil {
				_ = os.Remove(to) // it has to do without
			}
			return nil
		case err != nil:
			return fmt.Errorf("make %s: %w", path, err)
		}
		return errors.Join(os.Chown(to, int(st.Uid), int(st.Gid)), unix.Chmod(to, st.Mode&0o7777)) // not subject to the umask
	})
}

func (r *rootfs) tmp() error {
	target, err := r.dir("/tmp", 0o777)
	if err != nil {
		return err
	}
	dir := filepath.Join(r.spec.Dir, tmpName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		return err
	}
	if err := bind(dir, target, false); err != nil {
		return fmt.Errorf("mount /tmp: %w", err)
	}
	return restrict(target, false, r.noDeviceAttr())
}
