// Package descriptors tells when the process is about to run out of file
// descriptors, so that a server can say no while it still can.
//
// The mental model: the system hands out the lowest number that is free, so the
// number of a connection just accepted says how many descriptors there are at
// least, at no cost.
//
// What this package is not: it counts and limits nothing.
package descriptors

import (
	"net"
	"syscall"
)

// Reserve is the part of the limit, one in so many, that is kept for what is
// going on already.
const Reserve = 16

// Scarce says whether c, which has just been accepted, has one of the last
// descriptors that the process may have. It is false where nobody can tell.
func Scarce(c net.Conn) bool {
	n, ok := number(c)
	limit := limit()
	return ok && limit > 0 && n >= limit-max(limit/Reserve, 1)
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
