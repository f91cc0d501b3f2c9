// Pending: strangers, in bounded number.

package strangers

import (
	"container/list"
	"net"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

// Pending holds connections that have not yet shown that they mean it. When it
// is full, a newcomer costs another one its place: the oldest of the source that has
// most of them. A client in earnest is done within a round trip or two, so slow
// ones never keep others out, and neither does one source.
type Pending struct {
	limit int

	mu     sync.Mutex // guards the following
	conns  list.List  // of stranger, oldest first
	census Census
	closed bool
	cutOff uint64
}

// A stranger is one of them.
type stranger struct {
	conn   net.Conn
	source Source
}

// NewPending makes one for limit connections.
func NewPending(limit int) *Pending { return &Pending{limit: max(limit, 1)} }

// Enter takes c in until leave is called. A connection that loses its place is
// aborted, and whoever reads from it notices. Once closed it loses it at
// once.
func (l *Pending) Enter(c net.Conn) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = tunnel.Abort(c) // its end is what matters
		return func() {}
	}
	g := stranger{c, SourceOf(c.RemoteAddr())}
	if l.conns.Len() >= l.limit {
		l.evictLocked(l.census.Yields(g.source, l.limit))
	}
	e := l.conns.PushBack(g)
	l.census.Add(g.source)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.removeLocked(e, g)
	}
}

// evictLocked aborts the oldest connection of s, of which there is one.
func (l *Pending) evictLocked(s Source) {
	for e := l.conns.Front(); e != nil; e = e.Next() {
		if g, _ := e.Value.(stranger); g.source == s {
			l.removeLocked(e, g)
			l.cutOff++
			_ = tunnel.Abort(g.conn) // its end is what matters
			return
		}
	}
}

// removeLocked does nothing if e has lost its place.
func (l *Pending) removeLocked(e *list.Element, g stranger) {
	before := l.conns.Len()
	if l.conns.Remove(e); l.conns.Len() < before {
		l.census.Remove(g.source)
	}
}

// Count is how many connections there are, and how many have lost their places to
// others.
func (l *Pending) Count() (inside int, cutOff uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns.Len(), l.cutOff
}

// Close aborts every connection in it and all that enter later.
func (l *Pending) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for e := l.conns.Front(); e != nil; e = l.conns.Front() {
		g, _ := e.Value.(stranger)
		l.removeLocked(e, g)
		_ = tunnel.Abort(g.conn) // its end is what matters
	}
}
