// Batch: what lies below TLS. The records of one turn leave in one system call, without
// waiting for the socket, and an idle connection is waited for with little on the stack.

package qmux

import (
	"errors"
	"net"
	"sync"
	"syscall"

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

	raw syscall.RawConn // of the socket below; nil if there is none to be tried
	try func(fd uintptr) bool
	err error // of try

	mu   sync.Mutex       // guards the following: TLS writes alerts beside the writer
	buf  *[batchSize]byte // nil while nothing is to be gathered
	from int              // of buf, what has not been written: buf[from:to]
	to   int

	in inward
}

// An inward is what a batch reads. It is for one reader at a time.
type inward struct {
	shallow bool // Read does not wait
	try     func(fd uintptr) bool
	ahead   *block // what await has read: ahead.buf[from:to]; nil if nothing is left
	from    int
	to      int
	err     error
}

func newBatch(c net.Conn) net.Conn {
	b := &batch{Conn: c, raw: socketBelow(c)}
	b.try, b.in.try = b.tryWrite, b.tryRead
	return b
}

// socketBelow is the socket that c is or has below it, unless one between wants to see
// what is written.
func socketBelow(c net.Conn) syscall.RawConn {
	for {
		switch x := c.(type) {
		case tunnel.Wrapper:
			return nil
		case interface{ NetConn() net.Conn }:
			c = x.NetConn()
		default:
			return socketOf(c)
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
func (b *batch) patient(yes bool) {
	if b != nil {
		b.in.shallow = yes && b.raw != nil
	}
}

// await waits until something has come, and reads that. Whoever waits here has a tenth
// of what TLS takes on the stack, which the goroutine of an idle connection keeps.
func (b *batch) await() error {
	b.in.err = nil
	if err := b.raw.Read(b.in.try); err != nil {
		return renamed(err, "read")
	}
	return b.in.err
}

func (b *batch) tryRead(fd uintptr) bool {
	in := &b.in
	in.ahead = newBlock(smallBlock)
	n, again, err := tryRead(fd, in.ahead.buf)
	in.from, in.to, in.err = 0, n, err
	if n == 0 {
		b.unread()
	}
	return !again
}

// unread gives up what has been read and nobody has taken.
func (b *batch) unread() {
	if b != nil && b.in.ahead != nil {
		b.in.ahead.free()
		b.in.ahead = nil
	}
}

// Read takes what await has read, or else reads, unless await is to do that.
func (b *batch) Read(p []byte) (int, error) {
	in := &b.in
	switch {
	case in.ahead != nil:
		n := copy(p, in.ahead.buf[in.from:in.to])
		if in.from += n; in.from == in.to {
			b.unread()
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
	if b.raw != nil && b.from < b.to {
		b.err = nil
		if err := errors.Join(b.raw.Write(b.try), b.err); err != nil {
			return false, err
		}
	}
	if b.from < b.to {
		return false, nil
	}
	b.resetLocked()
	return true, nil
}

// tryWrite writes what the socket takes at once.
func (b *batch) tryWrite(fd uintptr) bool {
	var n int
	n, b.err = tryWrite(fd, b.buf[b.from:b.to])
	b.from += n
	return true
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
