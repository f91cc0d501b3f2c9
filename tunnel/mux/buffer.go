// Buffer: what has come on a stream and has not been read.

package mux

import "sync"

// A Block is where data is read to: one full frame fits.
type Block [MaxFrame]byte

// blocks recycles the blocks of buffers. It is a cache and holds nothing that
// anybody could observe.
var blocks = sync.Pool{New: func() any { return new(Block) }}

// NewBlock takes one from those that are not in use.
func NewBlock() *Block {
	b, _ := blocks.Get().(*Block)
	return b
}

// Free gives b back. A nil Block is no block.
func (b *Block) Free() {
	if b != nil {
		blocks.Put(b)
	}
}

// A buffer is a queue of bytes. The zero buffer is empty. It holds no block then,
// nor does one that has been read to its end. It has no bound of its own: the
// window is one. Of any two blocks that follow one another more than half is in
// use.
type buffer struct {
	parts []part
	bytes int
}

// A part is what is in use of a block.
type part struct {
	*Block
	start, end int
}

func (b *buffer) empty() bool { return b.bytes == 0 }

// write adds a copy of p.
func (b *buffer) write(p []byte) {
	b.bytes += len(p)
	for len(p) > 0 {
		k := len(b.parts)
		if k == 0 || b.parts[k-1].end == MaxFrame {
			b.parts = append(b.parts, part{Block: NewBlock()})
			k++
		}
		tail := &b.parts[k-1]
		n := copy(tail.Block[tail.end:], p)
		tail.end += n
		p = p[n:]
	}
}

// add adds p, which lies at the start of x, and owns x.
func (b *buffer) add(p []byte, x *Block) {
	if k := len(b.parts); len(p) == 0 || k > 0 && len(p) <= MaxFrame-b.parts[k-1].end {
		b.write(p)
		x.Free()
		return
	}
	b.parts = append(b.parts, part{Block: x, end: len(p)})
	b.bytes += len(p)
}

func (b *buffer) read(p []byte) (n int) {
	done := 0
	for i := range b.parts {
		x := &b.parts[i]
		m := copy(p[n:], x.Block[x.start:x.end])
		n += m
		if x.start += m; x.start < x.end {
			break
		}
		x.Free()
		done++
	}
	b.bytes -= n
	rest := copy(b.parts, b.parts[done:])
	clear(b.parts[rest:])
	b.parts = b.parts[:rest]
	if rest == 0 && cap(b.parts) > 4 {
		b.parts = nil
	}
	return n
}

// drop throws everything away.
func (b *buffer) drop() {
	for _, x := range b.parts {
		x.Free()
	}
	*b = buffer{}
}
