package process

// The mounts in a container, and the directories that are hidden from it.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// hide covers the directories of spec.Hide, at each path at which they are visible.
func (r *rootfs) hide() error {
	ms, err := mountinfo.GetMounts(nil)
	if err != nil {
		return err
	}
	for _, path := range r.spec.Hide {
		path, err = filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue // if this user may not reach it, the container may not either
		}
		if err != nil {
			return fmt.Errorf("hide: %w", err)
		}
		r.hidden = append(r.hidden, runtime.Aliases(path, ms)...)
	}
	slices.Sort(r.hidden)
	r.hidden = slices.Compact(r.hidden)
	for _, path := range r.hidden {
		err := r.cover(path, func(target string, dir bool) error {
			if target == r.path {
				return errors.New("the root directory cannot be hidden")
			}
			return r.nothing(target, dir)
		})
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	return nil
}

// volumes makes the container's mounts, parents first.
func (r *rootfs) volumes() error {
	ms := slices.Clone(r.spec.Container.Mounts)
	slices.SortStableFunc(ms, func(a, b runtime.Mount) int {
		return strings.Compare(filepath.Clean(a.ContainerPath), filepath.Clean(b.ContainerPath))
	})
	for _, m := range ms {
		if err := r.volume(m); err != nil && !m.Optional {
			return fmt.Errorf("mount %q at %q: %w", filepath.Join(m.HostPath, m.SubPath), m.ContainerPath, err)
		}
	}
	return nil
}

// volume mounts a file or directory of the machine. Source and target are held open
// meanwhile, so that a user who can write to a directory of their paths cannot redirect
// the mount.
func (r *rootfs) volume(m runtime.Mount) error {
	if !filepath.IsAbs(m.ContainerPath) {
		return errors.New("the path in the container is not absolute")
	}
	source, err := openSource(m)
	if err != nil {
		return err
	}
	defer source.Close()
	own := runtime.Under(m.Resolved, "/proc") && inProc(source)
	if leads, lerr := os.Readlink(fdPath(source)); m.Resolved != "" && !own && (lerr != nil || leads != m.Resolved) {
		return fmt.Errorf("it does not lead to %s any more: a symbolic link has replaced a directory of its path", m.Resolved)
	}
	info, err := source.Stat()
	if err != nil {
		return err
	}
	target, err := r.mountPoint(m.ContainerPath, info.IsDir())
	if err != nil {
		return err
	}
	defer target.Close()
	at, err := bindOpened(source, target)
	if err != nil {
		return err
	}
	defer at.Close()
	attrs := r.noDeviceAttr()
	if m.ReadOnly {
		attrs |= unix.MOUNT_ATTR_RDONLY
	}
	if err := restrict(fdPath(at), true, attrs); err != nil || r.spec.Container.Security.Privileged || !info.IsDir() {
		return err
	}
	return r.hideIn(at, source)
}

// inProc reports whether f is in procfs, where /proc/self is another directory for each process, or a
// namespace. What /proc/PID/root leads to is not.
func inProc(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && (st.Type == unix.PROC_SUPER_MAGIC || st.Type == unix.NSFS_MAGIC)
}

// bindOpened mounts source at target and opens the mount. The descriptor target is that of what is
// below the mount, so the mount is opened by its name; who has put something else there
// meanwhile keeps the container from starting.
func bindOpened(source, target *os.File) (*os.File, error) {
	before, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	if err = bind(fdPath(source), fdPath(target), true); err != nil {
		return nil, err
	}
	name, err := os.Readlink(fdPath(target))
	if err != nil {
		return nil, err
	}
	at, err := os.OpenFile(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	id, err := mountID(at)
	a, aerr := at.Stat()
	b, berr := source.Stat()
	if err = errors.Join(err, aerr, berr); err == nil &&
		(!os.SameFile(a, b) || slices.ContainsFunc(before, func(m *mountinfo.Info) bool { return m.ID == id })) {
		err = errors.New("the mount point has been replaced meanwhile")
	}
	if err != nil {
		return nil, errors.Join(err, at.Close())
	}
	return at, nil
}

// mountID is the id in mountinfo of the mount that f is in.
func mountID(f *os.File) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "mnt_id:")
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.Atoi(strings.TrimSpace(line))
}

