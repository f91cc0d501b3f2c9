package process

// The shim's side of attach and exec.

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/crilog"
)

// An attachment is a client that gets the command's output.
type attachment struct {
	out, err *sink
	failed   chan error // gets the error of a failed sink

	// The shim's mutex guards the following.
	leaving bool // it gets no more
	wrote   bool // it got something since quiet has looked
}

func (a *attachment) write(stream string, b []byte) {
	k := a.out
	if stream == crilog.Stderr {
		k = a.err
	}
	if k == nil || a.leaving {
		return
	}
	a.wrote = true
	if err := k.write(b); err != nil {
		select {
		case a.failed <- err:
		default:
		}
	}
}

// toAttached gives output to all attached clients. Those with the most unread output lose their
// attachments while all spools together exceed the bound.
func toAttached(attached []*attachment, stream string, b []byte) {
	for _, a := range attached {
		a.write(stream, b)
	}
	for {
		var total, most int64
		var slowest *attachment
		for _, a := range attached {
			n := a.spooled()
			if total += n; n > most {
				most, slowest = n, a
			}
		}
		if total <= spoolsBytes {
			return
		}
		slowest.fail(errSlow)
	}
}

// spooled returns how much disk the attachment takes.
func (a *attachment) spooled() (sum int64) {
	for _, k := range []*sink{a.out, a.err} {
		if k != nil {
			sum += k.spooled()
		}
	}
	return sum
}

// fail ends the attachment with err.
func (a *attachment) fail(err error) {
	for _, k := range []*sink{a.out, a.err} {
		if k != nil {
			k.fail(err)
		}
	}
	select {
	case a.failed <- err:
	default:
	}
}

// sinks makes the sinks of an attachment from the pipes of req.
func (s *shim) sinks(c *conn, req *request) (*attachment, error) {
	a := &attachment{failed: make(chan error, 1)}
	for _, want := range []struct {
		is   bool
		sink **sink
	}{{req.Stdout, &a.out}, {req.Stderr, &a.err}} {
		if !want.is {
			continue
		}
		fd, err := c.take()
		if err == nil {
			*want.sink, err = newSink(fd, s.spec.Dir)
		}
		if err != nil {
			a.close(0)
			return nil, err
		}
	}
	return a, nil
}

// close ends the attachment. Pending output is written for at most patience.
func (a *attachment) close(patience time.Duration) {
	for _, k := range []*sink{a.out, a.err} {
		if k != nil {
			k.finish(patience)
		}
	}
}

// attachLinger is how long an attached client may take to read the output that came before
// the command or the client's input ended.
const attachLinger = 30 * time.Second

// attach connects a client to the streams of the running command.
func (s *shim) attach(c *conn, req *request) error {
	a, err := s.sinks(c, req)
	if err != nil {
		return err
	}
	fd, err := s.join(a, req.Stdin)
	if err != nil {
		a.close(0)
		return err
	}
	var fds []int
	if fd >= 0 {
		fds = append(fds, fd)
	}
	err = c.send(reply{HasFD: fd >= 0}, fds...)
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	requests := make(chan bool, 1)
	var reading sync.WaitGroup
	reading.Go(func() { requests <- s.attachRequests(c) })
	inputEnded := false
	if err == nil {
		select {
		case <-s.ended:
		case inputEnded = <-requests:
		case err = <-a.failed:
		}
	}
	if inputEnded && (a.out != nil || a.err != nil) {
		err = s.quiet(a)
	}
	patience := time.Duration(0)
	if inputEnded || s.isOver() {
		patience = attachLinger
	}
	s.mu.Lock()
	a.leaving = true // it counts until it has given back the disk that it takes
	s.mu.Unlock()
	a.close(patience)
	s.leave(a)
	if req.Stdin && s.spec.Container.StdinOnce {
		s.closeStdin()
	}
	if err != nil {
		_ = c.send(reply{Failure: failureOf(err)})
	} else {
		_ = c.send(reply{})
	}
	_ = c.CloseRead()
	reading.Wait()
	return nil
}

// quietFor is how long a command says nothing before a client whose input has ended has had its
// answer to that.
const quietFor = time.Second

// quiet waits until the command has ended or says nothing, for attachLinger at most. It returns why
// the attachment has failed.
func (s *shim) quiet(a *attachment) error {
	tick := time.NewTicker(quietFor)
	defer tick.Stop()
	for range attachLinger / quietFor {
		select {
		case <-s.ended:
			return nil
		case err := <-a.failed:
			return err
		case <-tick.C:
		}
		s.mu.Lock()
		wrote := a.wrote
		a.wrote = false
		s.mu.Unlock()
		if !wrote {
			return nil
		}
	}
	return nil
}

// join adds a to the attachments. If stdin is true and the command has an input, it
// returns a descriptor for that.
func (s *shim) join(a *attachment, stdin bool) (fd int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isOver() {
		return -1, runtime.ErrNotRunning
	}
	if len(s.attached) >= maxAttached {
		return -1, fmt.Errorf("too many clients are attached to the container already (%d)", maxAttached)
	}
	in, fd := s.stdin, -1
	if s.tty != nil {
		in = s.tty
	}
	if stdin && in != nil {
		if fd, err = dup(in); err != nil {
			return -1, err
		}
	}
	s.attached = append(s.attached, a)
	return fd, nil
}

