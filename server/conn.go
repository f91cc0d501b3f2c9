// Conn: a stream as the hub's callers see it.

package server

import (
	"errors"
	"io"
	"net"
	"os"
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

// track makes a conn of a stream. It counts in t while it is open.
func (t *traffic) track(opener string, s net.Conn, remote net.Addr) *conn {
	count := func(d int) {
		t.open.Add(d)
		if opener == openerServer {
			t.dialed.Add(d)
		} else {
			t.taken.Add(int64(d))
		}
	}
	count(1)
	return &conn{remote: remote, Tap: tunnel.Tap{
		Conn:     s,
		Received: func(n int) { t.fromNode.Add(uint64(n)) },
		Sent:     func(n int) { t.toNode.Add(uint64(n)) },
		Ended:    func(bool) { count(-1) },
	}}
}

// track makes a conn of a stream of m. It fails with the reason why m ended.
func (m *member) track(opener string, s net.Conn, remote net.Addr) *conn {
	c := m.traffic.track(opener, s, remote)
	c.Failed = m.reason
	return c
}

// reason is err of a stream of m, or why m ended if that ended the stream.
func (m *member) reason(err error) error {
	why := m.why.Load()
	if why == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return &sessionEnded{*why, err}
}

// A sessionEnded is the error of a stream whose session has ended.
type sessionEnded struct{ why, err error }

func (e *sessionEnded) Error() string { return e.why.Error() }

// Unwrap returns the stream's own error as well: it is a net.ErrClosed, or a reset.
func (e *sessionEnded) Unwrap() []error { return []error{e.why, e.err} }

// A Tally is a count that can be waited on to become zero. The zero value is zero. Its methods
// may be called concurrently.
type Tally struct {
	mu   sync.Mutex // guards the following
	n    int
	zero chan struct{} // closed and forgotten when n next becomes 0
}

// Add adds d, which may be negative.
func (t *Tally) Add(d int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n += d; t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

// Count is the present count.
func (t *Tally) Count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// Idle is closed once the count is zero, and stays so.
func (t *Tally) Idle() <-chan struct{} {
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
