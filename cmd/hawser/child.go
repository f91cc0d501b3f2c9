// Child processes of hawser up: each with a log, a pid file and an end that
// somebody waits for.

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a child may take to end before it is killed.
const stopGrace = 15 * time.Second

// A child is a process that was started. Its output goes to LOG, its id to PID.
type child struct {
	name string // for people
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended
	err  error         // how; read after done
}

// start runs cmd with its output appended to dir/base.log and its id in
// dir/base.pid. The child is a process group of its own, so that a terminal's
// Ctrl-C reaches only us, and it is told to end should we die.
func (p *spawner) start(name string, cmd *exec.Cmd, dir, base string) (*child, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	logFile := filepath.Join(dir, base+".log")
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c := &child{name: name, log: logFile, cmd: cmd, done: make(chan struct{})}
	p.children.Go(func() {
		c.err = cmd.Wait()
		close(c.done)
	})
	pid := strconv.Itoa(cmd.Process.Pid) + "\n"
	if err := os.WriteFile(filepath.Join(dir, base+".pid"), []byte(pid), 0o644); err != nil {
		return c, errors.Join(err, c.stop())
	}
	return c, nil
}

// stop asks the child to end, kills it when it does not, and returns once it has
// ended. One that had ended already is fine, however it did.
func (c *child) stop() error {
	select {
	case <-c.done:
		return nil
	default:
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", c.name, err)
	}
	select {
	case <-c.done:
		if c.err != nil && !diedOf(c.err, syscall.SIGTERM) { // it may not have come as far as to mind the signal
			return fmt.Errorf("%s ended badly (%w): %s", c.name, c.err, c.lastLine())
		}
		return nil
	case <-time.After(stopGrace):
	}
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", c.name, err)
	}
	<-c.done
	return fmt.Errorf("%s did not end within %s and was killed: see %s", c.name, stopGrace, c.log)
}

// diedOf says whether err is that of a process which a signal has ended.
func diedOf(err error, s syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == s
}

// lastLine returns the last line that the child wrote, which says why it ended.
func (c *child) lastLine() string {
	f, err := os.Open(c.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	const tail = 4 << 10
	if fi, err := f.Stat(); err == nil && fi.Size() > tail {
		if _, err := f.Seek(-tail, io.SeekEnd); err != nil {
			return ""
		}
	}
	b, _ := io.ReadAll(io.LimitReader(f, tail))
	lines := strings.Split(string(bytes.TrimSpace(b)), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "hawser: ") // whoever says it again puts that in front
}

// A spawner starts children from one thread that lives as long as the spawner:
// the kernel signals a child whose parent thread, not process, has died.
type spawner struct {
	calls    chan func()
	children sync.WaitGroup
}

// newSpawner returns a spawner and the function that ends it after all its
// children have ended.
func newSpawner() (*spawner, func()) {
	p := &spawner{calls: make(chan func())}
	var thread sync.WaitGroup
	thread.Go(func() {
		runtime.LockOSThread()
		for f := range p.calls {
			f()
		}
	})
	return p, func() {
		p.children.Wait()
		close(p.calls)
		thread.Wait()
	}
}

func (p *spawner) do(f func() error) error {
	result := make(chan error, 1)
	p.calls <- func() { result <- f() }
	return <-result
}

// sibling finds the program name beside this one, or on the PATH.
func sibling(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if beside := filepath.Join(filepath.Dir(self), name); isExecutable(beside) {
		return beside, nil
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside %s nor on the PATH: install both programs", name, self)
	}
	return found, nil
}

func isExecutable(file string) bool {
	fi, err := os.Stat(file)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

// sleep waits for d or for ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
