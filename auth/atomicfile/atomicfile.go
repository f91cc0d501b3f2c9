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
	p, err := Prepare(path, data, mode)
	if err != nil {
		return err
	}
	return p.Commit()
}

// A Prepared is content that is on disk, and has not replaced a file yet.
type Prepared struct{ path, temporary string }

// Prepare begins a Write: what remains to be done needs no space. The caller calls Commit or
// Discard.
func Prepare(path string, data []byte, mode os.FileMode) (*Prepared, error) {
	f, err := os.CreateTemp(filepath.Dir(path), TempPrefix+"*") // mode 0600
	if err != nil {
		return nil, err
	}
	p := &Prepared{path, f.Name()}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		p.Discard() // the first error matters
		return nil, err
	}
	return p, nil
}

// Discard drops the content. After Commit it does nothing.
func (p *Prepared) Discard() { _ = os.Remove(p.temporary) }

// Commit replaces the file.
func (p *Prepared) Commit() error {
	if err := os.Rename(p.temporary, p.path); err != nil {
		p.Discard()
		return err
	}
	d, err := os.Open(filepath.Dir(p.path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
