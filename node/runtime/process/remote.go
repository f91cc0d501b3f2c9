package process

// File systems whose server may be away. Each is asked by a process of its own: a request that a FUSE
// daemon has taken and does not answer cannot be ended, and a process with such a thread does not
// exit, even if it is killed. That must be neither a shim nor the agent.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hawser-project/hawser/node/runtime"
)

// answerTime is how long the servers of remote file systems may take before a container starts
// without them.
const answerTime = time.Second

// lookArg makes a shim ask for the status of a file. Its exit code is the result.
const lookArg = "look"

// remote reports whether the files of a file system of that type may be elsewhere: requests for them
// can wait for as long as a server is away.
func remote(fsType string) bool {
	switch fsType {
	case "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "glusterfs", "lustre", "virtiofs":
		return true
	}
	return strings.HasPrefix(fsType, "fuse")
}

// remotePoints lists up to maxMounts mount points of remote file systems, without those in hidden.
func remotePoints(hidden []string) ([]string, error) {
	ms, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !remote(m.FSType) || slices.ContainsFunc(hidden, func(d string) bool { return runtime.Under(m.Mountpoint, d) }), false
	})
	var points []string
	for _, m := range ms {
		points = append(points, m.Mountpoint)
	}
	slices.Sort(points)
	points = slices.Compact(points)
	return points[:min(len(points), maxMounts)], err
}

// looks asks remote file systems, each once at a time.
type looks struct {
	ask func(ctx context.Context, point string) error

	mu  sync.Mutex
	out map[string]*look // by mount point
}

// A look is one question, and the process that asks it.
type look struct {
	done chan struct{} // closed when the process has ended
	err  error         // valid then
	kill func()
	late bool // looks.mu guards it: somebody has waited in vain
}

func newLooks(ask func(ctx context.Context, point string) error) *looks {
	return &looks{ask: ask, out: make(map[string]*look)}
}

// askProcess returns nil if the status of the file at point can be had. It returns when its process
// has ended, which may be long after ctx is done.
func askProcess(ctx context.Context, point string) error {
	cmd := exec.CommandContext(ctx, selfExe)
	cmd.Args = []string{shimName, lookArg, point}
	cmd.Env = []string{}
	cmd.Dir = "/"
	return cmd.Run()
}

// lookMain is the shim's side of askProcess.
func lookMain(args []string) int {
	if len(args) != 1 {
		return 1
	}
	if _, err := os.Stat(args[0]); err != nil {
		return 1
	}
	return 0
}

// answering are those of the points whose status can be had within answerTime.
func (l *looks) answering(ctx context.Context, points []string) []string {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	asked := make([]*look, len(points))
	for i, p := range points {
		asked[i] = l.begin(p)
	}
	var here []string
	for i, k := range asked {
		if l.wait(ctx, k) {
			here = append(here, points[i])
		}
	}
	return here
}

// begin asks point, unless a look of an earlier call has not ended.
func (l *looks) begin(point string) *look {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.out[point]; k != nil {
		return k
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &look{done: make(chan struct{}), kill: cancel}
	l.out[point] = k
	go func() { // ends with its process
		k.err = l.ask(ctx, point)
		cancel()
		l.mu.Lock()
		delete(l.out, point)
		l.mu.Unlock()
		close(k.done)
	}()
	return k
}

// wait reports whether k ends well before ctx is done. It kills a look that is late, and does not
// wait for one that is late already.
func (l *looks) wait(ctx context.Context, k *look) bool {
	l.mu.Lock()
	late := k.late
	l.mu.Unlock()
	if !late {
		select {
		case <-k.done:
		case <-ctx.Done():
		}
	}
	select {
	case <-k.done:
		return k.err == nil
	default:
	}
	l.mu.Lock()
	k.late = true
	l.mu.Unlock()
	k.kill()
	return false
}

// Answers returns an error if the status of path is neither had nor refused within a second, because it
// is in a file system whose server is away. Who asks for it then may not end as long as it is.
func (r *Runtime) Answers(ctx context.Context, path string) error {
	if points, err := remotePoints(nil); err != nil || len(points) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	k := r.looks.begin(path)
	r.looks.wait(ctx, k)
	r.looks.mu.Lock()
	defer r.looks.mu.Unlock()
	if k.late {
		return fmt.Errorf("%s does not answer", path)
	}
	return nil
}
