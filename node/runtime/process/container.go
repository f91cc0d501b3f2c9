package process

// The agent's side of a container: starting it and following it.

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// A container is a container with a directory on disk.
type container struct {
	spec  *spec
	ended chan struct{} // closed once the record says exited
	gone  chan struct{} // closed once its shim has ended too
	newer bool          // it is held: see Runtime.hold

	mu     sync.Mutex // guards the following
	record record
	last   sample // of its use of the processor
}

func newContainer(s *spec, r record) *container {
	c := &container{spec: s, record: r, ended: make(chan struct{}), gone: make(chan struct{})}
	if r.State == runtime.Exited {
		close(c.ended)
	}
	return c
}

func (c *container) isOver() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

func (c *container) status() runtime.ContainerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return runtime.ContainerStatus{
		ID:        c.spec.ID,
		Pod:       c.spec.Container.Pod,
		Name:      c.spec.Container.Name,
		Attempt:   c.spec.Container.Attempt,
		Image:     c.spec.Container.Image,
		State:     c.record.State,
		CreatedAt: c.spec.CreatedAt,
		StartedAt: c.record.StartedAt,
		EndedAt:   c.record.EndedAt,
		ExitCode:  c.record.ExitCode,
		Signal:    c.record.Signal,
		OOMKilled: c.record.OOMKilled,
		Rebooted:  c.record.rebooted(),
		Reason:    c.record.Reason,
		Message:   c.record.Message,
		LogPath:   c.spec.Container.LogPath,
		Dir:       c.spec.Dir,
	}
}

// startTimeout bounds how long a container may take to start.
const startTimeout = time.Minute

// Start runs c; see runtime.Runtime.
func (r *Runtime) Start(ctx context.Context, c runtime.Container) (string, error) {
	if err := r.wait(ctx); err != nil {
		return "", err
	}
	s, err := r.newSpec(c)
	if err != nil {
		return "", fmt.Errorf("start container %s: %w", c.Name, err)
	}
	id, err := r.start(ctx, s)
	if err != nil {
		if rerr := removeContainer(s); rerr != nil {
			err = errors.Join(err, rerr)
		}
		r.dropPodGroup(c.Pod)
		return "", fmt.Errorf("start container %s: %w", c.Name, err)
	}
	return id, nil
}

// newSpec makes the spec of a container.
func (r *Runtime) newSpec(c runtime.Container) (*spec, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("no command given")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, old := range r.containers {
		o := old.spec.Container
		if o.Pod == c.Pod && o.Name == c.Name && o.Attempt == c.Attempt {
			return nil, fmt.Errorf("attempt %d exists already", c.Attempt)
		}
	}
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	s := &spec{
		Version:   version,
		ID:        hex.EncodeToString(b[:]),
		CreatedAt: time.Now().UTC(),
		Container: c,
		Isolation: r.isolation,
		Hide:      append([]string{r.cfg.DataDir}, r.cfg.Hide...),
		LogBytes:  r.cfg.LogMaxBytes,
		LogFiles:  r.cfg.LogMaxFiles,
	}
	s.Dir = filepath.Join(r.containersDir(), s.ID)
	if sb := r.sandboxes[string(c.Pod.UID)]; sb != nil {
		s.Hostname = sb.Sandbox.Hostname
	}
	if c.Resources != (runtime.Resources{}) && r.cgroups == nil && !r.saidLimits {
		r.saidLimits = true
		r.log.Info("limits are ignored: no cgroup can be written", "pod", c.Pod.NamespacedName, "container", c.Name)
	}
	return s, nil
}

// start makes the container's directory and groups and its shim.
func (r *Runtime) start(ctx context.Context, s *spec) (string, error) {
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		return "", err
	}
	if r.cgroups != nil {
		var limits runtime.Resources
		r.mu.Lock()
		if sb := r.sandboxes[string(s.Container.Pod.UID)]; sb != nil {
			limits = sb.Sandbox.Limits
		}
		r.mu.Unlock()
		if err := r.makeGroup(s, limits); err != nil {
			return "", fmt.Errorf("make cgroup: %w", err)
		}
	}
	if s.Isolation != None {
		if err := r.findRemote(ctx, s); err != nil {
			return "", err
		}
	}
	if err := writeJSON(filepath.Join(s.Dir, specName), s); err != nil {
		return "", err
	}
	conn, cmd, err := startShim(s)
	if err != nil {
		return "", fmt.Errorf("start shim: %w", err)
	}
	rec, err := firstRecord(ctx, conn, s)
	if err != nil {
		_ = conn.Close()
		_ = cmd.Process.Kill()
		now := make(chan struct{})
		close(now)
		join(cmd, now)
		s.killStarted()
		return "", err
	}
	c := newContainer(s, *rec)
	r.mu.Lock()
	r.containers[s.ID] = c
	r.mu.Unlock()
	if !r.spawn(func() { r.follow(c, conn, cmd) }) {
		// Run has ended; the next one adopts the container.
		_ = conn.Close()
		_ = cmd.Process.Release()
	}
	r.changed(s.Container.Pod)
	return s.ID, nil
}

// findRemote sets which remote file systems of the machine the container sees.
func (r *Runtime) findRemote(ctx context.Context, s *spec) error {
	points, err := remotePoints(slices.Concat(s.Hide, notOverlaid))
	if err != nil {
		return err
	}
	s.Remote = r.looks.answering(ctx, points)
	for _, p := range points {
		if !slices.Contains(s.Remote, p) {
			r.log.Warn("the container is without a file system that does not answer", "pod", s.Container.Pod.NamespacedName,
				"container", s.Container.Name, "mount", p)
		}
	}
	return nil
}

