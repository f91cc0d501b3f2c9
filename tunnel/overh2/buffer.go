// Buffer: what has come on a stream and has not been read.

package overh2

import "sync"

// block is how a buffer grows: one full frame fits.
const block = 16 << 10

// blocks recycles the blocks of buffers. It is a cache and holds nothing that
// anybody could observe.
var blocks = sync.Pool{New: func() any { return new([block]byte) }}

// A buffer is a queue of bytes. The zero buffer is empty and holds no memory,
// nor does one that has been read to its end. It has no bound of its own: the
// window is one.
type buffer struct {
	blocks []*[block]byte
	start  int // of the first byte, in the first block
	end    int // behind the last byte, in the last block
}

func (b *buffer) empty() bool { return len(b.blocks) == 0 }

func (b *buffer) size() int {
	if b.empty() {
		return 0
	}
	return (len(b.blocks)-1)*block - b.start + b.end
}

func (b *buffer) write(p []byte) {
	for len(p) > 0 {
		if len(b.blocks) == 0 || b.end == block {
			b.blocks = append(b.blocks, blocks.Get().(*[block]byte))
			b.end = 0
		}
		n := copy(b.blocks[len(b.blocks)-1][b.end:], p)
		b.end += n
		p = p[n:]
	}
}

func (b *buffer) read(p []byte) (n int) {
	for len(p) > n && len(b.blocks) > 0 {
		end := block
		if len(b.blocks) == 1 {
			end = b.end
		}
		m := copy(p[n:], b.blocks[0][b.start:end])
		n += m
		if b.start += m; b.start == end {
			blocks.Put(b.blocks[0])
			b.blocks[0] = nil
			b.blocks = b.blocks[1:]
			b.start = 0
		}
	}
	if len(b.blocks) == 0 {
		*b = buffer{}
	}
	return n
}

// drop throws everything away.
func (b *buffer) drop() {
	for _, x := range b.blocks {
		blocks.Put(x)
	}
	*b = buffer{}
}
