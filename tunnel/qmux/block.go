// Blocks: pooled memory for stream data, from the read of one socket to the write of the
// other, and the budget that bounds it.

package qmux

import (
	"sync"
	"sync/atomic"
)

const (
	// record is the size of a QMux record with its Size field: it fills one TLS record.
	record = sizeBytes + maxRecord
	// headroom is the largest head of a record: its Size, and the head of a STREAM frame
	// without a length.
	headroom = sizeBytes + 1 + 8 + 8

	// A write of at most smallWrite bytes is copied into a block that it shares with
	// later writes: a block of its own would be mostly empty.
	smallWrite = 4 << 10

	// A largeBlock holds what one read of a socket returns, and makes four records.
	smallBlock  = headroom + smallWrite
	mediumBlock = record
	largeBlock  = headroom + 4*(record-headroom)

	// defaultMaxRetained is how many bytes one session may retain for retransmission,
	// defaultBudget how many all sessions of a process.
	defaultMaxRetained = 16 << 20
	defaultBudget      = 256 << 20
)

// The pools recycle blocks. They are caches without observable state.
var smallBlocks, mediumBlocks, largeBlocks sync.Pool

func poolOf(size int) *sync.Pool {
	switch size {
	case smallBlock:
		return &smallBlocks
	case mediumBlock:
		return &mediumBlocks
	}
	return &largeBlocks
}

// A block is memory that returns to its pool with its last reference.
type block struct {
	buf  []byte
	refs atomic.Int32
}

// newBlock gets a block of one of the three sizes, with one reference.
func newBlock(size int) *block {
	b, ok := poolOf(size).Get().(*block)
	if !ok {
		b = &block{buf: make([]byte, size)}
	}
	b.refs.Store(1)
	return b
}

// free drops one reference.
func (b *block) free() {
	if b.refs.Add(-1) == 0 {
		poolOf(len(b.buf)).Put(b)
	}
}

// A budget is a limit that sessions share: on the bytes that they retain for
// retransmission, or on their connections beside the first. It serves in order of
// arrival. Each stream may retain one block beyond it, so that while parked sessions hold
// all of it the others still make progress; a small one if it is copied, a large one if a
// source has read it.
type budget struct {
	limit int64
	used  atomic.Int64
}

// processBudget is the budget of sessions that are given no other.
var processBudget = &budget{limit: defaultBudget}

// take takes n if so much is left, or in any case if must is set.
func (b *budget) take(n int, must bool) bool {
	if b.used.Add(int64(n)) > b.limit && !must {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

func (b *budget) give(n int) { b.used.Add(-int64(n)) }
