// Blocks: the memory that bytes lie in, from where they are read to where they are
// written, and who may have how much of it.

package qmux

import (
	"sync"
	"sync/atomic"
)

const (
	// record is a QMux record with its Size: it fills one TLS record.
	record = sizeBytes + maxRecord
	// headroom is what the head of a record takes at most: Size, and a STREAM frame
	// without a length.
	headroom = sizeBytes + 1 + 8 + 8

	// What is little is copied into a block that it shares with what comes next: a
	// block held for a keystroke would hold a thousand times as much.
	little = 4 << 10

	// A large block takes what one read from a socket brings, and makes four records.
	smallBlock  = headroom + little
	mediumBlock = record
	largeBlock  = headroom + 4*(record-headroom)

	// defaultKeep is what one session may keep to send again, and defaultBudget all
	// sessions of a process.
	defaultKeep   = 16 << 20
	defaultBudget = 256 << 20
)

// The pools recycle blocks. They are caches and hold nothing that anybody could
// observe.
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

// A block is memory that is recycled once nobody refers to it any more.
type block struct {
	buf  []byte
	refs atomic.Int32
}

// newBlock is a block of one of the three sizes, with one reference.
func newBlock(size int) *block {
	b, ok := poolOf(size).Get().(*block)
	if !ok {
		b = &block{buf: make([]byte, size)}
	}
	b.refs.Store(1)
	return b
}

// free gives up one reference.
func (b *block) free() {
	if b.refs.Add(-1) == 0 {
		poolOf(len(b.buf)).Put(b)
	}
}

// A budget bounds what the sessions that share it have together: the bytes that they
// keep to send again, beyond a small block for each stream, without which it could not
// go on at all; or the connections beside the first of each. Whoever comes first is
// served first: while parked sessions hold it all, the others go on, slowly.
type budget struct {
	limit int64
	used  atomic.Int64
}

// processBudget is shared by all sessions that are not given another.
var processBudget = &budget{limit: defaultBudget}

// take takes n bytes if there are so many, or if it must.
func (b *budget) take(n int, must bool) bool {
	if b.used.Add(int64(n)) > b.limit && !must {
		b.used.Add(-int64(n))
		return false
	}
	return true
}

func (b *budget) give(n int) { b.used.Add(-int64(n)) }
