// Sockets that are read and written without blocking, so that a reader needs no memory while
// it waits.

package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// A SocketReader reads a socket. The zero SocketReader has no socket.
type SocketReader struct {
	conn any // the connection of raw
	raw  syscall.RawConn
	try  func(fd uintptr) (done bool)
	mem  Memory
	n    int // bytes read by try
	err  error
}

// Open says whether c is a TCP or unix stream socket. Then Read reads it.
func (r *SocketReader) Open(c any) bool {
	if r.conn != nil && r.conn == c {
		return true
	}
	raw := socketOf(c)
	if raw != nil {
		r.conn, r.raw = c, raw
	}
	return raw != nil
}

// Read waits until the socket is readable, and reads it into m, which holds nothing before.
// It takes as many system calls as Read of the connection.
func (r *SocketReader) Read(m Memory) (n int, err error) {
	if r.try == nil {
		r.try = r.tryRead // once, since it takes memory
	}
	r.mem, r.n, r.err = m, 0, nil
	if err := r.raw.Read(r.try); err != nil {
		return 0, withOp(err, "read")
	}
	return r.n, r.err
}

// tryRead reads without blocking, and says whether there was data, the end or an error.
func (r *SocketReader) tryRead(fd uintptr) bool {
	p := r.mem.Take(0)
	for {
		n, err := syscall.Read(int(fd), p)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			r.mem.Free()
			return false
		case err != nil:
			r.err = os.NewSyscallError("read", err)
		case n == 0:
			r.err = io.EOF
		default:
			r.n = n
		}
		return true
	}
}

// A SocketWriter writes to a socket. The zero SocketWriter has no socket.
type SocketWriter struct {
	raw syscall.RawConn
	try func(fd uintptr) (done bool)
	p   []byte
	n   int // bytes written by try
	err error
}

// Open is Open of a SocketReader, for Write.
func (w *SocketWriter) Open(c any) bool {
	w.raw, w.try = socketOf(c), w.tryWrite // once, since it takes memory
	return w.raw != nil
}

// Write writes as much as the socket takes without blocking.
func (w *SocketWriter) Write(p []byte) (n int, err error) {
	w.p, w.n, w.err = p, 0, nil
	err = w.raw.Write(w.try)
	if w.p = nil; err != nil {
		return w.n, withOp(err, "write")
	}
	return w.n, w.err
}

func (w *SocketWriter) tryWrite(fd uintptr) bool {
	for w.n < len(w.p) {
		n, err := syscall.Write(int(fd), w.p[w.n:])
		switch {
		case err == nil:
			w.n += n
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return true
		default:
			w.err = os.NewSyscallError("write", err)
			return true
		}
	}
	return true
}

// socketOf is the socket of c; nil if c is no TCP or unix stream socket.
func socketOf(c any) syscall.RawConn {
	var conn syscall.Conn
	switch c := c.(type) {
	case *net.TCPConn:
		conn = c
	case *net.UnixConn:
		if c.LocalAddr().Network() != "unix" {
			return nil
		}
		conn = c
	default:
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil // c is closed, and Read says so
	}
	return raw
}

// withOp is an error of a RawConn with the operation's name in place of "raw-read" or
// "raw-write".
func withOp(err error, op string) error {
	var e *net.OpError
	if !errors.As(err, &e) {
		return err
	}
	r := *e
	r.Op = op
	return &r
}
