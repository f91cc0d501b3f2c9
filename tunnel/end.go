// End: one of the two connections of a Splice, and how its peer has ended it.

package tunnel

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// resetTime is how long what was read of a TCP connection has to arrive once its peer has reset it: a
// peer that answers and closes with unread data, as when it refuses a request that is too large, resets
// its connection after the answer (RFC 9112, section 9.6).
const resetTime = time.Second

// tcpClose is the state of a TCP connection that is closed, TCP_CLOSE of Linux's net/tcp_states.h.
const tcpClose = 7

// An end is one of the two connections of a Splice.
type end struct {
	net.Conn
	socket *net.TCPConn // if Conn is or wraps one, unchanged
	ended  atomic.Bool  // our direction was ended, or is about to be

	over chan struct{} // closed once nothing more is written to it
	cut  bool          // a write to it has failed, not after the peer's FIN; set before over is closed
}

func newEnd(c net.Conn) *end {
	var i innermost
	i.open(c, Wrapper.InnerReader)
	tcp, _ := i.conn.(*net.TCPConn)
	return &end{Conn: c, socket: tcp, over: make(chan struct{})}
}

// closeWrite ends our direction. If this fails the connection is broken, and its other direction
// will say so.
func (e *end) closeWrite() {
	e.ended.Store(true)
	_ = CloseWrite(e.Conn)
}

// wrote records that nothing more is written, because of err.
func (e *end) wrote(err error) {
	e.cut = err != nil && !errors.Is(err, syscall.EPIPE)
	close(e.over)
}

// wasReset reports whether the end that was read is that of a reset, whose error a write may have
// returned instead: the system tells of it once. Before our direction has ended a connection is closed
// only by a reset. One that came after the peer's FIN is EPIPE: then all was read.
func (e *end) wasReset() bool {
	if e.socket == nil {
		return false
	}
	raw, err := e.socket.SyscallConn()
	if err != nil {
		return false
	}
	closed, pending := false, 0
	err = raw.Control(func(fd uintptr) {
		if closed = isClosed(int(fd)) && !e.ended.Load(); closed {
			pending, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		}
	})
	switch {
	case err != nil || !closed:
		return false
	case pending != 0:
		return pending != int(syscall.EPIPE)
	}
	select { // a write has taken the error
	case <-e.over:
		return e.cut
	case <-time.After(resetTime):
		return true
	}
}

// isClosed reports whether the system has closed a TCP connection.
func isClosed(fd int) bool {
	info, err := syscall.GetsockoptInet4Addr(fd, syscall.IPPROTO_TCP, syscall.TCP_INFO)
	return err == nil && info[0] == tcpClose // the state comes first in struct tcp_info (tcp(7))
}
