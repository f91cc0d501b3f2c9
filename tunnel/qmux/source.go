// Source: the reader that a stream's data comes from, and the block that it is read to.

package qmux

import (
	"io"

	"github.com/hawser-project/hawser/tunnel"
)

// A source reads into a block. If it reads a socket it holds the block only while there is
// data in it. Any other reader, such as a TLS connection, has to be read to learn whether
// there is data: meanwhile the source holds a small block, or a medium one after a large
// read.
type source struct {
	r         io.Reader
	socket    tunnel.SocketReader
	b         *block
	lastLarge bool // the last read was large
	maxBlock  int  // largest size of the block
}

// read reads n bytes into b.buf[headroom:].
func (s *source) read() (n int, err error) {
	if !s.socket.Open(s.r) {
		s.hold(min(s.maxBlock, mediumBlock))
		n, err = s.r.Read(s.b.buf[headroom:])
		s.lastLarge = n >= smallWrite/2
		return n, err
	}
	n, err = s.socket.Read(s)
	s.lastLarge = n >= smallWrite
	return n, err
}

// hold gets a block: of size most after a large read, else a small one.
func (s *source) hold(most int) {
	if !s.lastLarge {
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
	s.hold(s.maxBlock)
	return s.b.buf[headroom:]
}

// Free releases the block.
func (s *source) Free() {
	if s.b != nil {
		s.b.free()
		s.b = nil
	}
}
