package process

// The root file system of a container. The shim builds it in its mount namespace, below
// the container's own directory, so that the shim still has the machine's view.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// A rootfs is built once by build and then used as the root of what runs in the
// container.
type rootfs struct {
	spec    *spec
	path    string // the new root
	overlay bool   // it is an overlay: writes stay in the container, and mount points can be made
	owner   [2]int // user and group of the container
	hidden  []string
	away    []string // mount points of remote file systems that did not answer
}

// notOverlaid are top directories that the container gets anew, or not at all.
var notOverlaid = []string{"/proc", "/sys", "/dev", "/tmp", "/lost+found"}

// pseudo are file systems without stored files.
var pseudo = []string{
	"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
	"fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
}

// maxMounts bounds the file systems of the machine that are overlaid.
const maxMounts = 128

func (r *rootfs) build() error {
	// Mounts from here on are not visible outside; what the machine unmounts is
	// unmounted here too.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	r.path = filepath.Join(r.spec.Dir, rootName)
	if err := os.MkdirAll(r.path, 0o755); err != nil {
		return err
	}
	if err := r.files(); err != nil {
		return err
	}
	for _, step := range []func() error{r.dev, r.proc, r.sys, r.tmp, r.hide} {
		if err := step(); err != nil {
			return err
		}
	}
	var own []*os.File
	if r.spec.Container.Security.ReadOnlyRoot {
		var err error
		own, err = r.openMounts()
		defer closeAll(own)
		if err != nil {
			return err
		}
	}
	if err := r.volumes(); err != nil {
		return err
	}
	if err := r.workingDir(); err != nil {
		return err
	}
	return freeze(own)
}

// files mounts the machine's files at the new root: by overlays with upper layers in the
// data directory, or in memory if its file system cannot have one; or without overlays.
func (r *rootfs) files() error {
	layers := filepath.Join(r.spec.Dir, layersName)
	err := os.MkdirAll(layers, 0o700)
	if err == nil {
		err = r.overlays(layers)
	}
	if err != nil {
		err = unix.Mount("tmpfs", layers, "tmpfs", unix.MS_NODEV, "mode=0700")
		if err == nil {
			err = r.overlays(layers)
		}
	}
	if err == nil {
		r.overlay = true
		// The default working directory.
		_ = os.Chown(r.path, r.owner[0], r.owner[1])
		return nil
	}
	if err := bind("/", r.path, true); err != nil {
		return fmt.Errorf("make a root: %w", err)
	}
	if err := unix.Mount("", r.path, "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make a root: %w", err)
	}
	if err := r.dropAway("/"); err != nil {
		return fmt.Errorf("make a root: %w", err)
	}
	return restrict(r.path, true, r.noDeviceAttr())
}

// overlays mounts an overlay of / at the new root and one of each file system that is
// mounted below. Inside a user namespace the kernel does not accept / as a layer, because
// that would uncover the directories below its mounts; there each top directory is a
// layer.
func (r *rootfs) overlays(layers string) error {
	points, err := r.mountPoints()
	if err != nil {
		return err
	}
	if r.overlayOf(layers, "/") == nil {
		return r.overlayAll(layers, points)
	}
	top, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range top {
		path := "/" + e.Name()
		switch {
		case slices.Contains(notOverlaid, path):
		case e.Type()&fs.ModeSymlink != 0:
			if to, err := os.Readlink(path); err == nil {
				_ = os.Symlink(to, filepath.Join(r.path, path))
			}
		case e.IsDir():
			if err := os.MkdirAll(filepath.Join(r.path, path), 0o755); err != nil {
				return err
			}
			if !slices.Contains(r.away, path) {
				points = append(points, path)
			}
		}
	}
	slices.Sort(points)
	if err := r.overlayAll(layers, slices.Compact(points)); err != nil {
		return err
	}
	r.overlayParents(layers)
	return nil
}

// overlayAll mounts an overlay at each of points. A point that cannot be overlaid is
// mounted read-only.
func (r *rootfs) overlayAll(layers string, points []string) error {
	made, shown := 0, ""
	for _, p := range points {
		if shown != "" && runtime.Under(p, shown) {
			continue
		}
		if err := r.overlayOf(layers, p); err == nil {
			made++
			continue
		}
		if err := r.show(layers, p); err != nil {
			return fmt.Errorf("show %s: %w", p, err)
		}
		shown = p
	}
	if made == 0 && !r.hasRoot() {
		return errors.New("no overlay can be made")
	}
	return nil
}

// maxSpread bounds the entries of one directory that are mounted one by one.
const maxSpread = 256

