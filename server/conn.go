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

// A conn is a stream whose bytes are counted. It is a tunnel.Stream and a tunnel.Aborter.
type conn struct {
	tunnel.Tap
	remote net.Addr
}

func (c *conn) RemoteAddr() net.Addr { return c.remote }

// around makes a conn of a stream to d's address that uses no session of this hub. It
// counts in t while it is open.
func (h *Hub) around(t *traffic, s net.Conn, d tunnel.Dial) *conn {
	t.byServer.Add(1)
	return newConn(t, s, tunnel.Addr(d.Name), func() { t.byServer.Add(-1) })
}

// track makes a conn of a stream. It counts in m while it is open.
func (h *Hub) track(m *member, opener string, s net.Conn, remote net.Addr) *conn {
	t := &m.traffic
	open := &t.byServer
	if opener == openerAgent {
		open = &t.byAgent
	}
	count := func(d int) {
		open.Add(int64(d))
		m.open.add(d)
		if opener == openerServer {
			m.dialed.add(d)
		}
	}
	count(1)
	return newConn(t, s, remote, func() { count(-1) })
}

func newConn(t *traffic, s net.Conn, remote net.Addr, ended func()) *conn {
	return &conn{remote: remote, Tap: tunnel.Tap{
		Conn:     s,
		Received: func(n int) { t.fromNode.Add(uint64(n)) },
		Sent:     func(n int) { t.toNode.Add(uint64(n)) },
		Ended:    func(bool) { ended() },
	}}
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
