package crilog

// The files of a log: which there are, and in which order.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxFiles bounds how many files of one log are looked at, whatever lies in the
// directory.
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

// An openFile is a file of a log, with what identifies it whatever its name is
// by now.
type openFile struct {
	*os.File
	info fs.FileInfo
}

func open(name string) (openFile, error) {
	f, err := os.Open(name)
	if err != nil {
		return openFile{}, err
	}
	info, err := f.Stat()
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

// openLog opens all files of the log at path, oldest first. The files are of one
// moment: none that was there is missing, and the last is the one being written
// to. The caller closes them.
func openLog(path string) ([]openFile, error) {
	// A rotation between listing and opening makes the two disagree. Rotations
	// are far apart, so that a few attempts always do.
	for range 16 {
		files, ok, err := tryOpenLog(path)
		if err != nil || ok {
			return files, err
		}
		closeAll(files)
	}
	return nil, fmt.Errorf("log %s is rotated faster than it can be opened", path)
}

// tryOpenLog opens all files and says whether nothing changed meanwhile.
func tryOpenLog(path string) (files []openFile, stable bool, err error) {
	before, err := rotated(path)
	if err != nil {
		return nil, false, fmt.Errorf("list log files: %w", err)
	}
	names := make([]string, 0, len(before)+1)
	for _, n := range before {
		names = append(names, rotatedName(path, n))
	}
	for _, name := range append(names, path) {
		f, oerr := open(name)
		if errors.Is(oerr, fs.ErrNotExist) && (name != path || len(before) > 0) {
			// It has been removed, or is between the rename and the new file.
			return files, false, nil
		}
		if oerr != nil {
			closeAll(files)
			return nil, false, oerr
		}
		files = append(files, f)
	}
	after, err := rotated(path)
	if err != nil {
		closeAll(files)
		return nil, false, fmt.Errorf("list log files: %w", err)
	}
	return files, slices.Equal(before, after), nil
}
