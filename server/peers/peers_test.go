package peers

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

func TestAnyServerReachesAnyNode(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	f.servers["b"].join("n", echo)
	f.servers["a"].knows("n", 1)
	f.servers["c"].knows("n", 1)
	for id, s := range f.servers {
		for _, addr := range []string{"n:10250", "10.0.0.1%n:80"} {
			got, err := s.ask(addr)
			if want := strings.Replace(addr, "%n", "", 1) + "\nahoy"; err != nil || got != want {
				t.Errorf("through %s: %q, %v, want %q", id, got, err, want)
			}
		}
	}
	if n := f.servers["b"].metric("hawser_peer_requests_total"); n != 4 {
		t.Errorf("b was asked %v times, want 4", n)
	}
	if n := f.servers["a"].metric("hawser_peer_nodes"); n != 1 {
		t.Errorf("a knows of %v nodes elsewhere, want 1", n)
	}
	if n := f.servers["b"].metric("hawser_peer_dials_total"); n != 0 {
		t.Errorf("b asked others %v times", n)
	}
}

// TestErrors: the node's error is passed on unchanged, and the error for a node without a
// session is the same as with one server.
func TestErrors(t *testing.T) {
	f := newFleet(t, "a", "b")
	f.servers["b"].join("n", func(_ context.Context, r *tunnel.Request) {
		_ = r.Reject(tunnel.Refused, "nobody listens there") // the dialer gets the error
	})
	f.servers["a"].knows("n", 1)
	for _, tc := range []struct {
		addr string
		code tunnel.Code
		text string
	}{
		{"n:80", tunnel.Refused, "dial n:80: nobody listens there"},
		{"m:80", tunnel.NoNode, "dial m:80: node m is not connected"},
	} {
		_, err := f.servers["a"].open(tc.addr)
		if !errors.Is(err, tc.code) || err.Error() != tc.text {
			t.Errorf("%v, want %v: %s", err, tc.code, tc.text)
		}
	}
}

