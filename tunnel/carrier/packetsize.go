// Packet size: small packets for paths on which large ones are lost, because a router has a
// smaller MTU and its ICMP messages are dropped. TCP would retransmit them for ever.

package carrier

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"
)

const (
	// smallAfter is how long after TCP has connected a handshake may take before another
	// one is tried with small packets. The handshake of either end takes more than one
	// small packet.
	smallAfter = 3 * time.Second
	// Two connections in a row that lived no longer than shortLifetime, or on which the peer's
	// large packets seem to be lost, are taken for a sign that the handshake got through and
	// larger packets did not. Connections that lived no longer than minLifetime do not count:
	// they were not needed.
	minLifetime   = time.Second
	shortLifetime = 20 * time.Second
	// The peer's large packets seem to be lost if its system acknowledges what is sent and
	// nothing was received for unansweredFor before that, not one segment was larger than a
	// small one, and less than maxUnanswered was sent. Such a connection lives longer than
	// shortLifetime: the peer gives its data up after userTimeout.
	unansweredFor = 5 * time.Second
	maxUnanswered = 1 << 20
)

// A packetSize chooses the packet size of the next connection. Small packets carry a sixth
// less, so they are used only after large ones have failed, and then for the rest of the
// session.
type packetSize struct {
	mu          sync.Mutex // guards the following
	small       bool
	failedInRow int       // connections in a row that were short-lived or unanswered
	connectedAt time.Time // when TCP first connected since the last handshake that ended; zero if it has not
	movedAt     time.Time // what was established before that went another way
}

// next says whether the next connection uses small packets.
func (p *packetSize) next(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.small || !p.connectedAt.IsZero() && now.Sub(p.connectedAt) >= smallAfter
}

// connected notes that TCP has connected.
func (p *packetSize) connected(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.connectedAt.IsZero() {
		p.connectedAt = now
	}
}

// handshakeDone notes that a handshake was finished.
func (p *packetSize) handshakeDone(small bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.small, p.connectedAt = p.small || small, time.Time{}
}

// handshakeFailed notes that a peer ended a handshake so long after TCP had connected: what it says
// at once, or a reset, needs no large packet and tells nothing of them.
func (p *packetSize) handshakeFailed(after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if after < smallAfter {
		p.connectedAt = time.Time{}
	}
}

// moved notes that connections go another way from now on.
func (p *packetSize) moved(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failedInRow, p.connectedAt, p.movedAt = 0, time.Time{}, now
}

// closed notes that a connection ended that was established at a time, and whether the peer's large
// packets seem to have been lost on it.
func (p *packetSize) closed(now, established time.Time, unanswered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch d := now.Sub(established); {
	case d < minLifetime || established.Before(p.movedAt):
	case d < shortLifetime || unanswered:
		p.failedInRow++
		p.small = p.small || p.failedInRow >= 2
	default:
		p.failedInRow = 0
	}
}

// A dialedConn tells packetSize how long it lived.
type dialedConn struct {
	net.Conn
	packetSize  *packetSize // nil until the handshake is finished
	established time.Time
	closed      sync.Once
}

// Close implements net.Conn.
func (m *dialedConn) Close() error {
	if m.packetSize != nil {
		m.closed.Do(m.tell)
	}
	t := tlsBelow(m.Conn)
	if t == nil {
		return m.Conn.Close()
	}
	err := t.NetConn().Close() // first: TLS with a proxy would wait for 5 s to send close_notify
	_ = m.Conn.Close()
	return err
}

// tlsBelow finds the innermost TLS connection that c is or wraps; nil if there is none.
func tlsBelow(c net.Conn) (t *tls.Conn) {
	for {
		if x, ok := c.(*tls.Conn); ok {
			t = x
		}
		wrapper, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return t
		}
		c = wrapper.NetConn()
	}
}

// tell tells packetSize that the connection ends. One that was cut early, while each end heard the
// other, tells nothing: a middlebox may do so that filters contents.
func (m *dialedConn) tell() {
	now := time.Now()
	if now.Sub(m.established) >= shortLifetime || Undelivered(m.Conn) || unanswered(m.Conn, minLifetime) {
		m.packetSize.closed(now, m.established, unanswered(m.Conn, unansweredFor))
	}
}

// NetConn is the connection itself.
func (m *dialedConn) NetConn() net.Conn { return m.Conn }

// first makes the first connection: with large packets and, after smallAfter, another one
// with small packets beside it.
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
			if d.packetSize.next(time.Now()) {
				look.Stop()
				under++
				go attempt(true) // likewise
			}
		case r := <-results:
			under--
			switch {
			case conn != nil && r.conn != nil:
				_ = r.conn.NetConn().Close() // not needed
			case conn == nil:
				conn, err = r.conn, r.err // if it failed, the other attempt may still succeed
			}
			if conn != nil {
				look.Stop()
				cancel()
			}
		}
	}
	return conn, err
}
