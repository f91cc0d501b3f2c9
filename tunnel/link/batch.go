// Batch: several TLS records, one system call.

package link

import (
	"net"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

// batchSize is how much a Batch holds at most: eight records and what TLS puts
// around them, with room to spare.
const batchSize = 8*record + 1<<10

// batches recycles what Batches hold: one that holds nothing needs none. It is a
// cache and holds nothing that anybody could observe.
var batches = sync.Pool{New: func() any { return new([batchSize]byte) }}

// A Batch goes between TLS and its connection. TLS writes each record of 16 KiB
// by itself; once a link runs on it, a Batch holds records back until the link
// has nothing more to send. Until then it is transparent. Reading several records
// at a time would not pay: it costs a copy that is dearer than the calls it saves.
type Batch struct {
	net.Conn

	mu     sync.Mutex // guards the following, and writing
	corked bool
	held   *[batchSize]byte // nil while nothing is held
	n      int              // bytes held
}

// NewBatch makes a Batch of c and owns it. Make the TLS connection of it, and
// the link of that.
func NewBatch(c net.Conn) *Batch { return &Batch{Conn: c} }

// batchBelow finds the Batch that c runs on; nil if there is none.
func batchBelow(c net.Conn) *Batch {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = over.NetConn()
	}
	b, _ := c.(*Batch)
	return b
}

// Write holds p back, or writes it if there is no link to say when.
func (b *Batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n+len(p) > batchSize {
		if err := b.flushLocked(); err != nil {
			return 0, err
		}
	}
	if !b.corked || len(p) > batchSize {
		return b.Conn.Write(p)
	}
	if b.held == nil {
		b.held, _ = batches.Get().(*[batchSize]byte)
	}
	b.n += copy(b.held[b.n:], p)
	return len(p), nil
}

// Flush writes what is held.
func (b *Batch) Flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flushLocked()
}

func (b *Batch) flushLocked() error {
	if b.held == nil {
		return nil
	}
	_, err := b.Conn.Write(b.held[:b.n])
	batches.Put(b.held)
	b.held, b.n = nil, 0
	return err
}

// cork has Write hold back.
func (b *Batch) cork() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.corked = true
}

// uncork ends that and writes what is held.
func (b *Batch) uncork() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.corked = false
	return b.flushLocked()
}

// CloseWrite writes what is held and ends our direction of the connection.
func (b *Batch) CloseWrite() error {
	if err := b.uncork(); err != nil {
		return err
	}
	return tunnel.CloseWrite(b.Conn)
}
