// Package strangers bounds what clients can cause before they are authenticated: how many
// connections they hold (Pending), how many of them one address has (SourceCounts), and how
// many log lines they cause (LogLimiter).
//
// Its mental model: one address, or one user of this machine (UserSource), can never keep
// others out, but it may use every place that nobody else wants.
package strangers

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A Source is an IPv4 address, or an IPv6 /64, since one host may have all of that.
// Addresses of other kinds are one source together. Of UserSource it is a user
// of this machine.
type Source struct {
	prefix netip.Prefix
	user   uint32
	local  bool
}

// UserSource is the source of what a user of this machine does.
func UserSource(uid uint32) Source { return Source{user: uid, local: true} }

// SourceOf is the source of a remote address.
func SourceOf(a net.Addr) Source {
	of, ok := a.(interface{ AddrPort() netip.AddrPort }) // *net.TCPAddr and *net.UDPAddr
	if !ok {
		return Source{}
	}
	ip := of.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	p, _ := ip.Prefix(bits) // zero of no address at all
	return Source{prefix: p}
}

// A SourceCounts counts connections by source, and chooses which source gives up a place
// when there are too many. The zero value is empty. It has no lock.
type SourceCounts struct{ counts map[Source]int }

// Add counts one more of s.
func (c *SourceCounts) Add(s Source) {
	if c.counts == nil {
		c.counts = make(map[Source]int)
	}
	c.counts[s]++
}

// Remove counts one less of s.
func (c *SourceCounts) Remove(s Source) {
	if c.counts[s]--; c.counts[s] <= 0 {
		delete(c.counts, s)
	}
}

// Of is the count of s.
func (c *SourceCounts) Of(s Source) int { return c.counts[s] }

// Yields is the source that gives up one of limit places to a newcomer: the newcomer's own
// if that has its share already, else the one with the most places.
func (c *SourceCounts) Yields(newcomer Source, limit int) Source {
	if n := c.counts[newcomer]; n > 0 && n >= limit/len(c.counts) {
		return newcomer
	}
	most, of := 0, newcomer
	for s, n := range c.counts {
		if n > most {
			most, of = n, s
		}
	}
	return of
}

// Pending holds unauthenticated connections. When it is full a newcomer takes the place of
// the oldest connection of the source that has the most. Honest clients need a place only for
// a round trip or two, so neither slow clients nor one source keep others out.
type Pending struct {
	limit   int
	minTime time.Duration

	mu     sync.Mutex     // guards the following
	conns  []*pendingConn // oldest first
	counts SourceCounts   // of them
	closed bool
	lost   uint64 // places, to newcomers
}

// A pendingConn is one of them.
type pendingConn struct {
	conn   net.Conn
	source Source
	since  time.Time
	lost   func() // called before the connection is aborted
}

// NewPending makes one for limit connections.
func NewPending(limit int) *Pending { return NewPendingFor(limit, 0) }

// NewPendingFor is NewPending in which a connection keeps its place for at least minTime,
// unless its source has several places and the newcomer's source has fewer.
func NewPendingFor(limit int, patience time.Duration) *Pending {
	return &Pending{limit: max(limit, 1), minTime: patience}
}

// Enter gives c a place until leave is called. A connection that loses its place is
// aborted. After Close every connection loses it at once. With NewPendingFor leave is nil if
// there is no place for c.
func (p *Pending) Enter(c net.Conn) (leave func()) {
	return p.enter(&pendingConn{conn: c, source: SourceOf(c.RemoteAddr()), lost: func() {}})
}

// Hold is Enter of a connection from a source that the caller knows. The context is done
// when the connection loses its place or leaves it. It is for a Pending of NewPending.
func (p *Pending) Hold(ctx context.Context, source Source, c net.Conn) (held context.Context, leave func()) {
	ctx, cancel := context.WithCancel(ctx)
	out := p.enter(&pendingConn{conn: c, source: source, lost: cancel})
	return ctx, func() { out(); cancel() }
}

func (p *Pending) enter(s *pendingConn) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.since = time.Now() // with the mutex held, so that conns stays in order
	if p.closed {
		s.abort()
		return func() {}
	}
	if len(p.conns) >= p.limit {
		yields := p.counts.Yields(s.source, p.limit)
		i := slices.IndexFunc(p.conns, func(o *pendingConn) bool { return o.source == yields })
		greedy := yields != s.source && p.counts.Of(yields) > 1
		if !greedy && s.since.Sub(p.conns[i].since) < p.minTime {
			return nil
		}
		p.lost++
		p.abortLocked(i)
	}
	p.conns = append(p.conns, s)
	p.counts.Add(s.source)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.conns, s); i >= 0 {
			p.removeLocked(i)
		}
	}
}

// abortLocked aborts the connection at i and removes it.
func (p *Pending) abortLocked(i int) {
	s := p.conns[i]
	p.removeLocked(i)
	s.abort()
}

func (s *pendingConn) abort() {
	s.lost()
	_ = tunnel.Abort(s.conn) // its end is what matters
}

func (p *Pending) removeLocked(i int) {
	p.counts.Remove(p.conns[i].source)
	p.conns = slices.Delete(p.conns, i, i+1)
}

// Count is how many connections there are.
func (p *Pending) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Lost is how many connections have lost their places to newcomers.
func (p *Pending) Lost() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Close aborts every connection that has a place, and all that enter later.
func (p *Pending) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for len(p.conns) > 0 {
		p.abortLocked(0)
	}
}