// hideIn covers the hidden directories in a volume of the directory source that is
// mounted at target.
func (r *rootfs) hideIn(target, source *os.File) error {
	shown, err := os.Readlink(fdPath(source))
	if err != nil {
		return err
	}
	for _, path := range r.hidden {
		if path == shown || !runtime.Under(path, shown) {
			continue
		}
		at, err := securejoin.OpenatInRoot(target, strings.TrimPrefix(path, shown))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = r.hideOpened(at)
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	return nil
}

func (r *rootfs) hideOpened(at *os.File) error {
	defer at.Close()
	info, err := at.Stat()
	if err != nil {
		return err
	}
	return r.nothing(fdPath(at), info.IsDir())
}

// fdPath is a path that leads to an open file.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// openSource opens the source of a mount.
func openSource(m runtime.Mount) (*os.File, error) {
	base, err := unix.Open(m.HostPath, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: m.HostPath, Err: err}
	}
	if m.SubPath == "" {
		return os.NewFile(uintptr(base), m.HostPath), nil
	}
	defer closeFD(base)
	fd, err := unix.Openat2(base, m.SubPath, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("subPath %q leaves its volume", m.SubPath)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(m.HostPath, m.SubPath), Err: err}
	}
	return os.NewFile(uintptr(fd), m.SubPath), nil
}

// mountPoint opens path in the new root. Missing directories are made, but not in the
// machine's own file system.
func (r *rootfs) mountPoint(path string, dir bool) (*os.File, error) {
	target, err := r.inRoot(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = r.makePlace(path, dir); err == nil {
			target, err = r.inRoot(path)
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := target.Stat()
	switch at, lerr := os.Readlink(fdPath(target)); {
	case err != nil || lerr != nil:
		err = errors.Join(err, lerr)
	case at == r.path:
		err = errors.New("a volume cannot be the root directory")
	case info.IsDir() != dir:
		err = errors.New("a file and a directory cannot be mounted on each other")
	default:
		return target, nil
	}
	return nil, errors.Join(err, target.Close())
}

// overlayParents mounts overlays of the directories in which a mount point or the working directory
// has to be made: in one of a lower layer that belongs to a user who is not in the namespace nothing
// can be made. It is called before directories are hidden, which an overlay would uncover. A directory
// that cannot be overlaid stays as it is.
func (r *rootfs) overlayParents(layers string) {
	var parents []string
	for _, m := range r.spec.Container.Mounts {
		parents = append(parents, r.existingParent(m.ContainerPath))
	}
	parents = append(parents, r.existingParent(r.spec.Container.WorkingDir))
	slices.Sort(parents)
	for _, p := range slices.Compact(parents) {
		if p == "" || slices.ContainsFunc(r.away, func(away string) bool { return runtime.Under(p, away) }) {
			continue
		}
		if mounted, err := mountinfo.Mounted(filepath.Join(r.path, p)); err == nil && !mounted {
			_ = r.overlayOf(layers, p)
		}
	}
}

// existingParent is the deepest directory above path in the new root, without symbolic links; empty if
// path exists itself, or if the directory is the root.
func (r *rootfs) existingParent(path string) string {
	if !filepath.IsAbs(path) {
		return ""
	}
	path = filepath.Clean(path)
	for dir := path; dir != "/"; dir = filepath.Dir(dir) {
		at, err := r.inRoot(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return ""
		}
		full, err := securejoin.SecureJoin(r.path, dir)
		if err = errors.Join(err, at.Close()); err != nil || dir == path {
			return ""
		}
		return strings.TrimPrefix(full, r.path)
	}
	return ""
}

// workingDir makes the container's working directory if it is not there, as runc does, but not in
// the machine's own file system. What else is wrong with it is an error of the command's start.
func (r *rootfs) workingDir() error {
	dir := r.spec.Container.WorkingDir
	if dir == "" || !r.overlay {
		return nil
	}
	at, err := r.inRoot(dir)
	switch {
	case err == nil:
		return at.Close()
	case !errors.Is(err, fs.ErrNotExist):
		return nil
	}
	if err := r.makePlace(dir, true); err != nil {
		return fmt.Errorf("make working directory %q: %w", dir, err)
	}
	return nil
}

// inRoot opens path as the container sees it.
func (r *rootfs) inRoot(path string) (*os.File, error) {
	l := launch{root: r.path}
	fd, err := l.open(path, unix.O_PATH)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// mkdirAll makes the directory path and those above it, none of them outside root.
func mkdirAll(root *os.File, path string) error {
	d, err := securejoin.MkdirAllHandle(root, path, 0o755)
	if err != nil {
		return err
	}
	return d.Close()
}

func (r *rootfs) makePlace(path string, dir bool) error {
	full, err := securejoin.SecureJoin(r.path, path)
	if err != nil {
		return err
	}
	own := runtime.Under(full, filepath.Join(r.path, "tmp")) || runtime.Under(full, filepath.Join(r.path, "dev"))
	if !r.overlay && !own {
		return errors.New("there is nothing to mount on, and without an overlay file system it cannot be made")
	}
	root, err := os.OpenFile(r.path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	if dir {
		return mkdirAll(root, path)
	}
	parent, err := securejoin.MkdirAllHandle(root, filepath.Dir(path), 0o755)
	if err != nil {
		return err
	}
	defer parent.Close()
	fd, err := unix.Openat(int(parent.Fd()), filepath.Base(path), unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &fs.PathError{Op: "make", Path: path, Err: err}
	}
	closeFD(fd)
	return nil
}
