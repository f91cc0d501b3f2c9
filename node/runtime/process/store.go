package process

// The files of a container on disk.

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
// may be added without a new version: each side ignores unknown ones and works without
// missing ones. The version is raised if an older side would do harm.
//
//	0  is not written: containers from before there were versions
//	1  the record identifies the boot and the main process uniquely
//
// An agent adopts containers of its own version and of earlier ones, with the features
// of their shims. It does not touch those of later versions (see hold), and reads only
// their specHead.
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

// A spec is the shim's configuration.
type spec struct {
	Version   int               `json:"version,omitempty"`
	ID        string            `json:"id"`
	Dir       string            `json:"dir"` // of this container, absolute
	CreatedAt time.Time         `json:"createdAt"`
	Container runtime.Container `json:"container"`
	Hostname  string            `json:"hostname,omitempty"`
	Isolation Isolation         `json:"isolation"`
	Hide      []string          `json:"hide,omitempty"`
	Remote    []string          `json:"remote,omitempty"` // mount points of the remote file systems that answer
	Cgroup    cgroupDirs        `json:"cgroup"`
	LogBytes  int64             `json:"logBytes,omitempty"`
	LogFiles  int               `json:"logFiles,omitempty"`
}

// sharesPIDs reports whether the container's processes have the machine's process ids.
func (s *spec) sharesPIDs() bool { return s.Isolation == None || s.Container.Security.HostPID }

// A record is the state of a container.
type record struct {
	Version   int           `json:"version,omitempty"` // of the shim's protocol
	State     runtime.State `json:"state"`
	BootID    string        `json:"bootId,omitempty"`   // of the machine when the record was made
	PID       int           `json:"pid,omitempty"`      // as the shim sees it
	PIDStart  uint64        `json:"pidStart,omitempty"` // with PID and BootID, names one process; only with the machine's process ids
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

// writeRecord replaces a container's record. If the disk has no room for another file the record is
// written over the one before: without it an end would be forgotten with the agent.
func writeRecord(path string, r record) error {
	err := writeJSON(path, r)
	if err == nil {
		return nil
	}
	f, oerr := os.OpenFile(path, os.O_WRONLY, 0)
	if oerr != nil {
		return errors.Join(err, oerr)
	}
	b, err := json.Marshal(r)
	if err == nil {
		_, err = f.Write(b)
	}
	return errors.Join(err, f.Truncate(int64(len(b))), f.Sync(), f.Close())
}

// readSpec reads the spec of the container in dir. Of a spec of a later version it reads
// only the part that all versions have.
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

// errLocked means that the container's shim lives.
var errLocked = errors.New("locked")

// lock takes the lock of the container in dir. The lock belongs to the open file: a shim
// that inherits the file holds the lock until it ends in any way.
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

// isLocked reports whether the lock of the container in dir is held.
func isLocked(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
