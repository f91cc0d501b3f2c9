package process

// The agent's side of exec and attach: it makes pipes and terminals, passes one end to
// the shim, and copies between the other end and the caller's streams.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// Exec runs a command in a container; see runtime.Runtime. s.In is read until its end. A
// Read of s.In may still be under way when Exec returns. The caller must end it by
// closing s.In; Run waits for it.
func (r *Runtime) Exec(ctx context.Context, id string, argv []string, s runtime.Stdio) (int, error) {
	c, err := r.live(ctx, id)
	if err != nil {
		return 0, err
	}
	x := &session{r: r, c: c, s: s}
	code, err := x.exec(ctx, argv)
	if err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", id, err)
	}
	return code, nil
}

// Attach connects to the streams of a container; see runtime.Runtime. For s.In see Exec.
func (r *Runtime) Attach(ctx context.Context, id string, s runtime.Stdio) error {
	c, err := r.live(ctx, id)
	if err != nil {
		return err
	}
	x := &session{r: r, c: c, s: s}
	if err := x.attach(ctx); err != nil {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	return nil
}

// A session is one exec or attach.
type session struct {
	r    *Runtime
	c    *container
	s    runtime.Stdio
	conn *conn

	theirs []int // ends of pipes for the shim
	stdin  *os.File
	outs   []flow
	tty    *os.File // an exec's own terminal

	copying sync.WaitGroup
	failed  chan error // gets the first error of the caller's streams
}

// A flow is output on its way to the caller.
type flow struct {
	from *os.File
	to   io.Writer
}

// open connects to the shim. The connection is closed when ctx is done. The caller calls
// close.
func (x *session) open(ctx context.Context) (stop func() bool, err error) {
	x.failed = make(chan error, 1)
	x.conn, err = dialShim(x.c.spec.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !x.c.isOver():
		return nil, errNoSocket
	case err != nil:
		return nil, runtime.ErrNotRunning
	}
	return context.AfterFunc(ctx, func() { _ = x.conn.SetDeadline(time.Unix(1, 0)) }), nil
}

// close closes the connection, pipes and terminal of the session.
func (x *session) close() {
	x.closeTheirs()
	_ = x.conn.Close()
	x.conn.drop()
	for _, f := range append([]*os.File{x.stdin, x.tty}, x.readers()...) {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (x *session) readers() []*os.File {
	var fs []*os.File
	for _, o := range x.outs {
		fs = append(fs, o.from)
	}
	return fs
}

func (x *session) closeTheirs() {
	for _, fd := range x.theirs {
		_ = unix.Close(fd)
	}
	x.theirs = nil
}

// outPipe makes a pipe for w, if w is not nil.
func (x *session) outPipe(w io.Writer) (bool, error) {
	if w == nil {
		return false, nil
	}
	from, theirs, err := pipe()
	if err != nil {
		return false, err
	}
	x.theirs = append(x.theirs, theirs)
	x.outs = append(x.outs, flow{from, w})
	return true, nil
}

// inPipe makes a pipe for s.In.
func (x *session) inPipe() error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe", err)
	}
	x.theirs = append(x.theirs, p[0])
	return x.takeStdin(p[1])
}

// takeStdin has s.In copied to fd.
func (x *session) takeStdin(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	x.stdin = os.NewFile(uintptr(fd), "stdin")
	return nil
}

// begin sends the request and reads the first answer.
func (x *session) begin(ctx context.Context, req request) (*reply, error) {
	var rep reply
	err := x.conn.send(req, x.theirs...)
	x.closeTheirs()
	if err == nil {
		err = x.conn.recv(&rep)
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		// The shim closed the connection before it read the request: it is ending.
		return nil, runtime.ErrNotRunning
	case rep.Failure != nil:
		return nil, rep.Failure.err()
	}
	return &rep, nil
}

func (x *session) exec(ctx context.Context, argv []string) (int, error) {
	stop, err := x.open(ctx)
	if err != nil {
		return 0, err
	}
	defer stop()
	defer x.close()
	req := request{Op: opExec, Argv: argv, TTY: x.s.TTY, Drain: x.s.Drain && !x.s.TTY, Probe: x.s.Probe}
	if !x.s.TTY {
		if req.Stdin = x.s.In != nil; req.Stdin {
			if err = x.inPipe(); err != nil {
				return 0, err
			}
		}
		if req.Stdout, err = x.outPipe(x.s.Out); err != nil {
			return 0, err
		}
		if req.Stderr, err = x.outPipe(x.s.Err); err != nil {
			return 0, err
		}
	}
	rep, err := x.begin(ctx, req)
	if err != nil {
		return 0, err
	}
	if rep.HasFD {
		if err := x.takeTerminal(); err != nil {
			return 0, err
		}
	}
	return x.runExec(ctx)
}

// takeTerminal takes over the terminal of an exec'd command.
func (x *session) takeTerminal() error {
	fd, err := x.conn.take()
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	x.tty = os.NewFile(uintptr(fd), "terminal")
	out := x.s.Out
	if out == nil {
		out = io.Discard // without a reader the command would block on its terminal
	}
	x.outs = []flow{{x.tty, out}}
	return nil
}

// runExec copies until the command has ended, and with Drain until its output has.
func (x *session) runExec(ctx context.Context) (int, error) {
	exited := make(chan struct{})
	defer x.copying.Wait()
	x.copyIn(x.tty, func() {})
	x.resizes(exited, func(size runtime.Size) { _ = setSize(x.tty, size) })
	x.copyOuts()
	code, err := x.waitExit()
	close(exited)
	// All output of the command is in the pipes by now. Its background processes may hold
	// them open without end. kubectl exec waits for that, as with containerd, until its client
	// goes. A probe or a hook that leaves a daemon behind does not wait.
	wait := time.Duration(0)
	switch {
	case x.tty != nil && ctx.Err() == nil:
		wait = ttyLinger
	case x.s.Drain && err == nil:
		defer context.AfterFunc(ctx, func() { x.endOutput(0) })()
		x.copying.Wait()
	}
	x.endOutput(wait)
	x.endInput()
	x.copying.Wait()
	select {
	case ferr := <-x.failed:
		return 0, ferr
	default:
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return code, err
}

// ttyLinger bounds the wait for the last output of a command on its terminal. The kernel
// passes it on after a delay. Then it reports the end of the terminal, unless a
// background process still has it open.
const ttyLinger = 500 * time.Millisecond

// lastOutput is more than a pipe or terminal can hold. Output beyond it is from
// background processes.
const lastOutput = 4 << 20

// waitExit waits for the exit code.
func (x *session) waitExit() (int, error) {
	var rep reply
	if err := x.conn.recv(&rep); err != nil {
		return 0, errors.New("the container ended, or its shim")
	}
	if rep.Exit == nil {
		return 0, errors.New("shim: unexpected answer")
	}
	return *rep.Exit, nil
}

// fail records the error of a caller's stream and ends the session.
func (x *session) fail(err error) {
	select {
	case x.failed <- err:
	default:
	}
	_ = x.conn.SetDeadline(time.Unix(1, 0))
	x.endOutput(0)
}

// endOutput ends the copying of output that cannot be read after wait.
func (x *session) endOutput(wait time.Duration) {
	for _, f := range x.readers() {
		_ = f.SetReadDeadline(time.Now().Add(wait))
	}
}

// copyIn copies from the caller to the command: to tty if it is not nil, else to its
// input. done is called at the end of s.In.
func (x *session) copyIn(tty *os.File, done func()) {
	to := x.stdin
	if tty != nil {
		to = tty
	}
	if x.s.In == nil || to == nil {
		return
	}
	x.r.spawn(func() {
		// Errors are ignored: the command sees the end of its input, or has closed it.
		if _, err := io.Copy(to, x.s.In); err != nil {
			_, _ = io.Copy(io.Discard, x.s.In) // unread, it would hold up the client's other streams
		}
		done()
		if tty == nil {
			_ = to.Close()
		}
	})
}

// endInput unblocks a write of input that the command does not read.
func (x *session) endInput() {
	for _, f := range []*os.File{x.stdin, x.tty} {
		if f != nil {
			_ = f.SetWriteDeadline(time.Unix(1, 0))
		}
	}
}

// resizes passes on the sizes of the terminal until over is closed.
func (x *session) resizes(over <-chan struct{}, set func(runtime.Size)) {
	if x.s.Resize == nil {
		return
	}
	x.copying.Go(func() {
		for {
			select {
			case size, ok := <-x.s.Resize:
				if !ok {
					return
				}
				set(size)
			case <-over:
				return
			}
		}
	})
}

// copyOuts copies from the command to the caller.
func (x *session) copyOuts() {
	for _, o := range x.outs {
		x.copying.Go(func() {
			buf := make([]byte, 32<<10)
			for left := lastOutput; left > 0; {
				n, err := o.from.Read(buf)
				if errors.Is(err, os.ErrDeadlineExceeded) {
					// The command has ended; its last output is readable already.
					n, err = readNow(o.from, buf)
					left -= n
				}
				if n > 0 {
					if _, werr := o.to.Write(buf[:n]); werr != nil {
						x.fail(fmt.Errorf("write output: %w", werr))
						return
					}
				}
				if err != nil {
					return
				}
			}
		})
	}
}

// readNow reads without waiting, and returns io.EOF if there is nothing to read.
func readNow(f *os.File, b []byte) (n int, err error) {
	if err = f.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var rerr error
	err = rc.Read(func(fd uintptr) bool {
		n, rerr = unix.Read(int(fd), b)
		return true
	})
	_ = f.SetReadDeadline(time.Unix(1, 0)) // the next Read does this again
	if err != nil {
		return 0, err
	}
	if rerr != nil || n <= 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (x *session) attach(ctx context.Context) error {
	stop, err := x.open(ctx)
	if err != nil {
		return err
	}
	defer stop()
	defer x.close()
	req := request{Op: opAttach, Stdin: x.s.In != nil}
	if req.Stdout, err = x.outPipe(x.s.Out); err != nil {
		return err
	}
	if !x.c.spec.Container.TTY {
		if req.Stderr, err = x.outPipe(x.s.Err); err != nil {
			return err
		}
	}
	rep, err := x.begin(ctx, req)
	if err != nil {
		return err
	}
	if rep.HasFD {
		fd, err := x.conn.take()
		if err != nil {
			return err
		}
		if err := x.takeStdin(fd); err != nil {
			return err
		}
	}
	return x.runAttach(ctx)
}

// runAttach copies until the container has ended or the shim ends the attachment.
func (x *session) runAttach(ctx context.Context) error {
	over := make(chan struct{})
	defer x.copying.Wait()
	x.copyIn(nil, func() { _ = x.conn.send(request{Op: opCloseStdin}) })
	x.resizes(over, func(size runtime.Size) { _ = x.conn.send(request{Op: opResize, Size: &size}) })
	x.copyOuts()
	var rep reply
	err := x.conn.recv(&rep)
	close(over)
	if err != nil {
		// The attachment was interrupted; the pipes get no more output.
		x.endOutput(0)
	}
	x.endInput()
	x.copying.Wait()
	select {
	case ferr := <-x.failed:
		return ferr
	default:
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && !x.c.isOver():
		return errors.New("the shim hung up")
	case rep.Failure != nil:
		return rep.Failure.err()
	}
	return nil
}
