// This file stores when the last shutdown of the machine began and finished terminating
// pods.

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hawser-project/hawser/auth/atomicfile"
)

const (
	// shutdownFile is the kubelet's name of the file, in the node's directory.
	shutdownFile = "graceful_node_shutdown_state"
	// maxShutdownFile bounds what is read of it.
	maxShutdownFile = 4 << 10
)

// shutdownTimes are in shutdownFile, in the kubelet's form. The zero time means that there
// was none.
type shutdownTimes struct {
	Start time.Time `json:"startTime"`
	End   time.Time `json:"endTime"`
}

// readShutdown reads the file. A missing file is no error.
func readShutdown(dir string) (t shutdownTimes, err error) {
	f, err := os.Open(filepath.Join(dir, shutdownFile))
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, err
	}
	defer f.Close()
	if err = json.NewDecoder(io.LimitReader(f, maxShutdownFile)).Decode(&t); err != nil {
		return shutdownTimes{}, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return t, nil
}

// write replaces the file atomically.
func (t shutdownTimes) write(dir string) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, shutdownFile), text, 0o600)
}
