// Batch: the layer between TLS and the socket. The records of one turn leave in one system
// call that does not block, and a read waits for an idle connection on a shallow stack.

package qmux

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// batchSize holds the records of a turn with TLS's overhead.
	batchSize = 6*record + 1<<10
	// maxAnswers bounds the answers of TLS that wait for the next turn, in bytes.
	maxAnswers = 4 << 10
)

// batches recycles the buffers of batches. It is a cache without observable state.
var batches = sync.Pool{New: func() any { return new([batchSize]byte) }}

// A batch is between TLS and its connection. TLS makes one Write for each record; between
// hold and flush the batch collects them. It is for one writer at a time, beside TLS, which
// writes alerts and answers to KeyUpdates (RFC 8446, 4.6.3) by itself, with its own mutex held.
type batch struct {
	net.Conn

	hasSocket bool // Conn is a socket, which can be tried without blocking
	joined    bool // it belongs to a session: Write does not block

	mu      sync.Mutex // guards the following; nothing blocks while it is held in a session
	out     tunnel.SocketWriter
	buf     *[batchSize]byte // nil unless hold was called
	from    int              // buf[from:to] has not been written
	to      int
	answers []byte // what TLS has written outside of hold, and the socket did not take

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
	b.holdLocked()
}

func (b *batch) holdLocked() {
	if b.buf == nil {
		b.buf, _ = batches.Get().(*[batchSize]byte)
		b.to = copy(b.buf[:], b.answers)
		b.answers = nil
	}
}

// errUnread ends a connection whose peer has TLS answer, and does not read.
var errUnread = errors.New("more answers asked for than read")

// Write collects p, or writes it. In a session it does not block: what the socket does not take
// waits for the next turn.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.buf != nil && b.to+len(p) > batchSize:
		return 0, errUnread // a turn leaves room
	case b.buf != nil:
		b.to += copy(b.buf[b.to:], p)
		return len(p), nil
	case !b.joined:
		return b.Conn.Write(p)
	}
	n, err := 0, error(nil)
	if b.hasSocket && len(b.answers) == 0 {
		n, err = b.out.Write(p)
	}
	if len(b.answers)+len(p)-n > maxAnswers {
		return n, errUnread
	}
	b.answers = append(b.answers, p[n:]...)
	return len(p), err
}

// flush writes what was collected. If it must not wait it writes what the socket takes at
// once, and returns whether that was all.
func (b *batch) flush(wait bool) (all bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.answers) > 0 {
		b.holdLocked()
	}
	for b.from < b.to && err == nil {
		n, p := 0, b.buf[b.from:b.to]
		switch {
		case wait:
			b.mu.Unlock() // TLS may write meanwhile
			n, err = b.Conn.Write(p)
			b.mu.Lock()
		case b.hasSocket:
			n, err = b.out.Write(p)
		}
		if b.from += n; !wait {
			break
		}
	}
	if b.from < b.to || err != nil {
		return false, err
	}
	if b.buf != nil {
		batches.Put(b.buf)
	}
	b.buf, b.from, b.to = nil, 0, 0
	return true, nil
}
