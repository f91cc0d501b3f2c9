// Lobby: strangers, in bounded number.

package tunnel

import (
	"container/list"
	"net"
	"sync"
)

// A Lobby holds connections that have not yet shown that they mean it. When it
// is full, a newcomer costs another one its place: the oldest of the source that has
// most of them. A client in earnest is done within a round trip or two, so slow
// ones never keep others out, and neither does one source.
type Lobby struct {
	limit int

	mu     sync.Mutex // guards the following
	conns  list.List  // of guest, oldest first
	census Census
	closed bool
	cutOff uint64
}

// A guest is a connection in a lobby.
type guest struct {
	conn   net.Conn
	source Source
}

// NewLobby makes a lobby for limit connections.
func NewLobby(limit int) *Lobby { return &Lobby{limit: max(limit, 1)} }

// Enter takes c in until leave is called. A connection that loses its place is
// aborted, and whoever reads from it notices. In a closed lobby it loses it at
// once.
func (l *Lobby) Enter(c net.Conn) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		abortQuietly(c)
		return func() {}
	}
	g := guest{c, SourceOf(c.RemoteAddr())}
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
func (l *Lobby) evictLocked(s Source) {
	for e := l.conns.Front(); e != nil; e = e.Next() {
		if g, _ := e.Value.(guest); g.source == s {
			l.removeLocked(e, g)
			l.cutOff++
			abortQuietly(g.conn)
			return
		}
	}
}

// removeLocked does nothing if e has lost its place.
func (l *Lobby) removeLocked(e *list.Element, g guest) {
	before := l.conns.Len()
	if l.conns.Remove(e); l.conns.Len() < before {
		l.census.Remove(g.source)
	}
}

// Count is how many connections there are, and how many have lost their places to
// others.
func (l *Lobby) Count() (inside int, cutOff uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns.Len(), l.cutOff
}

// Close aborts every connection in the lobby and all that enter later.
func (l *Lobby) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for e := l.conns.Front(); e != nil; e = l.conns.Front() {
		g, _ := e.Value.(guest)
		l.removeLocked(e, g)
		abortQuietly(g.conn)
	}
}
