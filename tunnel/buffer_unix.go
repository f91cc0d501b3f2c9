// Sockets, whose readers need hold nothing while they wait.

//go:build unix

package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// A socket is a connection that is read by its descriptor. The zero socket is none.
type socket struct {
	conn syscall.Conn
	raw  syscall.RawConn
	try  func(fd uintptr) (done bool)
	n    int // what try has found
	err  error
}

// is makes s a socket of c and says whether c has one that carries a stream of bytes.
func (s *socket) is(c io.Reader) bool {
	var conn syscall.Conn
	switch c := c.(type) {
	case *net.TCPConn:
		conn = c
	case *net.UnixConn:
		if c.LocalAddr().Network() != "unix" {
			return false
		}
		conn = c
	default:
		return false
	}
	if s.conn == conn {
		return true
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false // whoever reads it hears why
	}
	s.conn, s.raw, s.try = conn, raw, nil
	return true
}

// readSocket is Read of the connection that b.socket is of. It costs no system call
// more than that does.
func (b *Buffer) readSocket() (int, error) {
	s := &b.socket
	if s.try == nil {
		s.try = b.trySocket // once, since it takes memory
	}
	s.n, s.err = 0, nil
	if err := s.raw.Read(s.try); err != nil {
		return 0, renamed(err)
	}
	return s.n, s.err
}

// trySocket reads what is there, and says whether there was something.
func (b *Buffer) trySocket(fd uintptr) bool {
	s := &b.socket
	for {
		n, err := syscall.Read(int(fd), b.Take(0))
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			b.Free()
			return false
		case err != nil:
			s.err = os.NewSyscallError("read", err)
		case n == 0:
			s.err = io.EOF
		default:
			s.n = n
		}
		return true
	}
}

// renamed is err of a RawConn as that of the connection.
func renamed(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) {
		return err
	}
	read := *op
	read.Op = "read"
	return &read
}
