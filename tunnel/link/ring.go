// Ring and Budget: bytes kept by their offsets, and who may keep how many.

package link

import (
	"sync"
	"sync/atomic"
)

const (
	// smallChunk serves a link that has little to say, and one that gets no more:
	// a parked one with a single heartbeat in it holds no more than this.
	smallChunk = 4 << 10
	// chunkSize and a frame's header fill four TLS records to the brim (RFC
	// 8446, 5.1).
	chunkSize = 4*record - frameHeader
	record    = 16 << 10
)

// A Budget bounds what all the links that share it keep for replay, beyond 4 KiB
// each, without which a link could not go on at all. Whoever comes first is
// served first: while parked links hold it all, the others go on, slowly. Nil is
// without bound.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget makes a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Used is how many bytes are taken.
func (b *Budget) Used() int64 { return b.used.Load() }

func (b *Budget) take(n int) bool {
	if b == nil {
		return true
	}
	if b.used.Add(int64(n)) > b.limit {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

func (b *Budget) give(n int) {
	if b != nil {
		b.used.Add(-int64(n))
	}
}

// The pools recycle chunks, so that an idle link holds none. They are caches and
// hold nothing that anybody could observe.
var (
	smallPool = sync.Pool{New: func() any { return &chunk{buf: make([]byte, smallChunk)} }}
	chunkPool = sync.Pool{New: func() any { return &chunk{buf: make([]byte, chunkSize)} }}
)

// A chunk holds bytes from some offset on.
type chunk struct {
	buf   []byte
	start uint64 // offset of buf[0]
	n     int    // bytes in use
	paid  bool   // counted by the budget
	lent  bool   // being sent: not to be recycled before that is over
	loose bool   // forgotten while lent
}

func (c *chunk) end() uint64 { return c.start + uint64(c.n) }

// A ring holds the bytes from base to end. Its owner guards it.
type ring struct {
	limit  int // of allocated bytes
	budget *Budget

	chunks    []*chunk
	base, end uint64
	held      int // allocated bytes
}

// append takes as much of p as there is room for.
func (r *ring) append(p []byte) int {
	total := 0
	for len(p) > 0 {
		c := r.tail(len(p))
		if c == nil {
			break
		}
		n := copy(c.buf[c.n:], p)
		c.n += n
		r.end += uint64(n)
		p, total = p[n:], total+n
	}
	return total
}

// tail is a chunk with room, for want bytes if that can be; nil if the ring is
// full.
func (r *ring) tail(want int) *chunk {
	if k := len(r.chunks); k > 0 {
		if c := r.chunks[k-1]; c.n < len(c.buf) {
			return c
		}
	}
	var c *chunk
	first := len(r.chunks) == 0
	switch {
	case first && want <= smallChunk:
		c, _ = smallPool.Get().(*chunk)
		c.paid = false
	case r.held+chunkSize <= r.limit && r.budget.take(chunkSize):
		c, _ = chunkPool.Get().(*chunk)
		c.paid = true
	case first:
		c, _ = smallPool.Get().(*chunk)
		c.paid = false
	default:
		return nil
	}
	c.start, c.n = r.end, 0
	r.chunks = append(r.chunks, c)
	r.held += len(c.buf)
	return c
}

// at is the chunk with the byte at offset; nil if the ring does not hold it.
func (r *ring) at(offset uint64) *chunk {
	for _, c := range r.chunks {
		if offset < c.end() {
			return c
		}
	}
	return nil
}

// free forgets everything before offset, which is between base and end.
func (r *ring) free(offset uint64) {
	r.base = max(r.base, offset)
	k := 0
	for k < len(r.chunks) && r.chunks[k].end() <= offset {
		// The last chunk is given back as well once it is empty: an idle link
		// holds no memory.
		r.release(r.chunks[k])
		k++
	}
	if k > 0 {
		rest := copy(r.chunks, r.chunks[k:])
		clear(r.chunks[rest:])
		r.chunks = r.chunks[:rest]
	}
}

// drop forgets everything.
func (r *ring) drop() {
	for _, c := range r.chunks {
		r.release(c)
	}
	r.chunks, r.base = nil, r.end
}

func (r *ring) release(c *chunk) {
	r.held -= len(c.buf)
	if c.paid {
		r.budget.give(len(c.buf))
	}
	c.loose = c.lent
	if !c.lent {
		c.recycle()
	}
}

// unlend ends a loan.
func (c *chunk) unlend() {
	c.lent = false
	if c.loose {
		c.loose = false
		c.recycle()
	}
}

func (c *chunk) recycle() {
	if len(c.buf) == smallChunk {
		smallPool.Put(c)
	} else {
		chunkPool.Put(c)
	}
}
