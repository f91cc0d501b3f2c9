package process

// What is kept on disk about a container.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/auth/atomicfile"
	"github.com/hawser-project/hawser/node/runtime"
)

// Names in a container's directory.
const (
	specName   = "spec.json"
	statusName = "status.json"
	lockName   = "lock"
	sockName   = "sock"
	rootName   = "rootfs"
	layersName = "layers"
	tmpName    = "tmp"
	workName   = "work"
	stderrName = "shim.log"
)

// version is that of spec, record and the protocol of wire.go. Fields and requests
// may be added without raising it: either side ignores what it does not know, and
// does without what it is not told. It is raised when an older side would do harm.
//
//	0  is not written: containers from before there were versions
//	1  the record names the boot and the main process beyond doubt
//
// An agent adopts containers of its own version and of all before, with what their
// shims can do. It leaves those of later versions alone (see hold), for which it
// reads no more than specHead.
const version = 1

// A specHead is the part of a spec that is the same in every version.
type specHead struct {
	Version   int       `json:"version"`
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"createdAt"`
	Container struct {
		Pod     runtime.PodID
		Name    string
		Attempt int
		Image   string
		LogPath string
	} `json:"container"`
}

// A spec is what the shim is told to run.
type spec struct {
	Version   int               `json:"version,omitempty"`
	ID        string            `json:"id"`
	Dir       string            `json:"dir"` // of this container, absolute
	CreatedAt time.Time         `json:"createdAt"`
	Container runtime.Container `json:"container"`
	Hostname  string            `json:"hostname,omitempty"`
	Isolation Isolation         `json:"isolation"`
	Hide      []string          `json:"hide,omitempty"`
	Cgroup    cgroupDirs        `json:"cgroup"`
	LogBytes  int64             `json:"logBytes,omitempty"`
	LogFiles  int               `json:"logFiles,omitempty"`
}

// A record is what became of it.
type record struct {
	Version   int           `json:"version,omitempty"` // that the shim speaks
	State     runtime.State `json:"state"`
	BootID    string        `json:"bootId,omitempty"`   // of the machine when the record was made
	PID       int           `json:"pid,omitempty"`      // as the shim sees it
	PIDStart  uint64        `json:"pidStart,omitempty"` // with PID and BootID, names one process; only without namespaces
	ShimPID   int           `json:"shimPid,omitempty"`
	ShimStart uint64        `json:"shimStart,omitempty"` // with ShimPID, names one process
	StartedAt time.Time     `json:"startedAt"`
	EndedAt   time.Time     `json:"endedAt,omitzero"`
	ExitCode  int           `json:"exitCode"`
	Signal    int           `json:"signal,omitempty"`
	OOMKilled bool          `json:"oomKilled,omitempty"`
	Reason    string        `json:"reason,omitempty"`
	Message   string        `json:"message,omitempty"`
}

// writeJSON replaces the file at path, so that after a crash it has either the
// old content or the new.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, b, 0o600)
}

// readSpec reads what is kept of the container in dir. Of a spec of a later version
// the result has the part that is the same in all.
func readSpec(dir string) (*spec, error) {
	path := filepath.Join(dir, specName)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s, err := decodeSpec(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.Dir = dir
	return s, nil
}

func decodeSpec(b []byte) (*spec, error) {
	var head specHead
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, err
	}
	s := &spec{Version: head.Version, ID: head.ID, CreatedAt: head.CreatedAt}
	if head.Version <= version {
		if err := json.Unmarshal(b, s); err != nil {
			return nil, err
		}
	} else {
		c := &head.Container
		s.Container = runtime.Container{Pod: c.Pod, Name: c.Name, Attempt: c.Attempt, Image: c.Image, LogPath: c.LogPath}
	}
	if s.ID == "" {
		return nil, errors.New("it names no container")
	}
	return s, nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// errLocked says that a shim lives.
var errLocked = errors.New("locked")

// lock takes the lock of the container in dir. It belongs to the open file, so
// that a shim which inherits it holds it until it dies, however it dies.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errLocked
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// removeAll removes a container's directory. What ran in it may have made
// directories that it, and so we, may not enter.
func removeAll(dir string) error {
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
