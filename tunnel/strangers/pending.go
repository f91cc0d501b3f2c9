// Pending: strangers, in bounded number.

package strangers

import (
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// Pending holds connections that have not yet shown that they mean it. When it
// is full, a newcomer costs another one its place: the oldest of the source that has
// most of them. A client in earnest is done within a round trip or two, so slow
// ones never keep others out, and neither does one source.
type Pending struct {
	limit    int
	patience time.Duration

	mu     sync.Mutex  // guards the following
	conns  []*stranger // oldest first
	census Census      // of them
	closed bool
	lost   uint64 // places, to newcomers
}

// A stranger is one of them.
type stranger struct {
	conn   net.Conn
	source Source
	since  time.Time
}

// NewPending makes one for limit connections.
func NewPending(limit int) *Pending { return NewPatient(limit, 0) }

// NewPatient makes one for limit connections in which none loses its place before it has
// had it for patience, unless others of its source have places and the newcomer's source
// has fewer: for connections of which the next one is not worth more.
func NewPatient(limit int, patience time.Duration) *Pending {
	return &Pending{limit: max(limit, 1), patience: patience}
}

// Enter takes c in until leave is called. A connection that loses its place is
// aborted, and whoever reads from it notices. Once closed it loses it at
// once. Leave is nil if nobody has to yield to c, which happens with patience only.
func (p *Pending) Enter(c net.Conn) (leave func()) {
	s := &stranger{conn: c, source: SourceOf(c.RemoteAddr())}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.since = time.Now() // in the order of places
	if p.closed {
		_ = tunnel.Abort(c) // its end is what matters
		return func() {}
	}
	if len(p.conns) >= p.limit {
		yields := p.census.Yields(s.source, p.limit)
		i := slices.IndexFunc(p.conns, func(o *stranger) bool { return o.source == yields })
		greedy := yields != s.source && p.census.Of(yields) > 1
		if !greedy && s.since.Sub(p.conns[i].since) < p.patience {
			return nil
		}
		p.lost++
		p.abortLocked(i)
	}
	p.conns = append(p.conns, s)
	p.census.Add(s.source)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.conns, s); i >= 0 {
			p.removeLocked(i)
		}
	}
}

// abortLocked ends the connection at i and gives its place to others.
func (p *Pending) abortLocked(i int) {
	c := p.conns[i].conn
	p.removeLocked(i)
	_ = tunnel.Abort(c) // its end is what matters
}

func (p *Pending) removeLocked(i int) {
	p.census.Remove(p.conns[i].source)
	p.conns = slices.Delete(p.conns, i, i+1)
}

// Count is how many connections there are.
func (p *Pending) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Lost is how many have lost their places to newcomers.
func (p *Pending) Lost() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Close aborts every connection in it and all that enter later.
func (p *Pending) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for len(p.conns) > 0 {
		p.abortLocked(0)
	}
}
