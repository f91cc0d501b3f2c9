// Batch: the records of one turn in one system call, without waiting for the socket.

package qmux

import (
	"net"
	"sync"
	"syscall"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
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

	raw   syscall.RawConn // of the socket below; nil if there is none to be tried
	try   func(fd uintptr) bool
	tried int
	err   error

	mu   sync.Mutex // guards the following: TLS writes alerts beside the writer
	held bool
	buf  *[batchSize]byte // nil while nothing is gathered
	from int              // of buf, what has not been written: buf[from:to]
	to   int
}

func newBatch(c net.Conn) net.Conn {
	b := &batch{Conn: c}
	if tcp := carrier.TCPBelow(c); tcp != nil && !hasWrapper(c) {
		if raw, err := tcp.SyscallConn(); err == nil {
			b.raw = raw
		}
	}
	b.try = b.tryWrite
	return b
}

// hasWrapper says whether c is, or has below it, a connection that wants to see what is
// written.
func hasWrapper(c net.Conn) bool {
	for {
		if _, ok := c.(tunnel.Wrapper); ok {
			return true
		}
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return false
		}
		c = below.NetConn()
	}
}

// NetConn is the connection itself.
func (b *batch) NetConn() net.Conn { return b.Conn }

// hold has Write gather until flush.
func (b *batch) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = true
}

// Write gathers p, or writes it.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.held && b.from == b.to {
		return b.Conn.Write(p)
	}
	if b.to+len(p) > batchSize {
		if err := b.flushLocked(); err != nil {
			return 0, err
		}
		if len(p) > batchSize {
			return b.Conn.Write(p)
		}
	}
	if b.buf == nil {
		b.buf, _ = batches.Get().(*[batchSize]byte)
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
		b.held = false
		return true, b.flushLocked()
	}
	if b.raw == nil {
		return b.from == b.to, nil
	}
	if b.from < b.to {
		b.tried, b.err = 0, nil
		if err := b.raw.Write(b.try); err != nil {
			return false, err
		}
		if b.err != nil {
			return false, b.err
		}
		b.from += b.tried
	}
	if b.from < b.to {
		return false, nil
	}
	b.held = false
	b.resetLocked()
	return true, nil
}

// tryWrite writes what the socket takes at once.
func (b *batch) tryWrite(fd uintptr) bool {
	b.tried, b.err = tryWrite(fd, b.buf[b.from:b.to])
	return true
}

// CloseWrite ends our direction after what was gathered.
func (b *batch) CloseWrite() error {
	if _, err := b.flush(true); err != nil {
		return err
	}
	return tunnel.CloseWrite(b.Conn)
}

func (b *batch) flushLocked() error {
	if b.from == b.to {
		b.resetLocked()
		return nil
	}
	_, err := b.Conn.Write(b.buf[b.from:b.to])
	b.resetLocked()
	return err
}

func (b *batch) resetLocked() {
	if b.buf != nil {
		batches.Put(b.buf)
	}
	b.buf, b.from, b.to = nil, 0, 0
}
