package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestDialByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		for _, n := range []string{"node-1", "node-2", "node-3"} {
			b.mustConnect(one(n))
		}
		b.hub.SetRoutes("node-1", prefixes("10.0.0.1", "192.168.1.10", "10.244.1.0/24")...)
		b.hub.SetRoutes("node-2", prefixes("192.168.1.10")...)
		b.hub.SetRoutes("absent", prefixes("10.0.0.9")...)
		for _, tc := range []struct {
			addr, want string
			code       tunnel.Code
		}{
			{"node-1:10250", "node-1:10250", 0},
			{"node-3:1", "node-3:1", 0},
			{"10.0.0.1:80", "10.0.0.1:80", 0},
			{"10.244.1.77:80", "10.244.1.77:80", 0},
			{"10.0.0.7%node-2:8080", "10.0.0.7:8080", 0},
			{"192.168.1.10:80", "", tunnel.Ambiguous},
			{"192.168.1.10%node-2:80", "192.168.1.10:80", 0},
			{"node-4:10250", "", tunnel.NoNode},
			{"10.0.0.9:80", "", tunnel.NoNode},
			{"127.0.0.1:6443", "", tunnel.NoNode},
			{"apiserver:443", "", tunnel.NoNode},
			{"nonsense", "", tunnel.Invalid},
		} {
			got, err := b.ask(tc.addr)
			var de *tunnel.DialError
			if got != tc.want || tunnel.CodeOf(err) != tc.code || err != nil && !errors.As(err, &de) {
				t.Errorf("%s: %q, %v", tc.addr, got, err)
			}
		}
		synctest.Wait()
		if n := b.metric("streams"); n != 0 {
			t.Errorf("%v streams are open", n)
		}
		if d, r := b.metric("dials_total"), b.metric("dial_duration_seconds"); d != 12 || r != 6 {
			t.Errorf("%v dials counted, %v of them timed", d, r)
		}
	})
}

// A thousand nodes have one private address. Alone it leads nowhere; with its name beside it
// each node is reached, and no other.
func TestDialByAddressOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 1000
		b := newTestHub(t, Config{})
		for i := range nodes {
			name := fmt.Sprintf("node-%d", i)
			_, err := b.connect(one(name), func(_ context.Context, r *tunnel.Request) {
				if st, err := r.Accept(); err == nil {
					_, _ = io.WriteString(st, name+" dials "+r.Addr) // the dialer gets it
					_ = st.Close()
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			b.hub.SetRoutes(name, prefixes("192.168.1.10")...)
		}
		if got, err := b.ask("192.168.1.10:80"); tunnel.CodeOf(err) != tunnel.Ambiguous {
			t.Errorf("the address alone: %q, %v", got, err)
		}
		for i := range nodes {
			got, err := b.ask(fmt.Sprintf("192.168.1.10%%node-%d:80", i))
			if want := fmt.Sprintf("node-%d dials 192.168.1.10:80", i); got != want || err != nil {
				t.Errorf("%q, %v, want %q", got, err, want)
			}
		}
	})
}

func TestDialErrorsReachTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		_, err := b.connect(one("node-1"), func(_ context.Context, r *tunnel.Request) {
			_ = r.Reject(tunnel.Refused, "dial tcp 127.0.0.1:10250: connect: connection refused")
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.ask("10.1.1.1%node-1:1"); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "dial 10.1.1.1%node-1:1: ") {
			t.Errorf("refused: %v", err)
		}
		if got := testutil.ToFloat64(b.hub.metrics.dials.WithLabelValues("memory", "refused")); got != 1 {
			t.Errorf("refused dials counted: %v", got)
		}
	})
}

func TestSessionsAndChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		waited := make(chan error, 1)
		go func() { waited <- b.hub.Wait(t.Context(), 2) }()
		changed := b.hub.Changed()
		x := b.mustConnect(tunnel.Hello{Node: "b", Instance: 1, Sequence: 1, Meta: tunnel.Meta{"version": "v9"}})
		<-changed
		b.mustConnect(one("a"))
		if err := <-waited; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // the bubble's clock
		c, err := b.hub.DialContext(t.Context(), "tcp", "b:1")
		if err != nil {
			t.Fatal(err)
		}
		all := b.hub.Sessions()
		if len(all) != 2 || all[0].Node != "a" || all[1].Node != "b" || all[1].Version != "v9" ||
			all[1].Streams != 1 || all[0].Streams != 0 || time.Since(all[0].Since) != time.Minute || all[0].Addr == nil {
			t.Errorf("sessions: %+v", all)
		}
		_ = c.Close()
		changed = b.hub.Changed()
		_ = x.session.Close()
		<-changed
		if s, ok := b.hub.Session("b"); ok {
			t.Errorf("still there: %+v", s)
		}
		if s, ok := b.hub.Session("a"); !ok || s.Node != "a" {
			t.Errorf("a: %+v, %v", s, ok)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.hub.Wait(ctx, 2); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 are connected") {
			t.Errorf("wait for one too many: %v", err)
		}
		if n := b.metric("sessions"); n != 1 {
			t.Errorf("sessions metric: %v", n)
		}
	})
}

func TestNewestSessionWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		first := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 1})
		held, err := b.hub.DialContext(t.Context(), "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		second := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2})
		<-first.gone
		var bye *tunnel.Goodbye
		if !errors.As(first.err, &bye) || bye.Code != tunnel.Replaced || !strings.Contains(bye.Text, "the agent reconnected from") {
			t.Errorf("the older session: %v", first.err)
		}
		if _, err := io.ReadAll(held); err == nil {
			t.Error("a stream of the older session came to an orderly end")
		}
		_ = held.Close()
		if got, err := b.ask("n:2"); err != nil || got != "n:2" {
			t.Errorf("%q, %v", got, err)
		}
		// An older session of the same agent that arrives late.
		if _, err := b.connect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 1}, nil); !errors.Is(err, tunnel.Busy) {
			t.Errorf("late session: %v", err)
		}
		select {
		case <-second.gone:
			t.Error("the newest session is gone")
		default:
		}
		synctest.Wait()
		if n := b.metric("sessions"); n != 1 {
			t.Errorf("sessions metric: %v", n)
		}
		if n := b.metric("clones_total"); n != 0 {
			t.Errorf("clones: %v", n)
		}
	})
}

func TestRefusedSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		denied := errors.New("certificate is revoked")
		b := newTestHub(t, Config{
			Identify: func(p tunnel.Peer) (string, error) {
				if p.TLS.ServerName == "stranger" {
					return "", errors.New("not a node's certificate")
				}
				return strings.TrimSuffix(p.TLS.ServerName, "-liar"), nil
			},
			Admit: func(_ context.Context, node string, _ tunnel.Peer) error {
				if node == "revoked" {
					return denied
				}
				return nil
			},
		})
		for node, want := range map[string]string{
			"stranger": "not a node's certificate",
			"n-liar":   `the certificate is for node "n", the agent calls itself "n-liar"`,
			"revoked":  "certificate is revoked",
		} {
			_, err := b.connect(one(node), nil)
			if !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", node, err)
			}
		}
		mute, err := b.exchange.Dial(t.Context(), "hub", tunnel.Options{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		<-mute.Context().Done()
		if d := time.Since(start); d != helloTimeout {
			t.Errorf("an agent without a word was kept for %v", d)
		}
		if n := b.metric("sessions_refused_total"); n != 4 { // the mute one, too
			t.Errorf("refused: %v", n)
		}
	})
}

// A resumption is authorized again.
func TestMayResume(t *testing.T) {
	revoked := map[string]bool{}
	c := Config{
		Listeners: []tunnel.Listener{new(tunneltest.Exchange).Listen("x")},
		Identify: func(p tunnel.Peer) (string, error) {
			if p.TLS == nil {
				return "", errors.New("no certificate")
			}
			return p.TLS.ServerName, nil
		},
		Admit: func(ctx context.Context, node string, _ tunnel.Peer) error {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("asked without a deadline")
			}
			if revoked[node] {
				return errors.New("certificate is revoked")
			}
			return nil
		},
	}
	h, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	peer := tunnel.Peer{TLS: &tls.ConnectionState{ServerName: "n"}}
	if err := h.MayResume(peer); err != nil {
		t.Error(err)
	}
	revoked["n"] = true
	if err := h.MayResume(peer); !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), "certificate is revoked") {
		t.Errorf("revoked: %v", err)
	}
	if err := h.MayResume(tunnel.Peer{}); !errors.Is(err, tunnel.Denied) {
		t.Errorf("nobody: %v", err)
	}
	c.Admit = nil
	if h, err = New(c); err != nil || h.MayResume(peer) != nil {
		t.Errorf("without a policy: %v, %v", err, h.MayResume(peer))
	}
}

