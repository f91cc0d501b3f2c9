// This file replaces the content of a directory at once.
//
// The directory DIR holds one directory with a name of its own, in it the files,
// a symbolic link ..data to it, and for each first element E of a file's path a
// link E to ..data/E. New content goes to a new directory; then ..data is
// replaced by rename, and the old directory is removed.

package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const dataLink = "..data"

// writeAtomically makes files the content of dir, beside the directories nested. It does nothing if
// they are already.
func writeAtomically(dir string, files map[string]file, group *int64, nested []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make volume: %w", err)
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read volume: %w", err)
	}
	if err == nil && holds(filepath.Join(dir, old), files, group) {
		return errors.Join(linkNames(dir, files, nested), makeNested(dir, nested))
	}
	fresh, err := writeFresh(dir, files, group)
	if err != nil {
		return fmt.Errorf("write volume: %w", err)
	}
	if err := replaceLink(dir, filepath.Base(fresh)); err != nil {
		return errors.Join(fmt.Errorf("write volume: %w", asOf(dir, err)), os.RemoveAll(fresh))
	}
	return errors.Join(linkNames(dir, files, nested), makeNested(dir, nested), removeStale(dir, filepath.Base(fresh)))
}

func writeFresh(dir string, files map[string]file, group *int64) (_ string, err error) {
	fresh, err := os.MkdirTemp(dir, "..")
	if err != nil {
		return "", asOf(dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(asOf(dir, err), os.RemoveAll(fresh))
		}
	}()
	if err := os.Chmod(fresh, 0o755); err != nil {
		return "", err
	}
	for path, f := range files {
		full := filepath.Join(fresh, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(full, f.data, 0o600); err != nil {
			return "", err
		}
		if err := own(full, f.owner, group); err != nil {
			return "", err
		}
		// Not left to WriteFile, whose mode is cut by the umask.
		if err := os.Chmod(full, modeFor(f, group)); err != nil {
			return "", err
		}
	}
	return fresh, nil
}

// asOf makes an error name a path of the volume in dir, and not that of a temporary directory in it:
// the same error again has the same text, and is counted in the same event.
func asOf(dir string, err error) error {
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return &fs.PathError{Op: link.Op, Path: filepath.Join(dir, dataLink), Err: link.Err}
	}
	path, ok := errors.AsType[*fs.PathError](err)
	if !ok {
		return err
	}
	rel, ok := strings.CutPrefix(path.Path, dir+"/..")
	if !ok {
		return err
	}
	_, rest, _ := strings.Cut(rel, "/")
	return &fs.PathError{Op: path.Op, Path: filepath.Join(dir, rest), Err: path.Err}
}

// modeFor lets the pod's group read what it owns.
func modeFor(f file, group *int64) os.FileMode {
	if group != nil {
		return f.mode | 0o440
	}
	return f.mode
}

// own gives path to a user and to the pod's group, of which nil changes nothing. Only root may;
// others keep theirs.
func own(path string, user, group *int64) error {
	if user == nil && group == nil || os.Geteuid() != 0 {
		return nil
	}
	uid, gid := -1, -1
	if user != nil {
		uid = int(*user)
	}
	if group != nil {
		gid = int(*group)
	}
	return os.Lchown(path, uid, gid)
}

// owned reports whether a file belongs to the user that own gives it to.
func owned(info fs.FileInfo, user *int64) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return user == nil || os.Geteuid() != 0 || ok && int64(st.Uid) == *user
}

// replaceLink points ..data at target.
func replaceLink(dir, target string) error {
	tmp := filepath.Join(dir, "..data_tmp")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, dataLink))
}

// linkNames makes the links that users see, and removes those without a file. It keeps the
// directories nested: a running container may have a volume mounted there.
func linkNames(dir string, files map[string]file, nested []string) error {
	want, keep := map[string]bool{}, map[string]bool{}
	for path := range files {
		want[firstElement(path)] = true
	}
	for _, path := range nested {
		keep[firstElement(path)] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), ".."):
		case want[e.Name()] && e.Type()&fs.ModeSymlink != 0:
			delete(want, e.Name())
		case keep[e.Name()] && e.IsDir():
		default:
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove old file of volume: %w", err)
			}
		}
	}
	var failed error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)); err != nil {
			failed = errors.Join(failed, fmt.Errorf("write volume: %w", err))
		}
	}
	return failed
}

func firstElement(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

// removeStale removes the directories of earlier and of interrupted writes.
func removeStale(dir, keep string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "..") && e.Name() != keep {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove old content of volume: %w", err)
			}
		}
	}
	return nil
}

// holds reports whether dir holds exactly files. A file that cannot be read counts as
// different.
func holds(dir string, files map[string]file, group *int64) bool {
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, ok := files[rel]
		info, err := d.Info()
		if err != nil || !ok || info.Size() != int64(len(f.data)) || info.Mode().Perm() != modeFor(f, group) || !owned(info, f.owner) {
			return errors.Join(err, errDiffers)
		}
		data, err := os.ReadFile(path) //nolint:gosec // below the volume's own directory
		if err != nil || !bytes.Equal(data, f.data) {
			return errors.Join(err, errDiffers)
		}
		seen++
		return nil
	})
	return err == nil && seen == len(files)
}

var errDiffers = errors.New("content differs")
