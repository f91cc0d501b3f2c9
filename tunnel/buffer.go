// Buffer: what a Splice reads to, held only while there is something in it.

package tunnel

import (
	"net"
	"sync"
	"sync/atomic"
)

const (
	// bulkBuffer is what a Buffer holds while there is much to move. Larger buffers
	// mean fewer and larger frames on the tunnel; 64 KiB is four TLS records.
	bulkBuffer = 64 << 10
	// recordBuffer is the same for connections that take a buffer before they wait:
	// a TLS connection never reads more than one record at a time.
	recordBuffer = 16 << 10
	// littleBuffer is what a Buffer holds while there is little to move.
	littleBuffer = 4 << 10
)

// The pools recycle the memory of Buffers. They are caches and hold nothing that
// anybody could observe.
var (
	bulkBuffers   = sync.Pool{New: func() any { return new([bulkBuffer]byte) }}
	recordBuffers = sync.Pool{New: func() any { return new([recordBuffer]byte) }}
	littleBuffers = sync.Pool{New: func() any { return new([littleBuffer]byte) }}
)

// buffered is how many bytes of memory all Buffers of the process hold.
var buffered atomic.Int64

// Buffered is how many bytes of memory all Splices of the process hold to read to.
func Buffered() int64 { return buffered.Load() }

// A Buffer is where one direction of a Splice reads to. It takes memory from a pool
// when there is something to read, and gives it back once that has been written. The
// zero Buffer holds nothing. It is for one goroutine.
type Buffer struct {
	bulk   *[bulkBuffer]byte   // at most one of the three is not nil
	record *[recordBuffer]byte //
	little *[littleBuffer]byte //

	much   bool // the last read found much
	blind  bool // the connection takes memory before it waits
	socket socket
}

// A BufferReader is a connection that knows when there is something to read, and
// takes memory for it only then.
type BufferReader interface {
	// ReadBuffer is Read into what b.Take returns. It must not wait while b holds
	// memory. The n bytes read are b.Take(n)[:n], until b is freed.
	ReadBuffer(b *Buffer) (n int, err error)
}

// ReadBuffer reads from c into b, which holds nothing. While it waits for something
// to read b holds nothing either if c is a BufferReader, a TCP connection or a unix
// socket. Of any other c, and so of a TLS connection, nobody can know whether
// something has come without reading it: b holds 4 KiB then, or 16 KiB after a read
// that has found much.
func ReadBuffer(c net.Conn, b *Buffer) (n int, err error) {
	if r, ok := c.(BufferReader); ok {
		return r.ReadBuffer(b)
	}
	if b.socket.is(c) {
		return b.readSocket()
	}
	b.blind = true
	return c.Read(b.Take(0))
}

// Take is the memory that b holds. If b holds none it gets some, with as much room as
// suits want bytes that are known to be there, at most; zero if that is not known.
func (b *Buffer) Take(want int) []byte {
	switch {
	case b.bulk != nil:
		return b.bulk[:]
	case b.record != nil:
		return b.record[:]
	case b.little != nil:
		return b.little[:]
	case !b.much && want <= littleBuffer:
		buffered.Add(littleBuffer)
		b.little, _ = littleBuffers.Get().(*[littleBuffer]byte)
		return b.little[:]
	case b.blind:
		buffered.Add(recordBuffer)
		b.record, _ = recordBuffers.Get().(*[recordBuffer]byte)
		return b.record[:]
	default:
		buffered.Add(bulkBuffer)
		b.bulk, _ = bulkBuffers.Get().(*[bulkBuffer]byte)
		return b.bulk[:]
	}
}

// fit notes how much the last read has found, by which the next one gets its memory.
// A read that fills little calls for more. Of a TLS record that it had begun, the
// next read finds the rest.
func (b *Buffer) fit(n int) {
	enough := littleBuffer
	if b.record != nil {
		enough = recordBuffer - littleBuffer
	}
	b.much = n >= enough
}

// Free gives back what b holds.
func (b *Buffer) Free() {
	switch {
	case b.bulk != nil:
		bulkBuffers.Put(b.bulk)
		buffered.Add(-bulkBuffer)
	case b.record != nil:
		recordBuffers.Put(b.record)
		buffered.Add(-recordBuffer)
	case b.little != nil:
		littleBuffers.Put(b.little)
		buffered.Add(-littleBuffer)
	}
	b.bulk, b.record, b.little = nil, nil, nil
}
