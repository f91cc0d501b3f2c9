// This file keeps pods on disk, so that an agent that restarts without a server
// knows what should run.

package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

// maxCheckpoint bounds what is read back. The API stores no object that large.
const maxCheckpoint = 4 << 20

// A checkpoint is what is kept of a pod.
type checkpoint struct {
	// Pod is as last seen, with the status last computed.
	Pod *corev1.Pod `json:"pod"`
	// Admitted says that the pod was found to fit this node.
	Admitted bool `json:"admitted"`
}

// saveCheckpoint replaces the checkpoint at path.
func saveCheckpoint(path string, c checkpoint) error {
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode checkpoint: %w", err)
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".pod-*")
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write checkpoint: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// loadCheckpoint reads one back.
func loadCheckpoint(path string) (checkpoint, error) {
	var c checkpoint
	info, err := os.Stat(path)
	if err != nil {
		return c, fmt.Errorf("read checkpoint: %w", err)
	}
	if info.Size() > maxCheckpoint {
		return c, fmt.Errorf("read checkpoint %s: %d bytes are too many", path, info.Size())
	}
	data, err := os.ReadFile(path) //nolint:gosec // of the data directory
	if err != nil {
		return c, fmt.Errorf("read checkpoint: %w", err)
	}
	return decodeCheckpoint(data)
}

func decodeCheckpoint(data []byte) (checkpoint, error) {
	var c checkpoint
	if err := json.Unmarshal(data, &c); err != nil {
		return checkpoint{}, fmt.Errorf("decode checkpoint: %w", err)
	}
	if c.Pod == nil || c.Pod.UID == "" || c.Pod.Name == "" || c.Pod.Namespace == "" || !filepath.IsLocal(string(c.Pod.UID)) {
		return checkpoint{}, errors.New("decode checkpoint: it names no pod")
	}
	return c, nil
}

// loadCheckpoints reads all of them. One that cannot be read is an error among
// others; the rest is returned.
func (p places) loadCheckpoints() ([]checkpoint, error) {
	entries, err := os.ReadDir(p.pods())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read checkpoints: %w", err)
	}
	var (
		list []checkpoint
		errs []error
	)
	for _, e := range entries {
		c, err := loadCheckpoint(filepath.Join(p.pods(), e.Name(), "pod.json"))
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		case string(c.Pod.UID) != e.Name():
			errs = append(errs, fmt.Errorf("checkpoint of pod %s is in the directory of %s", c.Pod.UID, e.Name()))
		default:
			list = append(list, c)
		}
	}
	return list, errors.Join(errs...)
}