// startShim starts the shim of a container and returns a connection to it.
func startShim(s *spec) (*conn, *exec.Cmd, error) {
	held, err := lock(s.Dir)
	if err != nil {
		return nil, nil, err
	}
	defer held.Close()
	ln, err := listenShim(s.Dir)
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "control")
	defer theirs.Close()
	conn, err := connFromFD(pair[0])
	if err != nil {
		return nil, nil, err
	}
	errs, err := os.OpenFile(filepath.Join(s.Dir, stderrName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	defer errs.Close()
	uid, gid := mappedUser(s)
	//nolint:noctx // the shim outlives every context of this process
	cmd := exec.Command(selfExe)
	label := fmt.Sprintf("%s/%s/%s", s.Container.Pod.Namespace, s.Container.Pod.Name, s.Container.Name)
	cmd.Args = []string{shimName, s.ID, label}
	cmd.Env = []string{"GOMAXPROCS=1", "GOTRACEBACK=single"}
	cmd.Dir = "/"
	cmd.Stderr = errs
	cmd.ExtraFiles = []*os.File{theirs, ln, held} // controlFD, listenFD, lockFD
	cmd.SysProcAttr = shimAttributes(s.Isolation, uid, gid, s.Container.Security)
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, cmd, nil
}

// firstRecord sends the spec to the shim and waits for the first record.
func firstRecord(ctx context.Context, c *conn, s *spec) (*record, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	var rep reply
	err := c.send(request{Op: opRun, Spec: s})
	if err == nil {
		err = c.recv(&rep)
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("shim: %w%s", err, stderrOf(s.Dir))
	case rep.Failure != nil:
		return nil, rep.Failure.err()
	case rep.Record == nil:
		return nil, errors.New("shim: unexpected answer")
	}
	return rep.Record, nil
}

// stderrOf is the standard error of a shim that has died.
func stderrOf(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, stderrName))
	if err != nil || len(b) == 0 {
		return ""
	}
	return ": " + string(b[:min(len(b), 512)])
}

// shimLinger is how long Run, before it returns, waits for the shims of ended containers.
const shimLinger = 2 * time.Second

// follow waits for the end of the container or of Run. The shim sends the record of the
// end on conn; cmd is the shim if it is a child of this process.
func (r *Runtime) follow(c *container, conn *conn, cmd *exec.Cmd) {
	defer conn.hangUp()
	gone := make(chan struct{})
	defer close(gone)
	r.wg.Go(func() {
		select {
		case <-r.done:
			at := time.Unix(1, 0)
			if c.isOver() { // then the shim ends soon too, and its files can be removed
				at = time.Now().Add(shimLinger)
			}
			_ = conn.SetReadDeadline(at)
		case <-gone:
		}
	})
	for {
		var rep reply
		err := conn.recv(&rep)
		if errors.Is(err, os.ErrDeadlineExceeded) && r.isDone() {
			if cmd != nil {
				_ = cmd.Process.Release()
			}
			return
		}
		if rep.Record != nil && rep.Record.State == runtime.Exited && !c.isOver() {
			r.end(c, *rep.Record)
		}
		if err != nil {
			break
		}
	}
	// The shim closed the connection: it has ended.
	if cmd != nil && !join(cmd, r.done) {
		return
	}
	if !c.isOver() {
		r.end(c, lost(c.spec))
	}
	c.spec.Cgroup.remove()
	r.dropPodGroup(c.spec.Container.Pod)
	close(c.gone)
}

// join waits for the end of a shim. It returns false if the shim does not end soon after quit is closed:
// one of its processes waits for a file system that does not answer, and cannot be killed.
func join(shim *exec.Cmd, quit <-chan struct{}) bool {
	ended := make(chan struct{})
	go func() { // ends with its process
		_ = shim.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-quit:
	}
	linger := time.NewTimer(shimLinger)
	defer linger.Stop()
	select {
	case <-ended:
		return true
	case <-linger.C:
		return false
	}
}

func (r *Runtime) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// end records how a container ended and notifies the watchers.
func (r *Runtime) end(c *container, rec record) {
	c.mu.Lock()
	c.record = rec
	c.mu.Unlock()
	close(c.ended)
	r.changed(c.spec.Container.Pod)
}

// makeGroup makes the cgroup of a container in that of its pod.
func (r *Runtime) makeGroup(s *spec, ofPod runtime.Resources) error {
	r.grouping.Lock()
	defer r.grouping.Unlock()
	uid := string(s.Container.Pod.UID)
	pod, err := r.cgroups.pod(uid, ofPod)
	if err == nil {
		r.endStrangers(uid, pod)
		s.Cgroup, err = pod.child(s.ID, s.Container.Resources)
	}
	return err
}

// dropPodGroup removes the cgroup of a pod unless a container's is in it. The next
// container makes it again.
func (r *Runtime) dropPodGroup(pod runtime.PodID) {
	if r.cgroups == nil {
		return
	}
	r.grouping.Lock()
	defer r.grouping.Unlock()
	if r.cgroups.podDirs(string(pod.UID)).tryRemove() {
		delete(r.searched, string(pod.UID))
	}
}

// removeContainer removes the files of a container whose shim is dead.
func removeContainer(s *spec) error {
	s.Cgroup.remove()
	if err := unmountBelow(s.Dir); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	if err := runtime.RemoveAll(s.Dir); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}
