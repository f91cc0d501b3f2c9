package process

// The protocol between agent and shim.
//
// Each connection to a shim carries one request, its replies, and, while the
// request is being served, further requests that belong to it. A message is four
// bytes of length, most significant first, and that many bytes of JSON. File
// descriptors travel beside the first byte of the message that announces them.
//
//	watch                     → record (now), record (when it has ended)
//	stop    grace             → record (when it has ended)
//	exec    argv, tty, fds    → started [terminal fd], exit
//	attach  fds               → started [stdin fd], ended;   also resize, close-stdin
//	resize  size              → ok
//	stats                     → usage
//
// The agent makes the pipes for exec and attach, so that the shim does not copy their
// bytes. Closing the connection kills an exec'd command and ends an attachment. A command
// with a terminal has time to handle SIGHUP before that.

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

const (
	// maxFrame bounds a message. The kernel bounds arguments and environment by a few
	// MiB.
	maxFrame = 8 << 20
	// maxFDs is the most descriptors in one message.
	maxFDs = 3
)

// The requests.
const (
	opRun        = "run"
	opWatch      = "watch"
	opStop       = "stop"
	opExec       = "exec"
	opAttach     = "attach"
	opResize     = "resize"
	opCloseStdin = "close-stdin"
	opStats      = "stats"
)

type request struct {
	Op      string        `json:"op"`
	Spec    *spec         `json:"spec,omitempty"`    // run
	GraceMS int64         `json:"graceMs,omitempty"` // stop
	Argv    []string      `json:"argv,omitempty"`    // exec
	TTY     bool          `json:"tty,omitempty"`     // exec
	Drain   bool          `json:"drain,omitempty"`   // exec: the client reads on after the command's end
	Probe   bool          `json:"probe,omitempty"`   // exec: it is a probe or a hook
	Stdin   bool          `json:"stdin,omitempty"`   // exec: an fd is sent; attach: one is requested
	Stdout  bool          `json:"stdout,omitempty"`  // an fd comes
	Stderr  bool          `json:"stderr,omitempty"`  // an fd comes
	Size    *runtime.Size `json:"size,omitempty"`    // resize
}

type reply struct {
	Failure *failure       `json:"failure,omitempty"`
	Record  *record        `json:"record,omitempty"`
	Exit    *int           `json:"exit,omitempty"`
	Usage   *runtime.Usage `json:"usage,omitempty"`
	HasFD   bool           `json:"hasFd,omitempty"`
}

// A failure is an error on the wire.
type failure struct {
	Kind     string `json:"kind"`
	ExitCode int    `json:"exitCode,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message"`
}

const (
	failStart      = "start"
	failNotRunning = "not-running"
	failOther      = "other"
)

func failureOf(err error) *failure {
	var se *runtime.StartError
	switch {
	case errors.As(err, &se):
		return &failure{Kind: failStart, ExitCode: se.ExitCode, Reason: se.Reason, Message: err.Error()}
	case errors.Is(err, runtime.ErrNotRunning):
		return &failure{Kind: failNotRunning, Message: err.Error()}
	default:
		return &failure{Kind: failOther, Message: err.Error()}
	}
}

func (f *failure) err() error {
	switch f.Kind {
	case failStart:
		return &runtime.StartError{ExitCode: f.ExitCode, Reason: f.Reason, Message: f.Message}
	case failNotRunning:
		return runtime.ErrNotRunning
	default:
		return errors.New(f.Message)
	}
}

// readFrame decodes one message from r into v.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("message of %d bytes is too long", n)
	}
	// Memory is allocated as bytes arrive, not by the length in the message.
	b, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return err
	}
	if uint32(len(b)) < n {
		return io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("malformed message: %w", err)
	}
	return nil
}

// frame encodes v.
func frame(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) > maxFrame {
		return nil, fmt.Errorf("message of %d bytes is too long", len(b))
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...), nil
}

// A conn is one end of a connection between agent and shim. One goroutine may
// read and several may write.
type conn struct {
	*net.UnixConn
	fds []int // received and not taken yet

	wmu sync.Mutex // held while a message is written
}

// Read reads bytes and gathers the descriptors that come with them.
func (c *conn) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	if oobn > 0 {
		c.gather(oob[:oobn])
	}
	if n == 0 && err == nil && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}

func (c *conn) gather(oob []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if len(c.fds) == maxFDs {
				_ = unix.Close(fd)
				continue
			}
			c.fds = append(c.fds, fd)
		}
	}
}

// take returns the oldest received descriptor; the caller owns it.
func (c *conn) take() (int, error) {
	if len(c.fds) == 0 {
		return -1, errors.New("message without its file descriptor")
	}
	fd := c.fds[0]
	c.fds = c.fds[1:]
	return fd, nil
}

// hangUp closes the connection.
func (c *conn) hangUp() { _ = c.Close() }

// drop closes the descriptors that were not taken. Only the reading goroutine calls it.
func (c *conn) drop() {
	for _, fd := range c.fds {
		_ = unix.Close(fd)
	}
	c.fds = nil
}

func (c *conn) recv(v any) error { return readFrame(c, v) }

// send writes one message. The descriptors stay the caller's.
func (c *conn) send(v any, fds ...int) error {
	b, err := frame(v)
	if err != nil {
		return err
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	for err == nil && n < len(b) {
		var m int
		m, err = c.Write(b[n:])
		n += m
	}
	return err
}

// connFromFD makes a conn of a connected unix socket. The conn owns the socket.
func connFromFD(fd int) (*conn, error) {
	f := os.NewFile(uintptr(fd), "shim")
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		_ = nc.Close()
		return nil, errors.New("not a unix socket")
	}
	return &conn{UnixConn: uc}, nil
}

// dialShim connects to the socket in a container's directory. The path of a unix
// socket is limited to 108 bytes, so it uses the short path of an open directory in
// /proc/self/fd.
func dialShim(dir string) (*conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	dialer := net.Dialer{Timeout: replyTimeout}
	nc, err := dialer.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), sockName))
	if err != nil {
		return nil, err
	}
	return &conn{UnixConn: nc.(*net.UnixConn)}, nil
}

// listenShim makes the socket in a container's directory.
func listenShim(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "shim socket")
	// The directory has mode 0700. The mode of the socket is still set before it can be
	// connected to.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("fchmod", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), sockName)}); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 128); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("listen", err)
	}
	return f, nil
}

// replyTimeout bounds a shim's answer to a request that does not wait for the container.
const replyTimeout = 10 * time.Second
