// Lobby: strangers, in bounded number.

package tunnel

import (
	"container/list"
	"net"
	"sync"
)

// A Lobby holds connections that have not yet shown that they mean it. When it
// is full, a newcomer costs the oldest its place: a client in earnest is done
// within a round trip or two, so slow ones never keep others out.
type Lobby struct {
	limit int

	mu     sync.Mutex // guards the following
	conns  list.List  // of net.Conn, oldest first
	closed bool
}

// NewLobby makes a lobby for limit connections.
func NewLobby(limit int) *Lobby { return &Lobby{limit: max(limit, 1)} }

// Enter takes c in until leave is called. A connection that loses its place is
// closed, and whoever reads from it notices. In a closed lobby it loses it at
// once.
func (l *Lobby) Enter(c net.Conn) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = c.Close() // its reader notices
		return func() {}
	}
	if l.conns.Len() >= l.limit {
		_ = l.conns.Remove(l.conns.Front()).(net.Conn).Close() // likewise
	}
	e := l.conns.PushBack(c)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns.Remove(e) // does nothing if it has lost its place
	}
}

// Close closes every connection in the lobby and all that enter later.
func (l *Lobby) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for l.conns.Len() > 0 {
		_ = l.conns.Remove(l.conns.Front()).(net.Conn).Close() // its reader notices
	}
}