// show mounts a directory or file of the machine read-only. The entries of a directory
// are mounted in a new directory, so that volumes can be mounted there: below /run, for
// instance, which often has mounts in it.
func (r *rootfs) show(layers, path string) error {
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) > maxSpread || r.hasRoot() {
		return r.showWhole(path)
	}
	for _, e := range entries {
		p := filepath.Join(path, e.Name())
		to := filepath.Join(r.path, p)
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			if link, lerr := os.Readlink(p); lerr == nil {
				_ = os.Symlink(link, to)
			}
			continue
		case e.IsDir():
			err = os.MkdirAll(to, 0o755)
		default:
			err = touch(to)
		}
		if err != nil {
			return err
		}
		switch below := func(away string) bool { return runtime.Under(away, p) }; {
		case slices.Contains(r.away, p): // it stays an empty directory
		case e.IsDir() && slices.ContainsFunc(r.away, below):
			err = r.show(layers, p)
		case !e.IsDir() || r.overlayOf(layers, p) != nil:
			err = r.showWhole(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// showWhole mounts path read-only, if its target exists and this user may read it.
func (r *rootfs) showWhole(path string) error {
	target, err := securejoin.SecureJoin(r.path, path)
	if err != nil {
		return err
	}
	if err := bind(path, target, true); err != nil {
		return nil //nolint:nilerr // then it is missing in the container
	}
	if err := r.dropAway(path); err != nil {
		return err
	}
	return restrict(target, true, unix.MOUNT_ATTR_RDONLY|r.noDeviceAttr())
}

// dropAway removes remote file systems that did not answer from what was mounted for path. It asks
// them nothing. Where a user namespace does not let it unmount, it covers them. It leaves those that
// this user cannot reach: the container cannot either.
func (r *rootfs) dropAway(path string) error {
	dropped := ""
	for _, p := range r.away {
		if !runtime.Under(p, path) || p == path || dropped != "" && runtime.Under(p, dropped) {
			continue
		}
		dropped = p
		above, err := securejoin.SecureJoin(r.path, filepath.Dir(p))
		if unreachable(err) {
			continue
		}
		if err != nil {
			return err
		}
		target := filepath.Join(above, filepath.Base(p))
		if unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
			continue
		}
		if err = r.nothing(target, true); errors.Is(err, unix.ENOTDIR) {
			err = r.nothing(target, false)
		}
		if err != nil && !unreachable(err) {
			return fmt.Errorf("leave out %s: %w", p, err)
		}
	}
	return nil
}

// unreachable reports whether err means that there is no file for this user.
func unreachable(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES)
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// hasRoot reports whether one overlay is the whole new root.
func (r *rootfs) hasRoot() bool {
	var st unix.Statfs_t
	return unix.Statfs(r.path, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC
}

// mountPoints lists the mount points of file systems with files below /, parents first. It leaves out
// remote ones that did not answer, and sets r.away to those: one server that is away would keep all
// containers from starting.
func (r *rootfs) mountPoints() ([]string, error) {
	ms, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	var points []string
	r.away = nil
	for _, m := range ms {
		if m.Mountpoint == "/" || slices.Contains(pseudo, m.FSType) || len(points) == maxMounts {
			continue
		}
		if remote(m.FSType) && !slices.Contains(r.spec.Remote, m.Mountpoint) {
			r.away = append(r.away, m.Mountpoint)
			continue
		}
		if slices.ContainsFunc(slices.Concat(r.spec.Hide, notOverlaid), func(d string) bool { return runtime.Under(m.Mountpoint, d) }) {
			continue
		}
		points = append(points, m.Mountpoint)
	}
	slices.Sort(r.away)
	slices.Sort(points)
	return slices.Compact(points), nil
}

// overlayOf mounts an overlay of the machine's directory path in the new root.
func (r *rootfs) overlayOf(layers, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	target, err := securejoin.SecureJoin(r.path, path)
	if err != nil {
		return err
	}
	if _, err := os.Stat(target); err != nil {
		return err
	}
	name := strings.NewReplacer("/", "-", "-", "%2D", "%", "%25").Replace(strings.Trim(path, "/")) + ".layer"
	upper, work := filepath.Join(layers, name, "upper"), filepath.Join(layers, name, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	// The top directory of an overlay has the attributes of its upper layer.
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = os.Lchown(upper, int(st.Uid), int(st.Gid))
	}
	if err := os.Chmod(upper, info.Mode()&(fs.ModePerm|fs.ModeSticky|fs.ModeSetgid)); err != nil {
		return err
	}
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escapeOption(path), escapeOption(upper), escapeOption(work))
	if r.spec.Isolation == UserNamespace {
		opts += ",userxattr"
	}
	return unix.Mount("overlay", target, "overlay", r.noDevices(), opts)
}

func escapeOption(s string) string {
	return strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace(s)
}

// dir returns the path of a directory in the new root. It makes the directory if it is
// missing.
func (r *rootfs) dir(path string, mode fs.FileMode) (string, error) {
	target, err := securejoin.SecureJoin(r.path, path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(target, mode); err != nil {
		return "", fmt.Errorf("make %s: %w", path, err)
	}
	return target, nil
}

func bind(from, to string, recursive bool) error {
	flags := uintptr(unix.MS_BIND)
	if recursive {
		flags |= unix.MS_REC
	}
	return unix.Mount(from, to, "", flags, "")
}

// restrictsAll reports whether restrict can reach the mounts below another: Linux before 5.12 does
// not know the system call, and others refuse a flag that does not exist.
func restrictsAll() bool {
	return !errors.Is(unix.MountSetattr(-1, "", ^uint(0), &unix.MountAttr{}), unix.ENOSYS)
}

// restrict sets restricting attributes of a mount, and with all those of mounts below it if
// restrictsAll: MOUNT_ATTR_RDONLY, MOUNT_ATTR_NODEV.
func restrict(target string, all bool, attrs uint64) error {
	if attrs == 0 {
		return nil
	}
	flags := uint(0)
	if all {
		flags = unix.AT_RECURSIVE
	}
	err := unix.MountSetattr(-1, target, flags, &unix.MountAttr{Attr_set: attrs})
	if !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// Linux before 5.12 changes one mount at a time, and flags that a user namespace
	// may not remove must be given again.
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return err
	}
	keep := uintptr(st.Flags) & (unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if attrs&unix.MOUNT_ATTR_RDONLY != 0 {
		keep |= unix.MS_RDONLY
	}
	if attrs&unix.MOUNT_ATTR_NODEV != 0 {
		keep |= unix.MS_NODEV
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|keep, "")
}

// noDeviceAttr prevents that device files that a container makes can be opened.
func (r *rootfs) noDeviceAttr() uint64 {
	if r.spec.Container.Security.Privileged {
		return 0
	}
	return unix.MOUNT_ATTR_NODEV
}

// noDevices is noDeviceAttr as a flag of mount(2).
func (r *rootfs) noDevices() uintptr {
	if r.spec.Container.Security.Privileged {
		return 0
	}
	return unix.MS_NODEV
}

// openMounts opens what a read-only root makes read-only: the new root and the mounts below it,
// without those of /dev and /proc. The caller closes them. A volume that is mounted over one of
// them later is another mount than the open one.
func (r *rootfs) openMounts() ([]*os.File, error) {
	if !r.overlay {
		return nil, errors.New("a read-only root file system needs overlay file systems")
	}
	points, err := r.ownMounts()
	if err == nil && !slices.Contains(points, filepath.Clean(r.path)) {
		// Each top directory is a mount of its own; this makes their parent one.
		if err = bind(r.path, r.path, true); err == nil {
			points, err = r.ownMounts()
		}
	}
	var own []*os.File
	for _, point := range points {
		f, oerr := os.OpenFile(point, unix.O_PATH|unix.O_CLOEXEC, 0)
		switch {
		case oerr == nil:
			own = append(own, f)
		case !unreachable(oerr) && !errors.Is(oerr, unix.ENOTDIR): // else hidden by a later one, or by its directory's mode
			return own, oerr
		}
	}
	return own, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// ownMounts are the new root, if it is a mount, and the mounts below it, without those of /dev
// and /proc.
func (r *rootfs) ownMounts() ([]string, error) {
	ms, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(r.path)
	if err != nil {
		return nil, err
	}
	var own []string
	for _, m := range ms {
		if runtime.Under(m.Mountpoint, real) && !runtime.Under(m.Mountpoint, filepath.Join(real, "dev")) && !runtime.Under(m.Mountpoint, filepath.Join(real, "proc")) {
			own = append(own, m.Mountpoint)
		}
	}
	return own, nil
}

// freeze makes mounts read-only. A place in one of them, at which a mount is hidden, is read-only
// with it.
func freeze(own []*os.File) error {
	failed := make([]error, len(own))
	for i, f := range own {
		failed[i] = restrict(fdPath(f), false, unix.MOUNT_ATTR_RDONLY)
	}
	for i, f := range own {
		if failed[i] == nil {
			continue // not asked: a file system may not answer
		}
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Flags&unix.ST_RDONLY == 0 {
			return fmt.Errorf("make %s read-only: %w", f.Name(), failed[i])
		}
	}
	return nil
}
