// Tests of faults between servers: of their connections, and of the other server.

package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A faulty network has all in memory. The connections that servers make can be broken.
type faulty struct {
	tunneltest.Network

	mu      sync.Mutex // guards the following
	down    bool
	conns   []*memnet.Conn
	stopped []*memnet.Conn
}

// fleet is newFleet on the network.
func (n *faulty) fleet(t *testing.T, ids ...string) *fleet {
	t.Helper()
	return newFleetOn(t, network{
		listen: func(id string) (net.Listener, error) { return n.Listen(t.Context(), "tcp", id+":1") },
		agents: n.Dial, peers: n.dial,
	}, ids...)
}

// through makes two servers, a and b, and a stream from a through b to node n, whose session b has.
// It ends with the test.
func (n *faulty) through(t *testing.T) (*fleet, net.Conn) {
	t.Helper()
	f := n.fleet(t, "a", "b")
	f.servers["b"].join("n", echo)
	f.servers["a"].knows("n", 1)
	c := f.servers["a"].opened(t)
	t.Cleanup(func() { _ = c.Close() })
	return f, c
}

func (n *faulty) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		n.mu.Unlock()
		<-ctx.Done() // no packet arrives
		n.mu.Lock()
		return nil, ctx.Err()
	}
	c, err := n.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	n.conns = append(n.conns, c.(*memnet.Conn))
	return c, nil
}

// reset breaks the connections that there are.
func (n *faulty) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		_ = c.Abort() // never fails
	}
	n.conns = nil
}

// lose has nothing arrive any more on the connections that there are, and no new ones be made
// until find.
func (n *faulty) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		c.Stall(true)
	}
	n.conns, n.down = nil, true
}

// stop is lose of a server that the system has stopped: what was sent to it arrives after find.
func (n *faulty) stop() {
	n.mu.Lock()
	n.stopped = n.conns
	n.mu.Unlock()
	n.lose()
}

func (n *faulty) find() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.stopped {
		c.Stall(false)
	}
	n.conns, n.stopped, n.down = append(n.conns, n.stopped...), nil, false
}

// echoes says whether c still carries data both ways, within a time.
func echoes(t *testing.T, c net.Conn, text string, within time.Duration) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("%q came back of %q: %v", got[:n], text, err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// opened is a stream to n:1, which has echoed.
func (s *testServer) opened(t *testing.T) net.Conn {
	t.Helper()
	c, err := s.open("n:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, len("n:1\n"))); err != nil {
		t.Fatal(err)
	}
	echoes(t, c, "before", time.Second)
	return c
}

// TestStreamOutlivesSilence: no packet gets from one server to another for a while, or one of them
// does not run. Streams that pass the second go on after that. Meanwhile its nodes are out of reach
// and count as silent, and dials fail at once.
func TestStreamOutlivesSilence(t *testing.T) {
	for name, tc := range map[string]struct {
		fault func(*faulty)
		d     time.Duration
	}{
		"no packets":       {(*faulty).lose, silence + time.Second},
		"none for long":    {(*faulty).lose, 50 * time.Second},
		"stopped":          {(*faulty).stop, 20 * time.Second},
		"hardly stopped":   {(*faulty).stop, silence + time.Millisecond},
		"stopped for long": {(*faulty).stop, 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n faulty
				f, c := n.through(t)
				a := f.servers["a"]
				for range 3 {
					tc.fault(&n)
					time.Sleep(silence + time.Millisecond)
					synctest.Wait()
					if all := a.peers.owners("n"); len(all) != 0 {
						t.Errorf("dials would still go there: %v", all)
					}
					if o, ok := a.peers.Observe("n"); !ok || o.State != server.Detached || o.Cause != server.Silent {
						t.Errorf("the node is %v (%v)", o.State, o.Cause)
					}
					began := time.Now()
					if _, err := a.open("n:1"); !tunnel.CodeOf(err).Away() || time.Since(began) > 0 {
						t.Errorf("a dial meanwhile: %v after %v", err, time.Since(began))
					}
					time.Sleep(tc.d - silence)
					n.find()
					echoes(t, c, "after", 10*time.Second)
					a.knows("n", 1)
					if got, err := a.ask("n:1"); err != nil || got != "n:1\nahoy" {
						t.Errorf("a new dial: %q, %v", got, err)
					}
					time.Sleep(time.Minute) // it works for a while
				}
			})
		})
	}
}

