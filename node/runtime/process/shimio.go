package process

// Input and output of a container: pipes or a terminal, the log, and attached clients.

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/crilog"
)

// stdio is both ends of a command's standard streams.
type stdio struct {
	command command
	child   []int // to be closed once the command has them
	stdin   *os.File
	tty     *os.File
	outputs map[string]*os.File
}

func (io *stdio) closeChild() {
	for _, fd := range io.child {
		_ = unix.Close(fd)
	}
}

// stdio makes the streams of the container's command.
func (s *shim) stdio() (*stdio, error) {
	c := s.spec.Container
	io := &stdio{command: command{argv: c.Argv, tty: c.TTY}, outputs: map[string]*os.File{}}
	if c.TTY {
		master, slave, err := s.openTerminal()
		if err != nil {
			return nil, err
		}
		io.tty, io.child = master, []int{slave}
		io.command.files = [3]int{slave, slave, slave}
		io.outputs[crilog.Stdout] = master
		return io, nil
	}
	in, err := s.stdinFor(io)
	if err != nil {
		return nil, err
	}
	io.child = append(io.child, in)
	io.command.files[0] = in
	for i, stream := range []string{crilog.Stdout, crilog.Stderr} {
		r, w, err := pipe()
		if err != nil {
			io.closeChild()
			return nil, err
		}
		io.outputs[stream] = r
		io.command.files[i+1] = w
		io.child = append(io.child, w)
	}
	return io, nil
}

// stdinFor returns the command's standard input.
func (s *shim) stdinFor(io *stdio) (int, error) {
	if !s.spec.Container.Stdin {
		return unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, os.NewSyscallError("pipe", err)
	}
	io.stdin = os.NewFile(uintptr(p[1]), "stdin")
	return p[0], nil
}

// pipe makes a pipe. Its reading end is for this process and takes deadlines; its writing
// end is for another process.
func pipe() (r *os.File, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, os.NewSyscallError("pipe", err)
	}
	if err := unix.SetNonblock(p[0], true); err != nil {
		return nil, -1, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(p[0]), "pipe"), p[1], nil
}

// openTerminal makes a pseudo-terminal, in the container's own /dev/pts if it has one.
func (s *shim) openTerminal() (master *os.File, slave int, err error) {
	if !s.reaper.call(func() { master, slave, err = s.openTerminalHere() }) {
		return nil, -1, runtime.ErrNotRunning
	}
	return master, slave, err
}

// openTerminalHere does that with the calling thread's view of files, so that the
// terminal's name is valid in the container.
func (s *shim) openTerminalHere() (master *os.File, slave int, err error) {
	ptmx := "/dev/ptmx"
	if s.launch.root != "" {
		ptmx = "/dev/pts/ptmx"
	}
	fd, err := unix.Open(ptmx, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("open terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		_ = master.Close()
		return nil, -1, fmt.Errorf("unlock terminal: %w", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		_ = master.Close()
		return nil, -1, fmt.Errorf("open terminal: %w", errno)
	}
	// Programs open their terminal again by name.
	if err := unix.Fchown(int(peer), int(s.launch.cred.Uid), -1); err != nil && s.launch.root != "" {
		_ = unix.Close(int(peer))
		_ = master.Close()
		return nil, -1, fmt.Errorf("give terminal away: %w", err)
	}
	return master, int(peer), nil
}

// dup returns another descriptor of f's file. (File.Fd would make it a blocking
// one.)
func dup(f *os.File) (int, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, ferr := -1, error(nil)
	err = rc.Control(func(old uintptr) { fd, ferr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, ferr)
}

func setSize(tty *os.File, size runtime.Size) error {
	rc, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	var ierr error
	err = rc.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
	})
	return errors.Join(err, ierr)
}

// copyOutput reads one output stream of the command until no process has it open any
// more.
func (s *shim) copyOutput(f *os.File, stream string) {
	log := s.log.Stream(stream)
	defer log.Flush()
	buf := make([]byte, 32<<10)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			_, _ = log.Write(buf[:n])
			s.mu.Lock()
			toAttached(s.attached, stream, buf[:n])
			s.mu.Unlock()
		}
		if err != nil {
			return // the end; from a terminal it comes as an I/O error
		}
	}
}

// joinOutputs waits until all output has been copied. All processes of the container
// have ended by now. If one passed its output to a process outside, that is not waited
// for.
func (s *shim) joinOutputs() {
	for _, f := range s.outFiles {
		_ = f.SetReadDeadline(time.Now().Add(2 * time.Second))
	}
	s.outputs.Wait()
}
