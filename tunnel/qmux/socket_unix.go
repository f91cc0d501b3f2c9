// Sockets, tried without waiting.

//go:build unix

package qmux

import (
	"io"
	"net"
	"os"
	"syscall"
)

// socketOf is the descriptor of a connection that carries a stream of bytes by a
// socket of its own; nil if c is none.
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
		return nil // whoever uses it hears why
	}
	return raw
}

// tryWrite writes what the socket takes at once.
func tryWrite(fd uintptr, p []byte) (n int, err error) {
	for n < len(p) {
		m, err := syscall.Write(int(fd), p[n:])
		switch err {
		case nil:
			n += m
		case syscall.EINTR:
		case syscall.EAGAIN:
			return n, nil
		default:
			return n, os.NewSyscallError("write", err)
		}
	}
	return n, nil
}

// tryRead reads what is there; again says that nothing is yet.
func tryRead(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err := syscall.Read(int(fd), p)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return 0, true, nil
		case err != nil:
			return 0, false, os.NewSyscallError("read", err)
		case n == 0:
			return 0, false, io.EOF
		default:
			return n, false, nil
		}
	}
}