// TestStreamOutlivesReset: a connection between servers is reset, as by a load balancer that
// fails over. Streams in it go on.
func TestStreamOutlivesReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n faulty
		f := n.fleet(t, "a", "b")
		a, b := f.servers["a"], f.servers["b"]
		b.join("n", echo)
		a.knows("n", 1)
		c := a.opened(t)
		defer c.Close()
		for range 50 {
			n.reset()
			echoes(t, c, "after", 10*time.Second)
			time.Sleep(time.Second)
			a.knows("n", 1)
		}
		if got, err := a.ask("n:1"); err != nil || got != "n:1\nahoy" {
			t.Errorf("a new dial: %q, %v", got, err)
		}
	})
}

// TestDialFailsOver: a dial that waits for an answer of a server which is killed, or falls silent,
// goes to another that has the node.
func TestDialFailsOver(t *testing.T) {
	for name, tc := range map[string]struct {
		fault func(*faulty, *testServer)
		bound time.Duration
	}{
		"killed": {func(_ *faulty, b *testServer) { b.kill() }, 0},
		"silent": {func(n *faulty, _ *testServer) { n.lose() }, silence},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n faulty
				f := n.fleet(t, "a", "b")
				a, b := f.servers["a"], f.servers["b"]
				asked := make(chan struct{})
				b.join("n", func(ctx context.Context, r *tunnel.Request) {
					if r.Addr != "n:2" {
						echo(ctx, r)
						return
					}
					close(asked)
					<-ctx.Done() // it never answers
				})
				a.knows("n", 1)
				defer a.opened(t).Close() // for which the session is kept
				type result struct {
					got string
					err error
				}
				results := make(chan result, 1)
				go func() {
					got, err := a.ask("n:2")
					results <- result{got, err}
				}()
				<-asked
				a.join("n", echo) // only the dial under way is sent to b
				began := time.Now()
				tc.fault(&n, b)
				if r := <-results; r.err != nil || r.got != "n:2\nahoy" || time.Since(began) > tc.bound {
					t.Errorf("%q, %v after %v", r.got, r.err, time.Since(began))
				}
			})
		})
	}
}

// TestKilledServer: the streams through a server that is killed end: once another process answers
// at its address, which is soon heard, or when the detach window is over.
func TestKilledServer(t *testing.T) {
	for name, again := range map[string]bool{"started again": true, "gone": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n faulty
				f, c := n.through(t)
				a, b := f.servers["a"], f.servers["b"]
				b.kill()
				synctest.Wait()
				began := time.Now()
				if _, err := a.open("n:1"); !tunnel.CodeOf(err).Away() || time.Since(began) > 0 {
					t.Errorf("a dial into its node: %v after %v", err, time.Since(began))
				}
				bound := tunnel.DefaultDetachWindow
				if again {
					bound = 10 * time.Second
					time.Sleep(3 * time.Second)
					b = f.start("b")
					b.join("n", echo)
					began = time.Now()
				}
				if _, err := io.Copy(io.Discard, c); err == nil {
					t.Error("the stream ended as if it were complete")
				}
				if d := time.Since(began); d > bound+time.Second {
					t.Errorf("the stream ended after %v", d)
				}
				if !again {
					return
				}
				a.knows("n", 1)
				if d := time.Since(began); d > bound {
					t.Errorf("it was heard again after %v", d)
				}
				if got, err := a.ask("n:1"); err != nil || got != "n:1\nahoy" {
					t.Errorf("%q, %v", got, err)
				}
			})
		})
	}
}

// TestStopsOutOfReach: a server that stops, or that is taken from the list, while another cannot
// reach it ends the sessions with it within the time that streams have.
func TestStopsOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n faulty
		f := n.fleet(t, "a", "b")
		a, b := f.servers["a"], f.servers["b"]
		b.join("n", echo)
		a.knows("n", 1)
		c := a.opened(t)
		defer c.Close()
		n.lose()
		time.Sleep(silence + time.Second)
		began := time.Now()
		b.stop()
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("the server with the streams stopped after %v", d)
		}
		a.peers.Set([]Peer{{ID: "a", Addr: a.addr}, {ID: "b", Addr: "b:2"}}) // it has moved
		began = time.Now()
		if _, err := io.Copy(io.Discard, c); err == nil || time.Since(began) > 3*time.Second {
			t.Errorf("a stream to where it was ended after %v: %v", time.Since(began), err)
		}
		began = time.Now()
		a.stop()
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("the other one stopped after %v", d)
		}
	})
}

