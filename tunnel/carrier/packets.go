// Paths on which large packets vanish: a router with a smaller MTU, and somebody
// who drops what it has to say about that. TCP repeats such packets for ever.

package carrier

import (
	"context"
	"crypto/tls"
	"sync"
	"time"
)

const (
	// smallAfter is how long a server that has taken a connection may leave a
	// handshake unanswered before it is tried with small packets as well. In a
	// handshake both ends have more to say than fits into a small one.
	smallAfter = 3 * time.Second
	// shortLived is a connection that was made again and has not lasted: it may
	// be that the handshake got through and nothing larger did.
	shortLived = time.Minute
)

// packets decides of what size those of the next connection are. Small ones carry
// a sixth less, so large ones it is unless they have failed; what a session has
// found out about its path holds for the rest of its life.
type packets struct {
	mu      sync.Mutex // guards the following
	small   bool
	again   bool      // the latest connection was not the first
	made    time.Time // when the latest connection was; zero once it is known to be lost
	reached time.Time // when the server has first taken one since then; zero before
}

// next says whether the packets of a connection that is to be made again should be
// small. Several may be under way.
func (p *packets) next(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.made.IsZero() { // the first attempt since it was lost
		if p.again && now.Sub(p.made) < shortLived {
			p.small = true
		}
		p.made, p.reached = time.Time{}, time.Time{}
	}
	return p.small || p.stuckLocked(now)
}

func (p *packets) stuckLocked(now time.Time) bool {
	return !p.reached.IsZero() && now.Sub(p.reached) >= smallAfter
}

// stuck says whether a handshake gets no answer.
func (p *packets) stuck(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stuckLocked(now)
}

// reach notes that the server has taken a connection.
func (p *packets) reach(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reached.IsZero() {
		p.reached = now
	}
}

// worked notes that hands have been shaken on one, which is the first or not.
func (p *packets) worked(now time.Time, small, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.small = p.small || small
	p.made, p.again = now, again
}

// First makes the first connection: with large packets, and with small ones beside if
// that takes long. The caller owns it.
func (d *Dialer) First(ctx context.Context) (*tls.Conn, error) {
	type result struct {
		conn  *tls.Conn
		err   error
		small bool
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, 2)
	var attempts sync.WaitGroup
	defer attempts.Wait() // they end with ctx
	under := 0
	start := func(small bool) {
		under++
		attempts.Go(func() {
			c, err := d.connect(ctx, small)
			results <- result{c, err, small}
		})
	}
	start(false)
	look := time.NewTicker(smallAfter / 4)
	defer look.Stop()
	for both := false; ; {
		select {
		case <-look.C:
			if !both && d.packets.stuck(time.Now()) {
				both = true
				start(true)
			}
			continue
		case r := <-results:
			if under--; r.err != nil && under > 0 {
				continue // the other one decides
			}
			cancel()
			for ; under > 0; under-- {
				if other := <-results; other.conn != nil {
					_ = other.conn.NetConn().Close() // of no use
				}
			}
			if r.err == nil {
				d.packets.worked(time.Now(), r.small, false)
			}
			return r.conn, r.err
		}
	}
}
