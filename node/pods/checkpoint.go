// This file keeps pods on disk, so that an agent that restarts without a server
// knows what should run.

package pods

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

const (
	// maxCheckpoint bounds what is read back. The API stores no object that large.
	maxCheckpoint = 4 << 20
	// maxCheckpoints bounds how many are read. A node usually runs about a hundred pods.
	maxCheckpoints = 8192
)

// A checkpoint is the state of a pod on disk.
type checkpoint struct {
	// Pod is the pod as last seen, with the last computed status.
	Pod *corev1.Pod `json:"pod"`
	// Admitted is whether the pod was admitted to this node.
	Admitted bool `json:"admitted"`
	// Gone is whether the API did not have the pod any more: it is to be stopped, also
	// without a server.
	Gone bool `json:"gone,omitempty"`
	// Static is whether a file defines the pod.
	Static bool `json:"static,omitempty"`
	// Allocatable is the node's, as last known: containers may read it by the downward API.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`

	inputs []input // of a file of their own
}

// saveCheckpoint replaces the checkpoint at path.
func saveCheckpoint(path string, c checkpoint) error {
	data, err := encodeRecord(c)
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	if err = replaceFile(path, data); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

// loadCheckpoint reads one checkpoint.
func loadCheckpoint(path string) (checkpoint, error) {
	data, err := readFile(path, maxCheckpoint)
	if err != nil {
		return checkpoint{}, fmt.Errorf("read checkpoint: %w", err)
	}
	return decodeCheckpoint(data)
}

func decodeCheckpoint(data []byte) (checkpoint, error) {
	var c checkpoint
	if err := decodeRecord(data, &c); err != nil {
		return checkpoint{}, fmt.Errorf("read checkpoint: %w", err)
	}
	if c.Pod == nil || c.Pod.UID == "" || c.Pod.Name == "" || c.Pod.Namespace == "" || !filepath.IsLocal(string(c.Pod.UID)) {
		return checkpoint{}, errors.New("read checkpoint: it names no pod")
	}
	return c, nil
}

// loadCheckpoints reads all of them. Those that cannot be read are set aside; the
// rest is returned.
func (p places) loadCheckpoints() ([]checkpoint, []corruptFile, error) {
	entries, err := os.ReadDir(p.pods())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read checkpoints: %w", err)
	}
	var (
		list []checkpoint
		bad  []corruptFile
	)
	for i, e := range entries {
		if i == maxCheckpoints {
			return list, bad, fmt.Errorf("read checkpoints: there are %d in %s, and no more than %d are read", len(entries), p.pods(), maxCheckpoints)
		}
		dir := filepath.Join(p.pods(), e.Name())
		removeTemporary(dir)
		path := filepath.Join(dir, checkpointName)
		c, err := loadCheckpoint(path)
		if err == nil && string(c.Pod.UID) != e.Name() {
			err = fmt.Errorf("read checkpoint: it is that of pod %s", c.Pod.UID)
		}
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			bad = append(bad, setAside(path, err))
		default:
			list = append(list, c)
		}
	}
	return list, bad, nil
}
