// Paths on which large packets vanish: a router with a smaller MTU, and somebody
// who drops what it has to say about that. TCP repeats such packets for ever.

package carrier

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"
)

const (
	// smallAfter is how long a server that has taken a connection may leave a
	// handshake unanswered before it is tried with small packets as well. In a
	// handshake both ends have more to say than fits into a small one.
	smallAfter = 3 * time.Second
	// A connection that was closed before it was shortLived old has not lasted: if the
	// next one has not either, it may be that the handshake got through and nothing
	// larger did. Nobody gives one up for that before it is tooShort old, and nobody closes
	// one so soon because he does not need it, except at once.
	tooShort   = time.Second
	shortLived = 20 * time.Second
)

// packets decides of what size those of the next connection are. Small ones carry
// a sixth less, so large ones it is unless they have failed; what a session has
// found out about its path holds for the rest of its life.
type packets struct {
	mu      sync.Mutex // guards the following
	small   bool
	short   int       // connections in a row that have not lasted
	reached time.Time // when the server first took one since the last handshake; zero if it has not
}

// next says whether the packets of the next connection should be small. Several may be
// under way.
func (p *packets) next(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.small || !p.reached.IsZero() && now.Sub(p.reached) >= smallAfter
}

// reach notes that the server has taken a connection.
func (p *packets) reach(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reached.IsZero() {
		p.reached = now
	}
}

// worked notes that hands have been shaken on one.
func (p *packets) worked(small bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.small, p.reached = p.small || small, time.Time{}
}

// lasted notes how long a connection on which hands have been shaken was there.
func (p *packets) lasted(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case d >= shortLived:
		p.short = 0
	case d >= tooShort:
		p.short++
		p.small = p.small || p.short >= 2
	}
}

// A made connection is one of a Dialer's. It tells when it is closed.
type made struct {
	net.Conn
	packets *packets // nil until hands have been shaken
	since   time.Time
	closed  sync.Once
}

// Close implements net.Conn.
func (m *made) Close() error {
	if m.packets != nil {
		m.closed.Do(func() { m.packets.lasted(time.Since(m.since)) })
	}
	return m.Conn.Close()
}

// NetConn is the connection itself.
func (m *made) NetConn() net.Conn { return m.Conn }

// first makes the first connection: with large packets, and with small ones beside if
// that takes long.
func (d *Dialer) first(ctx context.Context) (conn *tls.Conn, err error) {
	type result struct {
		conn *tls.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result)
	attempt := func(small bool) {
		c, aerr := d.connect(ctx, small)
		results <- result{c, aerr}
	}
	go attempt(false) // joined below
	look := time.NewTicker(smallAfter / 4)
	defer look.Stop()
	for under := 1; under > 0; {
		select {
		case <-look.C:
			if d.packets.next(time.Now()) {
				look.Stop()
				under++
				go attempt(true) // likewise
			}
		case r := <-results:
			under--
			switch {
			case conn != nil && r.conn != nil:
				_ = r.conn.NetConn().Close() // of no use
			case conn == nil:
				conn, err = r.conn, r.err // if that failed, the other one decides
			}
			if conn != nil {
				look.Stop()
				cancel()
			}
		}
	}
	return conn, err
}
