// Tests of the agent against a server in memory, in synctest's time.

package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerReachesNode(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.echo("10.0.0.7:80")
		h.echo("10.0.0.7:22")
		h.echo("[::1]:8080")
		kubelet := memnet.NewHandoff(tunnel.Addr("node-1:10250"), 1)
		defer kubelet.Close()
		h.start(Config{
			Servers: []string{"hub:1"}, Version: "v1", Kubelet: kubelet,
			Declared: func(a netip.AddrPort) bool { return a.Addr() == netip.MustParseAddr("10.0.0.7") },
			DialDeclared: func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
				if addr.Port() == 22 { // declared, and another's
					return nil, &tunnel.DialError{Addr: addr.String(), Code: tunnel.Denied, Text: "not the pod's"}
				}
				return h.net.Dial(ctx, "tcp", addr.String())
			},
			Allow: targets(t, "localhost:8080"),
		})
		m := next(t, h.sessions)
		if m.hello.Node != "node-1" || m.hello.Sequence != 1 || m.hello.Meta["version"] != "v1" {
			t.Errorf("hello: %+v", m.hello)
		}
		h.group.Go(func() {
			c, err := kubelet.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			echo(c)
		})
		// In the second case the first loopback refuses.
		for _, addr := range []string{"10.0.0.7%node-1:80", "node-1:8080", "node-1:10250"} {
			c, err := tunnel.Connect(t.Context(), m.session, "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			exchangeText(t, c)
		}
		for addr, want := range map[string]tunnel.Code{
			"10.0.0.7:81":           tunnel.Refused, // a pod's, and no process listens
			"10.0.0.7:22":           tunnel.Denied,  // declared by a pod that does not listen
			"10.0.0.8:80":           tunnel.Denied,
			"10.0.0.7%node-2:80":    tunnel.Denied,
			"node-1:22":             tunnel.Denied,
			"169.254.169.254:80":    tunnel.Denied,
			"not an address at all": tunnel.Invalid,
		} {
			_, err := tunnel.Connect(t.Context(), m.session, "tcp", addr)
			if tunnel.CodeOf(err) != want {
				t.Errorf("connect to %s: %v, want %v", addr, err, want)
			}
		}
	})
}

func TestKubeletDoesNotTake(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		kubelet := memnet.NewHandoff(tunnel.Addr("node-1:10250"), 1)
		h.start(Config{Servers: []string{"hub:1"}, Kubelet: kubelet})
		m := next(t, h.sessions)
		refused := make(chan error, 1)
		h.group.Go(func() {
			_, err := tunnel.Connect(t.Context(), m.session, "tcp", "node-1:10250")
			refused <- err
		})
		synctest.Wait()
		select {
		case err := <-refused:
			t.Fatalf("a stream that nobody has taken is answered: %v", err)
		default:
		}
		_ = kubelet.Close() // with the stream in its queue
		if err := next(t, refused); !errors.Is(err, tunnel.Refused) {
			t.Errorf("a stream that nobody took: %v, want Refused", err)
		}
		if _, err := tunnel.Connect(t.Context(), m.session, "tcp", "node-1:10250"); !errors.Is(err, tunnel.Refused) {
			t.Errorf("a closed kubelet API: %v, want Refused", err)
		}
	})
}

// The kubelet of this node is another process. If it is down the dial fails at once; if it
// does not answer, within a second.
func TestKubeletOfAnotherProcess(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		var hangs atomic.Bool
		h.start(Config{
			Servers: []string{"hub:1"}, KubeletAddr: netip.MustParseAddrPort("127.0.0.1:10250"),
			Target: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if hangs.Load() {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				return h.net.Dial(ctx, network, addr)
			},
		})
		m := next(t, h.sessions)
		dial := func() (tunnel.Stream, error) {
			return tunnel.Connect(t.Context(), m.session, "tcp", "node-1:10250")
		}
		if _, err := dial(); !errors.Is(err, tunnel.Refused) {
			t.Errorf("a kubelet that is down: %v, want Refused", err)
		}
		h.echo("127.0.0.1:10250")
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		exchangeText(t, c)
		hangs.Store(true)
		start := time.Now()
		if _, err := dial(); !errors.Is(err, tunnel.Timeout) || time.Since(start) > time.Second {
			t.Errorf("a kubelet that does not answer: %v after %v, want Timeout within a second", err, time.Since(start))
		}
	})
}

