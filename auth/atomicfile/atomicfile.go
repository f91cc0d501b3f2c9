// Package atomicfile replaces files so that a reader, and a machine that lost its power,
// finds the old content or the new one, never a part.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// TempPrefix begins the names of temporary files. A crash can leave one beside the target.
const TempPrefix = ".writing-"

// Write replaces the file at path, with the given mode whatever the umask. The directory must
// exist. When Write returns, content and name are on disk. After an error the old file is
// unchanged, unless syncing the directory failed.
func Write(path string, data []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, TempPrefix+"*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error matters
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