func (s *shim) leave(a *attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached = slices.DeleteFunc(s.attached, func(b *attachment) bool { return a == b })
}

// attachRequests serves the requests of an attachment until its connection ends, or until the
// client's input has ended and that ends the attachment: then it returns true.
func (s *shim) attachRequests(c *conn) (inputEnded bool) {
	for {
		var req request
		if c.recv(&req) != nil {
			return false
		}
		switch req.Op {
		case opResize:
			_ = s.resize(req.Size)
		case opCloseStdin:
			if !s.spec.Container.StdinOnce || s.tty != nil {
				return true
			}
			s.closeStdin()
		}
	}
}

func (s *shim) closeStdin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stdin != nil {
		_ = s.stdin.Close()
		s.stdin = nil
	}
}

// exec runs another command in the container.
func (s *shim) exec(c *conn, req *request) error {
	if len(req.Argv) == 0 {
		return startError(127, "exec: no command given")
	}
	leave, err := s.admitExec(req.Probe)
	if err != nil {
		return err
	}
	defer leave()
	p, master, err := s.startExec(c, req)
	if err != nil {
		return err
	}
	if master != nil {
		defer master.Close()
		var fd int
		if fd, err = dup(master); err == nil {
			err = c.send(reply{HasFD: true}, fd)
			_ = unix.Close(fd)
		}
	} else {
		err = c.send(reply{})
	}
	if err != nil {
		s.reaper.signal(p.pid, unix.SIGKILL, true)
	}
	over, gone := make(chan struct{}), make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		// The client sends nothing more. This ends when it closes the connection, or
		// with the command.
		var more request
		_ = c.recv(&more)
		close(gone)
		if master != nil {
			s.hangUp(p.pid, master, over)
		}
		select {
		case <-over:
		default:
			s.reaper.signal(p.pid, unix.SIGKILL, true)
		}
	})
	code, _ := exitOf(<-p.status)
	close(over)
	_ = c.send(reply{Exit: &code})
	if req.Drain {
		select {
		case <-gone: // until then it counts
		case <-s.ended:
		}
	}
	_ = c.CloseRead()
	reading.Wait()
	return nil
}

// hangUpGrace is how long a command may go on after its terminal is hung up.
const hangUpGrace = time.Second

// hangUp closes the terminal of a command whose client is gone. The kernel sends SIGHUP to the
// command once the client has closed it, too. hangUp waits until the command has ended, for
// hangUpGrace at most.
func (s *shim) hangUp(pid int, master *os.File, over <-chan struct{}) {
	select {
	case <-over:
		return
	default:
	}
	s.reaper.killGroupAfter(pid) // first: SIGHUP may end the command at once
	_ = master.Close()
	grace := time.NewTimer(hangUpGrace)
	defer grace.Stop()
	select {
	case <-over:
	case <-grace.C:
	}
}

// admitExec counts a command until leave is called.
func (s *shim) admitExec(probe bool) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isOver() {
		return nil, runtime.ErrNotRunning
	}
	count, most := &s.execs, maxExecs
	if probe {
		count, most = &s.probes, maxProbes
	}
	if *count >= most {
		return nil, fmt.Errorf("too many commands are being executed in the container already (%d)", most)
	}
	*count++
	return func() {
		s.mu.Lock()
		*count--
		s.mu.Unlock()
	}, nil
}

// startExec starts the command of req; master is its terminal if it has one.
func (s *shim) startExec(c *conn, req *request) (p started, master *os.File, err error) {
	env := s.launch.env
	if req.TTY && getenv(env, "TERM") == "" {
		env = append(slices.Clone(env), "TERM=xterm")
	}
	path, err := s.launch.lookup(req.Argv[0], env)
	if err != nil {
		return started{}, nil, err
	}
	cmd := command{argv: req.Argv, tty: req.TTY}
	var child []int
	defer func() {
		for _, fd := range child {
			_ = unix.Close(fd)
		}
	}()
	if req.TTY {
		var slave int
		if master, slave, err = s.openTerminal(); err != nil {
			return started{}, nil, err
		}
		child = append(child, slave)
		cmd.files = [3]int{slave, slave, slave}
	} else {
		for i, given := range []bool{req.Stdin, req.Stdout, req.Stderr} {
			var fd int
			if given {
				fd, err = c.take()
			} else {
				fd, err = unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
			}
			if err != nil {
				return started{}, nil, err
			}
			child = append(child, fd)
			cmd.files[i] = fd
		}
	}
	s.launch.chownPipes(cmd)
	p, err = s.reaper.start(path, req.Argv, s.launch.attributes(cmd, env))
	if err != nil {
		if master != nil {
			_ = master.Close()
		}
		var errno syscall.Errno
		if errors.As(err, &errno) {
			err = startError(exitCodeOf(err), fmt.Sprintf("exec: %q: %v", req.Argv[0], err))
		}
		return started{}, nil, err
	}
	return p, master, nil
}