// By default the certificate decides.
func TestIdentifyByCertificate(t *testing.T) {
	for _, p := range []tunnel.Peer{{}, {TLS: new(tls.ConnectionState)}} {
		if _, err := identify(p); err == nil {
			t.Error("no certificate: no error")
		}
	}
}

func TestAgentsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := memnet.NewHandoff(memnet.Addr("api"), 1)
		defer api.Close()
		b := newTestHub(t, Config{API: api.Inject})
		x := b.mustConnect(one("n"))
		for _, addr := range []string{"other-node:10250", "127.0.0.1:2379", "apiserver:80", "10.0.0.1:443"} {
			if _, err := tunnel.Connect(t.Context(), x.session, "tcp", addr); !errors.Is(err, tunnel.Denied) {
				t.Errorf("agent dials %s: %v", addr, err)
			}
		}
		near, err := tunnel.Connect(t.Context(), x.session, "tcp", APIServer)
		if err != nil {
			t.Fatal(err)
		}
		far, err := api.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if s, _ := b.hub.Session("n"); far.RemoteAddr() != s.Addr || s.Streams != 1 {
			t.Errorf("remote address %v, session %+v", far.RemoteAddr(), s)
		}
		if _, err := near.Write([]byte("GET")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(far, make([]byte, 3)); err != nil {
			t.Error(err)
		}
		_, _ = far.Close(), near.Close()
		if s, _ := b.hub.Session("n"); s.Streams != 0 {
			t.Errorf("%d streams are open", s.Streams)
		}
	})
}

func TestWithoutAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		x := b.mustConnect(one("n"))
		if _, err := tunnel.Connect(t.Context(), x.session, "tcp", APIServer); !errors.Is(err, tunnel.Refused) {
			t.Errorf("%v", err)
		}
	})
}

// A dial that is lost with its session is made again on the next session, once.
func TestDialSurvivesReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		_, err := b.connect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 1}, func(ctx context.Context, _ *tunnel.Request) {
			<-ctx.Done() // never answers
		})
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() {
			_, err := b.ask("n:1")
			result <- err
		}()
		synctest.Wait()
		b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2})
		if err := <-result; err != nil {
			t.Errorf("dial: %v", err)
		}
	})
}

func TestDrainingAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		x := b.mustConnect(one("n"))
		c, err := b.hub.DialContext(t.Context(), "tcp", "n:1") // else the hub would close it at once
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := x.control.Drain(t.Context(), tunnel.Draining, "stopping"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := b.ask("n:1"); !errors.Is(err, tunnel.Draining) {
			t.Errorf("dial: %v", err)
		}
		if s, _ := b.hub.Session("n"); !s.Draining {
			t.Errorf("session: %+v", s)
		}
	})
}

func TestShutdownDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{DrainTimeout: time.Minute})
		x := b.mustConnect(one("n"))
		c, err := b.hub.DialContext(t.Context(), "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.AfterFunc(20*time.Second, func() {
			if _, err := b.ask("n:1"); !errors.Is(err, tunnel.Draining) {
				t.Errorf("dial while draining: %v", err)
			}
			if _, err := c.Write([]byte("still here")); err != nil {
				t.Errorf("stream while draining: %v", err)
			}
			if n := b.hub.Open(); n != 1 {
				t.Errorf("%d streams are open while draining", n)
			}
			_ = c.Close()
		})
		stopped := make(chan error, 1)
		go func() { stopped <- b.stop() }()
		<-x.control.Draining()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < 20*time.Second || d > 22*time.Second {
			t.Errorf("drained for %v; the stream lasted 20 s", d)
		}
		<-x.gone
		var bye *tunnel.Goodbye
		if !errors.As(x.err, &bye) || bye.Code != tunnel.Draining {
			t.Errorf("agent was told %v", x.err)
		}
	})
}

func TestShutdownIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		for i := range 20 {
			b.mustConnect(one(fmt.Sprintf("n%d", i)))
			c, err := b.hub.DialContext(t.Context(), "tcp", fmt.Sprintf("n%d:1", i))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		start := time.Now()
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < defaultDrainTimeout || d > defaultDrainTimeout+2*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestNewChecks(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("no listeners: no error")
	}
	if _, err := New(Config{Listeners: []tunnel.Listener{new(tunneltest.Exchange).Listen("x")}}); err != nil {
		t.Error(err)
	}
}
