// Source: what a stream reads from to send it on, and the block it reads to.

package qmux

import (
	"io"
	"syscall"
)

// A source reads to a block that it holds only while there is something in it, if it
// reads a socket. Of any other reader, and so of a TLS connection, nobody can know
// whether something has come without reading it: then it holds a small block while it
// waits, or a medium one after a read that has found much.
type source struct {
	r    io.Reader
	raw  syscall.RawConn // of r, if that is a socket
	try  func(fd uintptr) bool
	b    *block
	much bool // the last read found much
	most int  // how large the block may be
	n    int  // what try has found
	err  error
}

func newSource(r io.Reader) source { return source{r: r, raw: socketOf(r)} }

// read reads n bytes to b.buf[headroom:].
func (s *source) read() (n int, err error) {
	if s.raw == nil {
		s.hold(min(s.most, mediumBlock))
		n, err = s.r.Read(s.b.buf[headroom:])
		s.much = n >= little/2
		return n, err
	}
	if s.try == nil {
		s.try = s.trySocket // once, since it takes memory
	}
	s.n, s.err = 0, nil
	if err := s.raw.Read(s.try); err != nil {
		return 0, renamed(err, "read")
	}
	s.much = s.n >= little
	return s.n, s.err
}

// hold takes a block, as large as most suits a read that finds much.
func (s *source) hold(most int) {
	if !s.much {
		most = smallBlock
	}
	if s.b != nil && len(s.b.buf) != most {
		s.free()
	}
	if s.b == nil {
		s.b = newBlock(most)
	}
}

// trySocket reads what is there, and says whether there was something.
func (s *source) trySocket(fd uintptr) bool {
	s.hold(s.most)
	n, again, err := tryRead(fd, s.b.buf[headroom:])
	if again {
		s.free()
		return false
	}
	s.n, s.err = n, err
	return true
}

// free gives back what is held.
func (s *source) free() {
	if s.b != nil {
		s.b.free()
		s.b = nil
	}
}
