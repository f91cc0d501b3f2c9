// Batch: the layer between TLS and the socket. The records of one turn leave in one system
// call that does not block, and a read waits for an idle connection on a shallow stack.

package qmux

import (
	"crypto/tls"
	"net"
	"sync"
	"syscall"

	"github.com/hawser-project/hawser/tunnel"
)

// batchSize holds the records of a turn with TLS's overhead.
const batchSize = 6*record + 1<<10

// batches recycles the buffers of batches. It is a cache without observable state.
var batches = sync.Pool{New: func() any { return new([batchSize]byte) }}

// A batch is between TLS and its connection. TLS makes one Write for each record; between
// hold and flush the batch collects them. It is for one writer at a time.
type batch struct {
	net.Conn

	hasSocket bool // Conn is a socket, which can be tried without blocking

	mu   sync.Mutex // guards the following: TLS also writes alerts
	out  tunnel.SocketWriter
	buf  *[batchSize]byte // nil unless hold was called
	from int              // buf[from:to] has not been written
	to   int

	in reader
}

// A reader is the reading side of a batch. It is for one goroutine at a time.
type reader struct {
	source           // has what waitRead has read: b.buf[from:to]; no block if nothing is left
	nonblocking bool // Read does not block
	from        int
	to          int
}

func newBatch(c net.Conn) net.Conn {
	b := &batch{Conn: c}
	below := connBelow(c)
	b.hasSocket = b.out.Open(below) && b.in.socket.Open(below)
	return b
}

// connBelow is the innermost connection of c; nil if one of the wrappers has to see the
// bytes, as TLS with a proxy does.
func connBelow(c net.Conn) net.Conn {
	for {
		switch x := c.(type) {
		case tunnel.Wrapper, *tls.Conn:
			return nil
		case interface{ NetConn() net.Conn }:
			c = x.NetConn()
		default:
			return c
		}
	}
}

// errWouldBlock is returned by Read in place of blocking. TLS takes it for a temporary
// error.
const errWouldBlock = syscall.EAGAIN

// setNonblocking says whether Read returns errWouldBlock, so that its caller waits in
// waitRead. Without a socket Read always blocks.
func (b *batch) setNonblocking(yes bool) { b.in.nonblocking = yes && b.hasSocket }

// waitRead waits for data and reads it. It takes a tenth of the stack of a Read that waits
// inside TLS, and an idle connection keeps that stack.
func (b *batch) waitRead() error {
	n, err := b.in.socket.Read(&b.in)
	b.in.from, b.in.to = headroom, headroom+n
	return err
}

// Read returns what waitRead has read, or else reads the socket unless it must not block.
func (b *batch) Read(p []byte) (int, error) {
	in := &b.in
	switch {
	case in.b != nil:
		n := copy(p, in.b.buf[in.from:in.to])
		if in.from += n; in.from == in.to {
			in.Free()
		}
		return n, nil
	case in.nonblocking:
		return 0, errWouldBlock
	default:
		return b.Conn.Read(p)
	}
}

// NetConn is the connection itself.
func (b *batch) NetConn() net.Conn { return b.Conn }

// hold makes Write collect until flush.
func (b *batch) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf == nil {
		b.buf, _ = batches.Get().(*[batchSize]byte)
	}
}

// Write collects p, or writes it.
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

// flush writes what was collected. If it must not wait it writes what the socket takes at
// once, and returns whether that was all.
func (b *batch) flush(wait bool) (all bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait {
		return true, b.flushLocked()
	}
	if b.hasSocket && b.from < b.to {
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
