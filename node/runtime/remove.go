// Removal of directories that containers have written to.

package runtime

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// RemoveAll removes dir with its content. It is no error if dir does not exist. A user that is not
// root cannot empty a directory whose mode forbids it; RemoveAll changes the mode of the
// directories of this user and tries again, once. Nothing may change dir meanwhile.
func RemoveAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
