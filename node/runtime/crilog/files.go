package crilog

// The files of a log, and their order.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxFiles bounds the files of one log that are read.
const maxFiles = 64

func rotatedName(path string, n int) string { return path + "." + strconv.Itoa(n) }

// rotated lists the numbers of the rotated files of the log at path, oldest
// first.
func rotated(path string) ([]int, error) {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var ns []int
	for _, name := range names {
		suffix, ok := strings.CutPrefix(name, base+".")
		if !ok {
			continue
		}
		if n, err := strconv.Atoi(suffix); err == nil && n > 0 && strconv.Itoa(n) == suffix {
			ns = append(ns, n)
		}
	}
	slices.Sort(ns)
	if len(ns) > maxFiles {
		ns = ns[len(ns)-maxFiles:]
	}
	return ns, nil
}

// An openFile is a file of a log. It is identified by device and inode, since it may be
// renamed.
type openFile struct {
	*os.File
	info fs.FileInfo
}

func open(name string) (openFile, error) { return openRegular(name, os.O_RDONLY) }

// Open opens a file of a log for reading. The caller closes it. What is no regular file is an
// error: pods may write to the directory of logs, and could put a FIFO there, at which opening
// waits, or a link to what is not theirs.
func Open(name string) (*os.File, error) {
	f, err := open(name)
	return f.File, err
}

var errNotRegular = errors.New("not a regular file")

func openRegular(name string, flag int) (openFile, error) {
	f, err := os.OpenFile(name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return openFile{}, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	if err != nil {
		_ = f.Close()
		return openFile{}, err
	}
	return openFile{f, info}, nil
}

func closeAll(files []openFile) {
	for _, f := range files {
		_ = f.Close()
	}
}

// openLog opens the files of the log at path, oldest first, without a gap between them.
// If a rotation happens meanwhile, the last one is not the file being written; a
// follower detects that later. The caller closes them.
func openLog(path string) ([]openFile, error) {
	// The current file is opened first: if it is rotated before the others are listed, it
	// is among them, together with all newer ones.
	cur, err := open(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	missing := err
	ns, err := rotated(path)
	if err != nil {
		if missing == nil {
			_ = cur.Close()
		}
		return nil, fmt.Errorf("list log files: %w", err)
	}
	var files []openFile
	listed := false
	for _, n := range ns {
		f, err := open(rotatedName(path, n))
		if errors.Is(err, fs.ErrNotExist) {
			// It has been removed, and so have the older ones.
			closeAll(files)
			files = nil
			continue
		}
		if err != nil {
			if missing == nil {
				_ = cur.Close()
			}
			closeAll(files)
			return nil, err
		}
		listed = listed || (missing == nil && os.SameFile(f.info, cur.info))
		files = append(files, f)
	}
	switch {
	case missing != nil && len(files) == 0:
		return nil, missing
	case missing != nil:
	case listed || (len(files) > 0 && cur.removed()):
		_ = cur.Close()
	default:
		files = append(files, cur)
	}
	return files, nil
}

// removed reports whether the file has no name any more.
func (f openFile) removed() bool {
	info, err := f.Stat()
	if err != nil {
		return true
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0
}