// TestOwnerKilled: the next server with a session of the node is tried, and a node that has
// connected to another server is found there.
func TestOwnerKilled(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	a, b, c := f.servers["a"], f.servers["b"], f.servers["c"]
	c.join("n", echo)
	b.join("n", echo) // the newest, which is tried first
	a.knows("n", 2)
	if first := a.peers.owners("n")[0].peer.ID; first != "b" {
		t.Fatalf("%s would be asked first", first)
	}
	b.kill()
	began := time.Now()
	if got, err := a.ask("n:1"); err != nil || got != "n:1\nahoy" {
		t.Errorf("%q, %v", got, err)
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
	a.knows("n", 1)
	if o, ok := a.peers.Observe("n"); !ok || o.State != server.Attached {
		t.Errorf("the node is %v", o.State)
	}
	c.kill()
	a.knows("n", 0)
	if o, ok := a.peers.Observe("n"); !ok || o.State != server.Detached || o.Cause != server.Silent {
		t.Errorf("the node is %v (%v), want Detached (Silent)", o.State, o.Cause)
	}
	a.join("n", echo)
	if o, _ := a.peers.Observe("n"); o.State != server.Attached {
		t.Errorf("the node is %v", o.State)
	}
}

// TestNoLoop: two servers that each believe that the other has the node try each other once.
func TestNoLoop(t *testing.T) {
	f := newFleet(t, "a", "b")
	for id, other := range map[string]string{"a": "b", "b": "a"} {
		p := f.servers[id].peers
		p.mu.Lock()
		p.links[other].nodes["n"] = server.Observation{Node: "n", Change: server.Change{State: server.Attached}}
		p.mu.Unlock()
	}
	_, err := f.servers["a"].open("n:1")
	if !errors.Is(err, tunnel.NoNode) || err.Error() != "dial n:1: node n is not connected" {
		t.Errorf("%v", err)
	}
	if asked, by := f.servers["a"].metric("hawser_peer_dials_total"), f.servers["b"].metric("hawser_peer_dials_total"); asked != 1 || by != 0 {
		t.Errorf("a asked %v times and b %v, want 1 and 0", asked, by)
	}
}

// TestStalledReader: a stalled reader does not delay others.
func TestStalledReader(t *testing.T) {
	f := newFleet(t, "a", "b")
	f.servers["b"].join("n", func(ctx context.Context, r *tunnel.Request) {
		if r.Addr != "n:2" {
			echo(ctx, r)
			return
		}
		st, err := r.Accept()
		if err != nil {
			return
		}
		defer st.Close()
		for err == nil {
			_, err = st.Write(make([]byte, 64<<10))
		}
	})
	f.servers["a"].knows("n", 1)
	for range 3 {
		c, err := f.servers["a"].open("n:2")
		if err != nil {
			t.Fatal(err)
		}
		defer tunnel.Abort(c)
		if _, err := io.ReadFull(c, make([]byte, 1<<20)); err != nil { // it flows, and is read no further
			t.Fatal(err)
		}
	}
	for range 20 {
		if got, err := f.servers["a"].ask("n:1"); err != nil || got != "n:1\nahoy" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// TestRevoked: if a node loses its name at its server, streams from other servers end too.
func TestRevoked(t *testing.T) {
	f := newFleet(t, "a", "b")
	a, b := f.servers["a"], f.servers["b"]
	b.join("n", echo)
	a.knows("n", 1)
	c, err := a.open("n:1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n := b.hub.End("n", func(tunnel.Peer) bool { return true }, tunnel.Revoked); n != 1 {
		t.Fatalf("%d sessions ended", n)
	}
	if _, err := io.Copy(io.Discard, c); err == nil {
		t.Error("the stream ended as if it were complete")
	}
	a.knows("n", 0)
	if o, _ := a.peers.Observe("n"); o.Cause != server.Refused {
		t.Errorf("the cause is %v, want Refused", o.Cause)
	}
	if _, err := a.open("n:1"); !errors.Is(err, tunnel.NoNode) {
		t.Errorf("%v", err)
	}
}

// TestIdentities: a node's certificate is not accepted as a server's, and a server's not as
// a node's.
func TestIdentities(t *testing.T) {
	f := newFleet(t, "a", "b")
	a := f.servers["a"]
	a.join("n", echo)
	greet := func(ctx context.Context, s tunnel.Session) error {
		_, _, err := tunnel.Greet(ctx, s, tunnel.Hello{Node: "m", Instance: 1, Sequence: 1})
		return err
	}
	told := func(ctx context.Context, s tunnel.Session) error {
		_, err := tunnel.Connect(ctx, s, sessionsNetwork, sessionsAddr)
		return err
	}
	pass := func(ctx context.Context, s tunnel.Session) error {
		_, err := tunnel.Dial{Network: "tcp", Addr: "n:1", Meta: tunnel.Meta{nodeKey: "n"}}.Connect(ctx, s)
		return err
	}
	greeted := func(as func(context.Context, tunnel.Session) error) func(context.Context, tunnel.Session) error {
		return func(ctx context.Context, s tunnel.Session) error { return errors.Join(greet(ctx, s), as(ctx, s)) }
	}
	for _, tc := range []struct {
		name, cn, org string
		do            func(context.Context, tunnel.Session) error
		ok            bool
	}{
		{"a server", auth.ServerUserPrefix + "c", auth.ServersGroup, pass, true},
		{"a server greets", auth.ServerUserPrefix + "c", auth.ServersGroup, greet, false},
		{"a node", auth.NodeUserPrefix + "m", auth.NodesGroup, greet, true},
		{"a node asks for sessions", auth.NodeUserPrefix + "m", auth.NodesGroup, told, false},
		{"a node asks for another", auth.NodeUserPrefix + "m", auth.NodesGroup, pass, false},
		{"a node greets and asks for sessions", auth.NodeUserPrefix + "m", auth.NodesGroup, greeted(told), false},
		{"a node greets and asks for another", auth.NodeUserPrefix + "m", auth.NodesGroup, greeted(pass), false},
		{"a node in the servers' group", auth.NodeUserPrefix + "m", auth.ServersGroup, pass, false},
		{"a server in the nodes' group", auth.ServerUserPrefix + "c", auth.NodesGroup, pass, false},
		{"a server in the nodes' group greets", auth.ServerUserPrefix + "c", auth.NodesGroup, greet, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			s, err := f.dial(ctx, a.addr, f.client(tc.cn, tc.org), nil, ends)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err = tc.do(ctx, s); (err == nil) != tc.ok || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
	// A server with a node's certificate is refused.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	other := newImpostor(t, f)
	if s, err := f.dial(ctx, other, f.client(auth.ServerUserPrefix+"a", auth.ServersGroup), nil, ends); err == nil {
		_ = s.Close()
		t.Error("a node's certificate passes for a server's")
	}
}

// TestDraining: a server that is about to stop is tried last, and its forwarded streams have
// time to end.
func TestDraining(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	a, b, c := f.servers["a"], f.servers["b"], f.servers["c"]
	c.join("n", echo)
	b.join("n", echo)
	a.knows("n", 2)
	open, err := a.open("n:1")
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() { b.stop(); close(stopped) }()
	a.await(func() bool {
		all := a.peers.owners("n")
		return len(all) > 0 && all[0].peer.ID == "c"
	})
	if got, err := a.ask("n:2"); err != nil || got != "n:2\nahoy" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err = io.WriteString(open, "still here"); err == nil {
		err = tunnel.CloseWrite(open)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(open); err != nil || string(got) != "n:1\nstill here" {
		t.Errorf("%q, %v", got, err)
	}
	_ = open.Close()
	<-stopped
}

// TestForgotten: a session with a server that is not listed any more goes on, and is not made
// again.
func TestForgotten(t *testing.T) {
	f := newFleet(t, "a", "b")
	a, b := f.servers["a"], f.servers["b"]
	b.join("n", echo)
	a.knows("n", 1)
	a.peers.Set(nil)
	if got, err := a.ask("n:1"); err != nil || got != "n:1\nahoy" {
		t.Errorf("%q, %v", got, err)
	}
	b.kill()
	a.knows("n", 0)
	moved := f.start("b") // as if it had been started again, elsewhere
	a.peers.Set([]Peer{{ID: "b", Addr: moved.addr}})
	moved.join("n", echo)
	a.knows("n", 1)
	if got, err := a.ask("n:1"); err != nil || got != "n:1\nahoy" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestCloneElsewhere: an agent that another one of its identity has superseded at another
// server is superseded at all of them.
func TestCloneElsewhere(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	a, b, c := f.servers["a"], f.servers["b"], f.servers["c"]
	old, err := a.joinAs("n", 1, echo)
	if err != nil {
		t.Fatal(err)
	}
	b.knows("n", 1)
	if _, err := b.joinAs("n", 2, echo); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-old:
		if !errors.Is(err, tunnel.Replaced) {
			t.Fatalf("the older agent's session ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the older agent is not superseded")
	}
	b.knows("n", 0)
	b.await(func() bool { o, _ := b.hub.Observe("n"); return len(o.Superseded) == 1 })
	c.knows("n", 1)
	for id, s := range map[string]*testServer{"a": a, "b": b, "c": c} {
		again, err := s.joinAs("n", 1, echo)
		if err == nil { // c has never had the node, and gets the preferred instance
			select {
			case err = <-again:
			case <-time.After(time.Minute):
			}
		}
		if !errors.Is(err, tunnel.Replaced) {
			t.Errorf("the older agent at %s: %v", id, err)
		}
	}
	for _, s := range []*testServer{a, c} {
		s.knows("n", 1)
		if o := s.peers.owners("n")[0]; o.peer.ID != "b" || o.seen.Instance != 2 {
			t.Errorf("server %s finds %+v", s.id, o.seen)
		}
	}
}

// TestWhoSpeaks: one of all servers reports a node: the one with the newest session, and if
// there is none, the first. All know which servers have a session, and which are silent.
func TestWhoSpeaks(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	a, b, c := f.servers["a"], f.servers["b"], f.servers["c"]
	speaks := func(node, who, at string, also ...string) {
		t.Helper()
		for id, s := range f.servers {
			if o, _ := s.peers.Observe(node); o.Elsewhere != (id != who) || o.Server != at || !slices.Equal(o.Also, also) || o.Unheard != nil {
				t.Errorf("server %s sees of %s: server %q, also %q, elsewhere %v, unheard %q", id, node, o.Server, o.Also, o.Elsewhere, o.Unheard)
			}
		}
	}
	speaks("nobody's", "a", "")
	b.join("n", echo)
	a.knows("n", 1)
	c.knows("n", 1)
	speaks("n", "b", "b")
	c.join("n", echo)
	a.knows("n", 2)
	b.knows("n", 1)
	speaks("n", "c", "c", "b")

	c.kill()
	delete(f.servers, "c")
	for _, s := range f.servers {
		s.await(func() bool { return len(s.peers.Connected()) == 1 })
		o, _ := s.peers.Observe("n")
		if o.Elsewhere != (s == a) || o.Server != "b" || len(o.Also) != 0 || !slices.Equal(o.Unheard, []string{"c"}) {
			t.Errorf("server %s, which cannot hear c: %+v", s.id, o)
		}
	}
	all := []Peer{{ID: "a", Addr: a.addr}, {ID: "b", Addr: b.addr}}
	a.peers.Set(all)
	b.peers.Set(all)
	speaks("n", "b", "b")
	b.hub.End("n", func(tunnel.Peer) bool { return true }, tunnel.Revoked)
	a.knows("n", 0)
	b.await(func() bool { o, _ := b.peers.Observe("n"); return o.State == server.Detached })
	speaks("n", "b", "b")
}

// TestStaleLoses: a server was disconnected from the others, and another instance has
// superseded the agent of its session meanwhile. It closes the session when it gets that, and
// dials to the newer one.
func TestStaleLoses(t *testing.T) {
	f := newFleet(t, "a", "b")
	a, b := f.servers["a"], f.servers["b"]
	apart := f.start("z")
	old, err := apart.joinAs("n", 1, echo)
	if err != nil {
		t.Fatal(err)
	}
	apart.await(func() bool { _, ok := apart.hub.Session("n"); return ok })
	if _, err := b.joinAs("n", 2, echo); err != nil {
		t.Fatal(err)
	}
	a.knows("n", 1)
	before, _ := apart.peers.Observe("n")
	if got, err := apart.ask("n:1"); err != nil || got != "n:1\nahoy" || before.Instance != 1 || before.Elsewhere {
		t.Fatalf("before it hears of others it has its own agent: %q, %v, %+v", got, err, before)
	}
	all := []Peer{{ID: "a", Addr: a.addr}, {ID: "b", Addr: b.addr}, {ID: "z", Addr: apart.addr}}
	for _, s := range f.servers {
		s.peers.Set(all)
	}
	select {
	case err := <-old:
		if !errors.Is(err, tunnel.Replaced) {
			t.Fatalf("the stale session ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the stale session goes on")
	}
	for _, s := range f.servers {
		s.await(func() bool {
			o, _ := s.peers.Observe("n")
			return o.Instance == 2 && o.State == server.Attached && o.Server == "b" && o.Elsewhere == (s != b)
		})
	}
	if got, err := apart.ask("n:1"); err != nil || got != "n:1\nahoy" {
		t.Errorf("through the newer session: %q, %v", got, err)
	}
}

// TestLeave: a server that is about to stop is tried last, answers until it stops, and knows
// when its nodes are connected to others.
func TestLeave(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	a, b, c := f.servers["a"], f.servers["b"], f.servers["c"]
	b.join("n", echo)
	a.knows("n", 1)
	b.peers.Leave()
	b.hub.Leave()
	a.await(func() bool { return a.peers.owners("n")[0].draining })
	if got, err := a.ask("n:1"); err != nil || got != "n:1\nahoy" {
		t.Errorf("while there is no other: %q, %v", got, err)
	}
	if a.peers.Elsewhere("n") {
		t.Error("a node is elsewhere that a server has which leaves")
	}
	c.join("n", echo)
	b.await(func() bool { return b.peers.Elsewhere("n") })
	a.await(func() bool { return a.peers.owners("n")[0].peer.ID == "c" })
}

// TestLeftBefore: a server that starts while another is about to stop is notified, too.
func TestLeftBefore(t *testing.T) {
	f := newFleet(t, "a")
	a := f.servers["a"]
	a.join("n", echo)
	a.peers.Leave()
	b := f.start("b")
	b.peers.Set([]Peer{{ID: "a", Addr: a.addr}})
	b.await(func() bool {
		all := b.peers.owners("n")
		return len(all) == 1 && all[0].draining
	})
}