// TestMayResume: sessions of servers may be resumed, and those of nodes as the hub says. What is
// neither may not.
func TestMayResume(t *testing.T) {
	f := newFleet(t)
	for name, tc := range map[string]struct {
		cn, org string
		code    tunnel.Code // 0: it may
	}{
		"a server":                    {auth.ServerUserPrefix + "b", auth.ServersGroup, 0},
		"a node":                      {auth.NodeUserPrefix + "n", auth.NodesGroup, 0},
		"a node that is revoked":      {auth.NodeUserPrefix + "gone", auth.NodesGroup, tunnel.Revoked},
		"a node among servers":        {auth.NodeUserPrefix + "n", auth.ServersGroup, tunnel.Denied},
		"a server among nodes":        {auth.ServerUserPrefix + "b", auth.NodesGroup, tunnel.Denied},
		"a node with a server's name": {auth.NodeUserPrefix + auth.ServerUserPrefix + "b", auth.NodesGroup, tunnel.Denied},
		"a user":                      {"someone", "system:masters", tunnel.Denied},
	} {
		t.Run(name, func(t *testing.T) {
			hub, err := server.New(server.Config{Listeners: []tunnel.Listener{new(tunneltest.Exchange).Listen("here")}, Admit: func(_ context.Context, node string, _ tunnel.Peer) error {
				if node == "gone" {
					return tunnel.Revoked
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			p, err := New(Config{ID: "a", Hub: func() *server.Hub { return hub }, Dial: func(context.Context, Peer, bool) (tunnel.Session, error) { return nil, nil }})
			if err != nil {
				t.Fatal(err)
			}
			cert := f.client(tc.cn, tc.org).Leaf
			err = p.MayResume(tunnel.Peer{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}})
			if tunnel.CodeOf(err) != tc.code {
				t.Errorf("%v, want %v", err, tc.code)
			}
			if err := p.MayResume(tunnel.Peer{}); !errors.Is(err, tunnel.Denied) {
				t.Errorf("without a certificate: %v", err)
			}
		})
	}
}

// TestOlderServer: a session with an older server, which would refuse to resume it, is replaced by
// one that ends with its connection.
func TestOlderServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub, err := server.New(server.Config{Listeners: []tunnel.Listener{new(tunneltest.Exchange).Listen("here")}})
		if err != nil {
			t.Fatal(err)
		}
		var far sync.WaitGroup
		var asked []bool
		p, err := New(Config{ID: "a", Hub: func() *server.Hub { return hub }, Dial: func(_ context.Context, _ Peer, resumes bool) (tunnel.Session, error) {
			asked = append(asked, resumes)
			near, other := tunneltest.Pair(tunnel.Peer{Addr: memnet.Addr("a")}, tunnel.Peer{Addr: memnet.Addr("b")}, tunnel.Options{})
			far.Go(func() {
				_ = tunneltest.ServeRequests(context.WithoutCancel(t.Context()), other, func(_ context.Context, r *tunnel.Request) {
					if st, err := r.Accept(); err == nil {
						_, _ = io.WriteString(st, `{"complete":true}`+"\n")
					}
				})
			})
			if resumes {
				near = resumable{near}
			}
			return near, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _ = p.Run(ctx) })
		p.Set([]Peer{{ID: "b", Addr: "b:1"}})
		time.Sleep(silence)
		if all := p.Connected(); len(all) != 1 || !slices.Equal(asked, []bool{true, false}) {
			t.Errorf("connected to %v, resumable asked for %v", all, asked)
		}
		cancel()
		group.Wait()
		far.Wait()
	})
}

// A resumable is a session that says that it may be resumed.
type resumable struct{ tunnel.Session }

func (resumable) Link() tunnel.LinkState { return tunnel.LinkState{Window: time.Minute} }
