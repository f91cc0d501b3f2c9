// This file makes directories of the machine for hostPath volumes.

package volumes

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// walk opens the directory path. It follows no symbolic link: a container that may write to a
// directory of the path could have put one there since the path was checked. missing makes and
// opens a directory that is not there; nil makes none.
func walk(path string, missing func(at int, name string) (int, error)) (*os.File, error) {
	at, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for name := range strings.SplitSeq(path, "/") {
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		if name == "" {
			continue
		}
		above := at
		at, err = unix.Openat(above, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if missing != nil && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)) {
			at, err = missing(above, name)
		}
		err = errors.Join(err, unix.Close(above))
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(at), path), nil
}

// makeDir makes a directory that root alone may write to, less the umask.
func makeDir(at int, name string) (int, error) {
	made := unix.Mkdirat(at, name, 0o755)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return -1, made
	}
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil && made != nil {
		return -1, made // it is no directory
	}
	return fd, err
}

// makeDirLike is makeDir with that mode. The kernel sets the group if the directory above says so.
func makeDirLike(mode fs.FileMode) func(at int, name string) (int, error) {
	return func(at int, name string) (int, error) {
		switch err := unix.Mkdirat(at, name, 0o700); {
		case errors.Is(err, unix.EEXIST):
			return makeDir(at, name)
		case err != nil:
			return -1, err
		}
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		bits := uint32(mode.Perm())
		if mode&fs.ModeSetgid != 0 {
			bits |= unix.S_ISGID
		}
		if err := unix.Fchmod(fd, bits); err != nil {
			return -1, errors.Join(err, unix.Close(fd))
		}
		return fd, nil
	}
}
