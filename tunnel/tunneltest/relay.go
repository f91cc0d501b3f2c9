// Relay: a TCP connection that a test can break.

package tunneltest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// A Relay is a TCP port that stands for another one. It is the Faults of a
// transport over TCP. It is closed with its test.
type Relay struct {
	target string
	ln     net.Listener
	ctx    context.Context
	wg     sync.WaitGroup

	mu      sync.Mutex // guards the following
	changed sync.Cond
	stalled bool
	closed  bool
	conns   map[net.Conn]int      // both ends of each, and how many there were before
	dead    map[net.Conn]struct{} // those of them that were forgotten
	made    int
}

var _ Faults = (*Relay)(nil)

// NewRelay makes a relay to target, HOST:PORT.
func NewRelay(t testing.TB, target string) *Relay {
	t.Helper()
	return newRelay(t, target, func(ln net.Listener) net.Listener { return ln })
}

// newRelay makes a relay whose listener is what of makes of one.
func newRelay(t testing.TB, target string, of func(net.Listener) net.Listener) *Relay {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln = of(ln)
	r := &Relay{target: target, ln: ln, conns: make(map[net.Conn]int), dead: make(map[net.Conn]struct{})}
	r.changed.L = &r.mu
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	r.wg.Go(r.serve)
	t.Cleanup(func() {
		cancel()
		_ = ln.Close() // ends serve
		r.mu.Lock()
		r.closed = true
		r.changed.Broadcast()
		r.mu.Unlock()
		r.Cut()
		r.wg.Wait()
	})
	return r
}

// Addr is where the relay listens.
func (r *Relay) Addr() string { return r.ln.Addr().String() }

// Made is how many connections have come so far.
func (r *Relay) Made() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made
}

// Cut resets every connection there is.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // fails if it is closed already
		}
		_ = c.Close()
	}
	clear(r.conns)
	clear(r.dead)
	r.changed.Broadcast()
}

// Forget has nothing more get through on the connections there are, as a middlebox
// that has forgotten them, but for the first few. It says how many that are.
func (r *Relay) Forget(but int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for c, number := range r.conns {
		if number >= but {
			r.dead[c] = struct{}{}
			n++
		}
	}
	return n / 2
}

// Stall has nothing get through, on old connections or new ones, until it is
// called again.
func (r *Relay) Stall(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stalled = on
	r.changed.Broadcast()
}

func (r *Relay) serve() {
	for {
		near, err := r.ln.Accept()
		if err != nil {
			return
		}
		far, err := new(net.Dialer).DialContext(r.ctx, "tcp", r.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		if r.add(near, far) {
			r.wg.Go(func() { r.copy(far, near) })
			r.wg.Go(func() { r.copy(near, far) })
		}
	}
}

// add keeps the two ends of a connection, or closes them if that is too late.
func (r *Relay) add(near, far net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made++
	if r.closed {
		_, _ = near.Close(), far.Close()
		return false
	}
	r.conns[near], r.conns[far] = r.made-1, r.made-1
	return true
}

// copy passes on what comes from one end, and then its end.
func (r *Relay) copy(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !r.pass(from) {
			return
		}
		if _, werr := to.Write(buf[:n]); werr != nil {
			_ = from.Close() // what broke to breaks it
			return
		}
		if half, ok := to.(interface{ CloseWrite() error }); ok && errors.Is(err, io.EOF) {
			_ = half.CloseWrite() // fails if it is cut
			return
		}
		if err != nil {
			_, _ = to.Close(), from.Close() // cut
			return
		}
	}
}

// pass waits out a stall. It says whether c is still there.
func (r *Relay) pass(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if _, ok := r.conns[c]; !ok {
			return false
		}
		if _, dead := r.dead[c]; !r.stalled && !dead {
			return true
		}
		r.changed.Wait()
	}
}
