// Package descriptors keeps the last file descriptors of the process for the process itself, and
// tells when those for clients come to an end, so that a server can say no while it still can.
//
// The mental model: the system hands out the lowest number that is free, so the number of a
// connection just accepted says how many descriptors there are at least, at no cost. Clients take
// descriptors from below. The last ones, one in 32, are for what the server opens itself: without
// them the store cannot open a directory, upon which it ends the process. The same number below
// these is for connections that need no tunnel.
//
// What this package is not: it counts nothing.
package descriptors

import (
	"log/slog"
	"net"
	"os"
	"syscall"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

// own is the part of the limit, one in so many, that no connection takes, and fewest is the least
// that it may be.
const (
	own    = 32
	fewest = 8
)

// Scarce says whether c, which has just been accepted, has one of the last descriptors that
// connections may have, which are not for tunnels. It is false where nobody can tell.
func Scarce(c net.Conn) bool { return within(c, 2) }

// AtMost is n, or a quarter of the process's descriptors if that is less, and at least 1: a bound
// for the connections of clients that are not authenticated.
func AtMost(n int) int {
	if limit := limit(); limit > 0 {
		n = int(min(uint64(n), limit/4)) //nolint:gosec // at most n
	}
	return max(n, 1)
}

// StillScarce says whether a connection accepted now would be Scarce. It opens a file, so it is
// for a connection that was.
func StillScarce() bool {
	fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer func() { _ = syscall.Close(fd) }()
	return last(uint64(fd), 2)
}

// within says whether c has one of the last descriptors: so many times as many as are the
// process's own.
func within(c net.Conn, times uint64) bool {
	n, ok := number(c)
	return ok && last(n, times)
}

// last says whether descriptor n is one of those.
func last(n, times uint64) bool {
	limit := limit()
	return limit > 0 && n+times*max(limit/own, fewest) >= limit
}

// Sparing makes a listener of l, which it owns. It is strangers.Steady, and closes each connection
// that has one of the process's own descriptors. One of these a minute is logged.
func Sparing(l net.Listener, log *slog.Logger) net.Listener {
	return &sparing{Listener: strangers.Steady(l, log), log: log}
}

type sparing struct {
	net.Listener
	log    *slog.Logger
	sparse strangers.LogLimiter
}

// Accept implements net.Listener.
func (l *sparing) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || !within(c, 1) {
			return c, err
		}
		if others, now := l.sparse.Allow(l.Addr()); now {
			l.log.Warn("turned a connection away: the last file descriptors are for the server itself", "addr", l.Addr().String(), "others", others)
		}
		_ = c.Close()
	}
}

// limit is how many descriptors the process may have; zero if that is unknown.
func limit() uint64 {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0
	}
	return r.Cur
}

// number is that of the descriptor below c.
func number(c net.Conn) (uint64, bool) {
	for {
		above, ok := c.(interface{ NetConn() net.Conn }) // such as a *tls.Conn
		if !ok {
			break
		}
		c = above.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, false
	}
	var n uint64
	err = raw.Control(func(fd uintptr) { n = uint64(fd) })
	return n, err == nil
}
