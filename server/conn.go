// Conn: a stream as the hub's callers see it.

package server

import (
	"net"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

// Who opened a stream.
const (
	openerServer = "server"
	openerAgent  = "agent"
)

// A conn is a stream that counts. It is a tunnel.Stream and a tunnel.Aborter.
type conn struct {
	tunnel.Stream
	remote       net.Addr
	traffic      *traffic
	explain      func(error) error // what an error is due to; nil if it says so itself
	once         sync.Once
	afterClosing func()
}

func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	return c.came(n, err)
}

// ReadBuffer is for tunnel.Splice.
func (c *conn) ReadBuffer(b *tunnel.Buffer) (int, error) {
	n, err := tunnel.ReadBuffer(c.Stream, b)
	return c.came(n, err)
}

// ReadThrough and WriteThrough implement tunnel.Wrapper.
func (c *conn) ReadThrough() tunnel.Inner {
	return tunnel.Inner{Conn: c.Stream, Moved: func(n int) { c.traffic.fromNode.Add(uint64(n)) }, Failed: c.explain}
}

// WriteThrough is ReadThrough for writing.
func (c *conn) WriteThrough() tunnel.Inner {
	return tunnel.Inner{Conn: c.Stream, Moved: func(n int) { c.traffic.toNode.Add(uint64(n)) }}
}

// came counts what was read, and explains why no more was.
func (c *conn) came(n int, err error) (int, error) {
	c.traffic.fromNode.Add(uint64(n))
	if err != nil && c.explain != nil {
		err = c.explain(err)
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Stream.Write(p)
	c.traffic.toNode.Add(uint64(n))
	return n, err
}

func (c *conn) Close() error {
	err := c.Stream.Close()
	c.once.Do(c.afterClosing)
	return err
}

// Abort gives the stream up.
func (c *conn) Abort() error {
	err := tunnel.Abort(c.Stream)
	c.once.Do(c.afterClosing)
	return err
}

// track makes a conn of a stream and counts it while it is open: as m's, unless
// that is nil.
func (h *Hub) track(m *member, opener string, s tunnel.Stream, remote net.Addr) *conn {
	t := &h.ledger.around
	if m != nil {
		t = &m.traffic
	}
	open := &t.byServer
	if opener == openerAgent {
		open = &t.byAgent
	}
	count := func(d int) {
		open.Add(int64(d))
		if m == nil {
			return
		}
		m.open.add(d)
		if opener == openerServer {
			m.dialed.add(d)
		}
	}
	count(1)
	return &conn{Stream: s, remote: remote, traffic: t, afterClosing: func() { count(-1) }}
}

// A tally is a count that can be waited on to become zero.
type tally struct {
	mu   sync.Mutex // guards the following
	n    int
	zero chan struct{} // closed and forgotten when n next becomes 0
}

func (t *tally) add(d int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n += d; t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

func (t *tally) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// idle is closed once the count is zero.
func (t *tally) idle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		now := make(chan struct{})
		close(now)
		return now
	}
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	return t.zero
}