func TestTooManyStreams(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.echo("10.0.0.7:80")
		a := h.start(Config{Servers: []string{"hub:1"}, MaxStreams: 2, Allow: targets(t, "10.0.0.0/8")})
		m := next(t, h.sessions)
		// This transport negotiates other limits, as with a server with other
		// settings.
		a.mu.Lock()
		l := a.current
		a.mu.Unlock()
		for range 2 {
			if err := l.streams.enter("x:1"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := tunnel.Connect(t.Context(), m.session, "tcp", "10.0.0.7:80"); !errors.Is(err, tunnel.Busy) {
			t.Errorf("beyond the limit: %v, want Busy", err)
		}
		l.streams.leave()
		c, err := tunnel.Connect(t.Context(), m.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		exchangeText(t, c)
		l.streams.leave()
	})
}

func TestDialContext(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.echo("apiserver:443")
		a := h.start(Config{Servers: []string{"hub:1"}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := a.DialContext(ctx, "tcp", "apiserver:443")
		cancel()
		var de *tunnel.DialError
		if !errors.As(err, &de) || de.Code != tunnel.Timeout || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("dial without a server: %v, want Timeout and why there is no session", err)
		}
		if err := a.Wait(ctx); err == nil {
			t.Error("Wait says that an agent without a server is connected")
		}
		start := time.Now()
		if _, err := a.DialContext(t.Context(), "tcp", "apiserver:443"); tunnel.CodeOf(err) != tunnel.Timeout || time.Since(start) > tunnel.DefaultDialTimeout {
			t.Errorf("dial without a deadline: %v after %v", err, time.Since(start))
		}
		dialed := make(chan net.Conn, 1)
		h.group.Go(func() {
			c, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
			if err != nil {
				t.Error(err)
			}
			dialed <- c
		})
		synctest.Wait()
		defer h.open("hub:1")()
		exchangeText(t, <-dialed)
		if _, err := a.DialContext(t.Context(), "tcp", "apiserver:444"); !errors.Is(err, tunnel.Refused) {
			t.Errorf("dial where nobody listens: %v, want Refused", err)
		}
		a.stop()
		<-a.done
		if _, err := a.DialContext(t.Context(), "tcp", "apiserver:443"); !errors.Is(err, tunnel.Draining) {
			t.Errorf("dial by an agent that has stopped: %v, want Draining", err)
		}
		if err := a.Run(t.Context()); err == nil {
			t.Error("an agent runs twice")
		}
	})
}

// TestDialSpare: pods leave streams for the node.
func TestDialSpare(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.echo("apiserver:443")
		g := h.startGroup(Config{Servers: []string{"hub:1"}, MaxStreams: 16}, 1)
		next(t, h.sessions)
		spare := 0
		for ; spare < 20; spare++ {
			c, err := g.DialSpare(t.Context(), "tcp", "apiserver:443")
			if errors.Is(err, tunnel.Busy) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		if spare < 12 || spare > 14 {
			t.Errorf("%d spare dials of 16 streams", spare)
		}
		c, err := g.DialContext(t.Context(), "tcp", "apiserver:443")
		if err != nil {
			t.Fatalf("after %d spare ones: %v", spare, err)
		}
		exchangeText(t, c)
	})
}

// TestDialSurvivesSession: a dial without an answer at the end of the session is made again
// on the next session.
func TestDialSurvivesSession(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		a := h.start(Config{Servers: []string{"hub:1"}})
		m := next(t, h.sessions)
		var block sync.Once
		asked, release := make(chan struct{}), make(chan struct{})
		ln, err := h.net.Listen(t.Context(), "tcp", "apiserver:443")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		h.group.Go(func() {
			if c, err := ln.Accept(); err == nil {
				echo(c)
			}
		})
		a.mu.Lock()
		session := a.current.session
		a.current.session = &slowSession{Session: session, block: func() {
			block.Do(func() { close(asked); <-release })
		}}
		a.mu.Unlock()
		dialed := make(chan net.Conn, 1)
		h.group.Go(func() {
			c, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
			if err != nil {
				t.Error(err)
			}
			dialed <- c
		})
		<-asked
		if err := m.session.Close(); err != nil {
			t.Fatal(err)
		}
		close(release)
		exchangeText(t, <-dialed)
		if n := h.greetings(); n != 2 {
			t.Errorf("%d sessions, want 2", n)
		}
	})
}

// A slowSession can be blocked in Open.
type slowSession struct {
	tunnel.Session
	block func()
}

func (s *slowSession) Open(ctx context.Context) (tunnel.Stream, error) {
	s.block()
	return s.Session.Open(ctx)
}

func TestState(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		a := h.start(Config{Servers: []string{"hub:1"}})
		synctest.Wait()
		// One attempt, and the first retry at once; the third is up to half a
		// second away.
		if s := a.State(); s.Connected || s.Server != "hub:1" || s.Failures < 2 || tunnel.CodeOf(s.Err) != tunnel.Refused {
			t.Errorf("without a server: %+v", s)
		}
		shut := h.open("hub:1")
		if err := a.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		pass(time.Minute)
		if s := a.State(); !s.Connected || s.Session != 1 || s.Failures != 0 || s.Err != nil || !s.Since.Equal(began) {
			t.Errorf("connected: %+v, since %v", s, began)
		}
		shut()
		synctest.Wait()
		if s := a.State(); s.Connected || !s.Since.Equal(time.Now()) || s.Err == nil {
			t.Errorf("after the server's end: %+v", s)
		}
	})
}

func TestNewChecks(t *testing.T) {
	good := Config{Servers: []string{"hub:1", "hub:2", "hub:1"}, NodeName: "node-1", Transport: new(tunneltest.Exchange).Transport()}
	a, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(a.cfg.Servers); n != 2 {
		t.Errorf("%d servers of two that differ", n)
	}
	for what, spoil := range map[string]func(*Config){
		"server":      func(c *Config) { c.Servers = nil },
		"HOST":        func(c *Config) { c.Servers = []string{"hub"} },
		"port":        func(c *Config) { c.Servers = []string{"hub:0"} },
		"name":        func(c *Config) { c.NodeName = "Node_1" },
		"cannot dial": func(c *Config) { c.Transport = tunnel.Transport{Name: "kite"} },
		"back-off":    func(c *Config) { c.MinBackoff, c.MaxBackoff = time.Minute, time.Second },
	} {
		c := good
		spoil(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("New says %v of a bad %s", err, what)
		}
	}
}
