package process

// File systems whose server may be away. Each is asked by a process of its own: a request that a FUSE
// daemon has taken and does not answer cannot be ended, and a process with such a thread does not
// exit, even if it is killed. That must be neither a shim nor the agent.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	over <-chan struct{} // closed when answerTime is over: the process is then killed
	done chan struct{}   // closed when the process has ended
	err  error           // valid then
	late bool            // valid then: it has ended because it was killed
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
	asked := make([]*look, len(points))
	for i, p := range points {
		asked[i] = l.begin(p)
	}
	var here []string
	for i, k := range asked {
		if k.wait(ctx) == nil && k.err == nil {
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
	ctx, cancel := context.WithTimeout(context.Background(), answerTime) // not a caller's: others wait, too
	k := &look{over: ctx.Done(), done: make(chan struct{})}
	l.out[point] = k
	go func() { // ends with its process
		k.err = l.ask(ctx, point)
		k.late = k.err != nil && ctx.Err() != nil
		l.mu.Lock()
		delete(l.out, point)
		l.mu.Unlock()
		close(k.done)
		cancel()
	}()
	return k
}

// wait returns nil once the process of k has ended by itself. It waits until answerTime is over, or ctx
// is done.
func (k *look) wait(ctx context.Context) error {
	select {
	case <-k.done:
	case <-k.over:
	case <-ctx.Done():
	}
	select {
	case <-k.done: // over is closed then, too
		if !k.late {
			return nil
		}
	default:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return errors.New("it does not answer")
}

// Answers returns an error if the status of path is neither had nor refused within a second, because it
// is in a file system whose server is away. Who asks for it then may not end as long as it is. No
// process asks for a path that leads into no such file system.
func (r *Runtime) Answers(ctx context.Context, path string) error {
	elsewhere, err := leadsElsewhere(path)
	if err != nil || !elsewhere {
		return err
	}
	if err := r.looks.begin(path).wait(ctx); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// maxLinks bounds the symbolic links of a path, as the kernel does.
const maxLinks = 40

// leadsElsewhere reports whether path may lead into a remote file system, or one that is mounted on
// demand. It looks at no file in one. A link below a directory of /proc may lead to another mount
// namespace.
func leadsElsewhere(path string) (bool, error) {
	ms, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !remote(m.FSType) && m.FSType != "autofs", false
	})
	if err != nil || len(ms) == 0 {
		return false, err
	}
	met := func(at string) bool {
		return slices.ContainsFunc(ms, func(m *mountinfo.Info) bool { return m.Mountpoint == at })
	}
	at, rest, links := "/", path, 0
	if met(at) {
		return true, nil
	}
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		next := filepath.Join(at, name)
		if met(next) {
			return true, nil
		}
		link, err := os.Readlink(next)
		if err != nil { // no link, or missing
			at = next
			continue
		}
		if links++; links > maxLinks || runtime.Under(at, "/proc") && at != "/proc" {
			return true, nil
		}
		if filepath.IsAbs(link) {
			at = "/"
		}
		rest = link + "/" + rest
	}
	return false, nil
}
