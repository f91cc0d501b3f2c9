// Batch: what lies below TLS. The records of one turn leave in one system call, without
// waiting for the socket, and an idle connection is waited for with little on the stack.

package qmux

import (
	"net"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

// batchSize holds the records of a turn and what TLS puts around them.
const batchSize = 6*record + 1<<10

// batches recycles what batches hold: one that holds nothing needs none. It is a
// cache and holds nothing that anybody could observe.
var batches = sync.Pool{New: func() any { return new([batchSize]byte) }}

// A batch goes between TLS and its connection. TLS writes each record by itself; while
// a batch is held it gathers them. It is for one writer at a time.
type batch struct {
	net.Conn

	open bool // the socket below can be tried

	mu   sync.Mutex // guards the following: TLS writes alerts beside the writer
	out  tunnel.SocketWriter
	buf  *[batchSize]byte // nil while nothing is to be gathered
	from int              // of buf, what has not been written: buf[from:to]
	to   int

	in inward
}

// An inward is what a batch reads. It is for one reader at a time.
type inward struct {
	shallow bool // Read does not wait
	socket  tunnel.SocketReader
	ahead   *block // what await has read: ahead.buf[from:to]; nil if nothing is left
	from    int
	to      int
}

func newBatch(c net.Conn) net.Conn {
	b := &batch{Conn: c}
	below := connBelow(c)
	b.open = b.out.Open(below) && b.in.socket.Open(below)
	return b
}

// connBelow is the connection that c is or has below it; nil if one between wants to see
// what is written.
func connBelow(c net.Conn) net.Conn {
	for {
		switch x := c.(type) {
		case tunnel.Wrapper:
			return nil
		case interface{ NetConn() net.Conn }:
			c = x.NetConn()
		default:
			return c
		}
	}
}

// errNotYet is what Read says in place of waiting. To TLS it is an error that will pass.
var errNotYet error = notYet{}

type notYet struct{}

func (notYet) Error() string   { return "nothing has come yet" }
func (notYet) Timeout() bool   { return false }
func (notYet) Temporary() bool { return true }

// patient says whether Read is to leave the waiting to await. That needs a socket.
func (b *batch) patient(yes bool) { b.in.shallow = yes && b.open }

// await waits until something has come, and reads that. Whoever waits here has a tenth
// of what TLS takes on the stack, which the goroutine of an idle connection keeps.
func (b *batch) await() error {
	n, err := b.in.socket.Read(&b.in)
	b.in.from, b.in.to = 0, n
	return err
}

// Take implements tunnel.Memory.
func (in *inward) Take(int) []byte {
	in.ahead = newBlock(smallBlock)
	return in.ahead.buf
}

// Free gives up what has been read and nobody has taken.
func (in *inward) Free() {
	if in.ahead != nil {
		in.ahead.free()
		in.ahead = nil
	}
}

// Read takes what await has read, or else reads, unless await is to do that.
func (b *batch) Read(p []byte) (int, error) {
	in := &b.in
	switch {
	case in.ahead != nil:
		n := copy(p, in.ahead.buf[in.from:in.to])
		if in.from += n; in.from == in.to {
			in.Free()
		}
		return n, nil
	case in.shallow:
		return 0, errNotYet
	default:
		return b.Conn.Read(p)
	}
}

// NetConn is the connection itself.
func (b *batch) NetConn() net.Conn { return b.Conn }

// hold has Write gather until flush.
func (b *batch) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf == nil {
		b.buf, _ = batches.Get().(*[batchSize]byte)
	}
}

// Write gathers p, or writes it.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.to+len(p) > batchSize {
		if err := b.flushLocked(); err != nil {
			return 0, err
		}
	}
	if b.buf == nil || len(p) > batchSize {
		return b.Conn.Write(p)
	}
	b.to += copy(b.buf[b.to:], p)
	return len(p), nil
}

// flush writes what was gathered. Unless it may wait it writes what the socket takes
// at once, and says whether that was all.
func (b *batch) flush(wait bool) (all bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait {
		return true, b.flushLocked()
	}
	if b.open && b.from < b.to {
		n, err := b.out.Write(b.buf[b.from:b.to])
		if b.from += n; err != nil {
			return false, err
		}
	}
	if b.from < b.to {
		return false, nil
	}
	b.resetLocked()
	return true, nil
}

// CloseWrite ends our direction after what was gathered.
func (b *batch) CloseWrite() error {
	if _, err := b.flush(true); err != nil {
		return err
	}
	return tunnel.CloseWrite(b.Conn)
}

func (b *batch) flushLocked() (err error) {
	if b.from < b.to {
		_, err = b.Conn.Write(b.buf[b.from:b.to])
	}
	b.resetLocked()
	return err
}

func (b *batch) resetLocked() {
	if b.buf != nil {
		batches.Put(b.buf)
	}
	b.buf, b.from, b.to = nil, 0, 0
}
