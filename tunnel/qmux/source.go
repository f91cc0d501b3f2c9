// Source: what a stream reads from to send it on, and the block it reads to.

package qmux

import (
	"io"

	"github.com/hawser-project/hawser/tunnel"
)

// A source reads to a block that it holds only while there is something in it, if it
// reads a socket. Of any other reader, and so of a TLS connection, nobody can know
// whether something has come without reading it: then it holds a small block while it
// waits, or a medium one after a read that has found much.
type source struct {
	r      io.Reader
	socket tunnel.SocketReader
	b      *block
	much   bool // the last read found much
	most   int  // how large the block may be
}

// read reads n bytes to b.buf[headroom:].
func (s *source) read() (n int, err error) {
	if !s.socket.Open(s.r) {
		s.hold(min(s.most, mediumBlock))
		n, err = s.r.Read(s.b.buf[headroom:])
		s.much = n >= little/2
		return n, err
	}
	n, err = s.socket.Read(s)
	s.much = n >= little
	return n, err
}

// hold takes a block, as large as most suits a read that finds much.
func (s *source) hold(most int) {
	if !s.much {
		most = smallBlock
	}
	if s.b != nil && len(s.b.buf) != most {
		s.Free()
	}
	if s.b == nil {
		s.b = newBlock(most)
	}
}

// Take implements tunnel.Memory.
func (s *source) Take(int) []byte {
	s.hold(s.most)
	return s.b.buf[headroom:]
}

// Free gives back what is held.
func (s *source) Free() {
	if s.b != nil {
		s.b.free()
		s.b = nil
	}
}
