// This file writes and reads the records on disk.

package pods

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hawser-project/hawser/auth/atomicfile"
)

// recordVersion is the version of the records on disk. A record of another one is
// not read.
const recordVersion = 1

// A record is a file on disk: data of its version, and the SHA-256 of data's bytes in
// the file, by which a torn or corrupted file is detected.
type record struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Data     json.RawMessage `json:"data"`
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// encodeRecord is the inverse of decodeRecord.
func encodeRecord(data any) ([]byte, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	out, err := json.Marshal(record{Version: recordVersion, Checksum: checksum(raw), Data: raw})
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return out, nil
}

// decodeRecord fills data from a record's bytes.
func decodeRecord(file []byte, data any) error {
	var r record
	if err := json.Unmarshal(file, &r); err != nil {
		return fmt.Errorf("decode record: %w", err)
	}
	switch {
	case r.Version != recordVersion:
		return fmt.Errorf("decode record: it has version %d, this agent reads %d", r.Version, recordVersion)
	case r.Checksum != checksum(r.Data):
		return errors.New("decode record: its checksum does not match")
	}
	if err := json.Unmarshal(r.Data, data); err != nil {
		return fmt.Errorf("decode record: %w", err)
	}
	return nil
}

// replaceFile puts data in place of the file at path. Only the agent's user may read it.
func replaceFile(path string, data []byte) error {
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}

// readFile reads a file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read file: %w", err)
	case int64(len(data)) > limit:
		return nil, fmt.Errorf("read file: it has more than %d bytes", limit)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, errors.New("read file: it is empty")
	}
	return data, nil
}

// A corruptFile is a file that could not be read. It was renamed, so that the next start
// does not read it again.
type corruptFile struct {
	path string // where it is now
	err  error
}

// setAside renames a file that cannot be read. The one set aside before it, if any,
// is replaced.
func setAside(path string, why error) corruptFile {
	aside := path + ".damaged"
	if err := os.Rename(path, aside); err != nil {
		return corruptFile{path, errors.Join(why, err)}
	}
	return corruptFile{aside, why}
}

// removeTemporary removes the files of interrupted writes in dir.
func removeTemporary(dir string) {
	left, err := filepath.Glob(filepath.Join(escapeGlob(dir), atomicfile.TempPrefix+"*"))
	if err != nil {
		return // the pattern is a constant
	}
	for _, path := range left {
		_ = os.Remove(path) // it is tried again at the next start; the file does no harm
	}
}
