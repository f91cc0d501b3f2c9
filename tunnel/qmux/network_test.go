// A network of this package's own, with faults: connections in memory to one registry.

package qmux

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// errNoWay is what a network that is down answers.
var errNoWay = errors.New("no way")

// usual are terms that tests by hand ask for.
var usual = terms{keepalive: tunnel.DefaultKeepalive, window: tunnel.DefaultDetachWindow}

// A network is a registry and a way to it.
type network struct {
	registry *registry
	accepted chan *Session

	work sync.WaitGroup // goroutines that accept

	mu       sync.Mutex // guards the following
	identity string
	refuse   error                         // why nobody is let in
	down     error                         // dial's answer
	wrap     func(c *memnet.Conn) net.Conn // what the dialing end uses; may be nil
	far      func(c *memnet.Conn) secured  // what the accepting end uses; may be nil
	near     []*memnet.Conn                // dialing ends, in order
	errs     []error                       // of the registry
}

func newNetwork(o tunnel.Options) *network {
	n := &network{accepted: make(chan *Session, 100), identity: "system:node:a"}
	n.registry = newRegistry(o, func(tunnel.Peer) (string, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.identity, n.refuse
	})
	return n
}

func (n *network) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// made is how many connections there have been.
func (n *network) made() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.near)
}

// connect makes a connection, of which the registry has the other end.
func (n *network) connect() (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down != nil {
		return nil, n.down
	}
	a, b := memnet.Pipe(memnet.Addr("agent"), memnet.Addr("server"))
	n.near = append(n.near, a)
	var near net.Conn = a
	var far secured = bare{newBatch(b)}
	if n.wrap != nil {
		near = n.wrap(a)
	}
	if n.far != nil {
		far = n.far(b)
	}
	n.work.Go(func() {
		s, err := n.registry.acceptOwn(context.Background(), far)
		if err != nil {
			n.set(func() { n.errs = append(n.errs, err) })
		}
		if s != nil {
			n.accepted <- s
		}
	})
	return near, nil
}

// dial is a dialFunc.
func (n *network) dial(context.Context) (secured, error) {
	c, err := n.connect()
	if err != nil {
		return nil, err
	}
	return bare{newBatch(c)}, nil
}

// once is a dialFunc that dials once. From then on it hangs.
func (n *network) once() dialFunc {
	var hangs atomic.Bool
	return func(ctx context.Context) (secured, error) {
		if hangs.CompareAndSwap(false, true) {
			return n.dial(ctx)
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
}

// pair makes a session whose dialing end has these options.
func (n *network) pair(t testing.TB, o tunnel.Options) (dialer, accepter *Session) {
	t.Helper()
	return n.pairBy(t, o, n.dial)
}

// pairBy makes a session whose dialing end dials in a way of its own.
func (n *network) pairBy(t testing.TB, o tunnel.Options, dial dialFunc) (dialer, accepter *Session) {
	t.Helper()
	first, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if dialer, err = dialOn(t.Context(), first, dial, o); err != nil {
		t.Fatal(err)
	}
	return dialer, <-n.accepted
}

// hand makes a connection whose dialing end is the test.
func (n *network) hand(t testing.TB) *handmade {
	t.Helper()
	c, err := n.connect()
	if err != nil {
		t.Fatal(err)
	}
	return newHandmade(t, c)
}

// cut resets every connection.
func (n *network) cut() {
	n.set(func() {
		for _, c := range n.near {
			_ = c.Abort() // never fails
		}
	})
}

// stall has every connection there is swallow everything.
func (n *network) stall() {
	n.set(func() {
		for _, c := range n.near {
			c.Stall(true)
		}
	})
}

// close closes sessions, and sees that the registry has forgotten them.
func (n *network) close(t testing.TB, sessions ...*Session) {
	t.Helper()
	n.cut()
	for _, s := range sessions {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	n.registry.close()
	n.work.Wait()
	if k := n.registry.len(); k != 0 {
		t.Errorf("%d sessions are left", k)
	}
}

// close closes every session, and returns once all are closed.
func (r *registry) close() {
	r.mu.Lock()
	var wg sync.WaitGroup
	for _, s := range r.sessions {
		wg.Go(func() { _ = s.Close() }) // never fails
	}
	r.mu.Unlock()
	wg.Wait()
}

// len is how many sessions there are, after those that are over have been forgotten.
func (r *registry) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := 0
	for _, s := range r.sessions {
		if s.Context().Err() == nil {
			k++
		}
	}
	return k
}

// opened makes a stream from one end to the other.
func opened(t testing.TB, from, to *Session) (near, far tunnel.Stream) {
	t.Helper()
	near, err := from.Open(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	says(t, near, ".")
	if far, err = to.Accept(waiting(t)); err != nil {
		t.Fatal(err)
	}
	hears(t, far, ".")
	return near, far
}

func says(t testing.TB, w io.Writer, text string) {
	t.Helper()
	if n, err := io.WriteString(w, text); err != nil {
		t.Fatalf("write: %d bytes of %d, %v", n, len(text), err)
	}
}

func hears(t testing.TB, r io.Reader, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if n, err := io.ReadFull(r, b); err != nil || string(b) != text {
		t.Fatalf("read %d bytes of %d, %v", n, len(text), err)
	}
}

// why is the reason for which a session is over, once it is.
func why(s *Session) error {
	<-s.Context().Done()
	return context.Cause(s.Context())
}
