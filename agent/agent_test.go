// Tests of the agent against a server in memory, in synctest's time.

package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/inproc"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A mooring is one session as a test's server sees it.
type mooring struct {
	server  string
	hello   tunnel.Hello
	session tunnel.Session
	control *tunnel.Control
	at      time.Time
}

// A harbor is what the agents of one test connect to.
type harbor struct {
	t        *testing.T
	exchange inproc.Exchange
	net      memnet.Network // targets
	moored   chan *mooring
	verdict  func(n int, h tunnel.Hello) error // of the nth greeting, from 1
	group    sync.WaitGroup

	mu       sync.Mutex // guards the following
	greeted  int
	goodbyes []error // why sessions ended
}

func newHarbor(t *testing.T) *harbor {
	return &harbor{t: t, moored: make(chan *mooring, 1000)}
}

// open serves name until the function that it returns is called.
func (h *harbor) open(name string) (shut func()) {
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan struct{})
	l := h.exchange.Listen(name)
	h.group.Go(func() {
		defer close(done)
		if err := l.Serve(ctx, func(ctx context.Context, s tunnel.Session) { h.session(ctx, name, s) }); err != nil {
			h.t.Error(err)
		}
	})
	synctest.Wait()
	return func() { cancel(); <-done }
}

func (h *harbor) session(ctx context.Context, name string, s tunnel.Session) {
	g, err := tunnel.Await(ctx, s)
	if err != nil {
		return
	}
	h.mu.Lock()
	h.greeted++
	n := h.greeted
	h.mu.Unlock()
	if h.verdict != nil {
		if err := h.verdict(n, g.Hello); err != nil {
			if rerr := g.Refuse(tunnel.CodeOf(err), err.Error()); rerr != nil {
				h.t.Error(rerr)
			}
			return
		}
	}
	m := &mooring{server: name, hello: g.Hello, session: s, at: time.Now(), control: g.Control(tunnel.Welcome{Session: uint64(n)})}
	if err := m.control.Welcome(); err != nil {
		h.t.Error(err)
		return
	}
	h.moored <- m
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		err := tunnel.Serve(ctx, s, func(ctx context.Context, r *tunnel.Request) {
			_, _ = tunnel.Answer(ctx, r, h.net.Dial) // the agent's end is what is tested
		})
		if err != nil {
			h.t.Error(err)
		}
	})
	err = m.control.Run(ctx, nil)
	h.mu.Lock()
	h.goodbyes = append(h.goodbyes, err)
	h.mu.Unlock()
	if err := s.Close(); err != nil {
		h.t.Error(err)
	}
}

func (h *harbor) greetings() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.greeted
}

// echo serves addr until the test ends.
func (h *harbor) echo(addr string) {
	ln, err := h.net.Listen(h.t.Context(), "tcp", addr)
	if err != nil {
		h.t.Fatal(err)
	}
	context.AfterFunc(h.t.Context(), func() { _ = ln.Close() })
	h.group.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			h.group.Go(func() { echo(c) })
		}
	})
}

func echo(c net.Conn) {
	defer c.Close()
	_, _ = io.Copy(c, c)
	if cw, ok := c.(tunnel.Stream); ok {
		_ = cw.CloseWrite()
	}
}

// A log is what an agent wrote.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines are those that contain text.
func (l *log) lines(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

// A sailing is a running agent.
type sailing struct {
	*Agent
	log  *log
	stop func()
	done chan struct{}
}

// sail runs an agent until stop is called or the test ends.
func (h *harbor) sail(c Config) *sailing {
	h.t.Helper()
	l := new(log)
	if c.NodeName == "" {
		c.NodeName = "node-1"
	}
	if c.Transport.Dial == nil {
		c.Transport = h.exchange.Transport()
	}
	if c.Target == nil {
		c.Target = h.net.Dial
	}
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(l, nil))
	}
	a, err := New(c)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	s := &sailing{Agent: a, log: l, stop: cancel, done: make(chan struct{})}
	h.group.Go(func() {
		defer close(s.done)
		if err := a.Run(ctx); err != nil {
			h.t.Error(err)
		}
	})
	return s
}

// bubble runs f in synctest's time and joins what it started.
func bubble(t *testing.T, f func(t *testing.T, h *harbor)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHarbor(t)
		t.Cleanup(h.group.Wait) // runs after t.Context is done
		f(t, h)
	})
}

// pass lets time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	synctest.Wait()
	select {
	case v := <-c:
		return v
	default:
		t.Fatal("nothing has happened")
		panic("unreachable")
	}
}

// exchangeText checks that c is joined to an echo.
func exchangeText(t *testing.T, c net.Conn) {
	t.Helper()
	defer c.Close()
	if _, err := io.WriteString(c, "ahoy"); err != nil {
		t.Fatal(err)
	}
	if err := c.(tunnel.Stream).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "ahoy" {
		t.Fatalf("echo: %q, %v", got, err)
	}
}

func TestServerReachesNode(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		h.echo("10.0.0.7:80")
		h.echo("[::1]:8080")
		kubelet := tunnel.NewHandoff(tunnel.Addr("node-1:10250"), 1)
		defer kubelet.Close()
		h.sail(Config{
			Servers: []string{"hub:1"}, Version: "v1", Kubelet: kubelet,
			PodIPs: func(ip netip.Addr) bool { return ip == netip.MustParseAddr("10.0.0.7") },
			Allow:  targets(t, "localhost:8080"),
		})
		m := next(t, h.moored)
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
		// The second has the first loopback refuse.
		for _, addr := range []string{"10.0.0.7%node-1:80", "node-1:8080", "node-1:10250"} {
			c, err := tunnel.Connect(t.Context(), m.session, "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			exchangeText(t, c)
		}
		for addr, want := range map[string]tunnel.Code{
			"10.0.0.7:81":           tunnel.Refused, // a pod's, and nobody listens
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
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		kubelet := tunnel.NewHandoff(tunnel.Addr("node-1:10250"), 1)
		h.sail(Config{Servers: []string{"hub:1"}, Kubelet: kubelet})
		m := next(t, h.moored)
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

func TestTooManyStreams(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		h.echo("10.0.0.7:80")
		a := h.sail(Config{Servers: []string{"hub:1"}, MaxStreams: 2, Allow: targets(t, "10.0.0.0/8")})
		m := next(t, h.moored)
		// This transport lets its ends agree on other limits, as a server
		// with its own settings would.
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
	bubble(t, func(t *testing.T, h *harbor) {
		h.echo("apiserver:443")
		a := h.sail(Config{Servers: []string{"hub:1"}})
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

// TestDialSurvivesSession: a dial that waits for its answer when the session
// dies is made again on the next session.
func TestDialSurvivesSession(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		a := h.sail(Config{Servers: []string{"hub:1"}})
		m := next(t, h.moored)
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
		_ = m
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

// A slowSession can be held up in Open.
type slowSession struct {
	tunnel.Session
	block func()
}

func (s *slowSession) Open(ctx context.Context) (tunnel.Stream, error) {
	s.block()
	return s.Session.Open(ctx)
}

func TestState(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		a := h.sail(Config{Servers: []string{"hub:1"}})
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
	good := Config{Servers: []string{"hub:1", "hub:2", "hub:1"}, NodeName: "node-1", Transport: new(inproc.Exchange).Transport()}
	a, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(a.cfg.Servers); n != 2 {
		t.Errorf("%d servers of two that differ", n)
	}
	for what, spoil := range map[string]func(*Config){
		"server":   func(c *Config) { c.Servers = nil },
		"HOST":     func(c *Config) { c.Servers = []string{"hub"} },
		"port":     func(c *Config) { c.Servers = []string{"hub:0"} },
		"name":     func(c *Config) { c.NodeName = "Node_1" },
		"dial":     func(c *Config) { c.Transport.Dial = nil },
		"back-off": func(c *Config) { c.MinBackoff, c.MaxBackoff = time.Minute, time.Second },
	} {
		c := good
		spoil(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("New says %v of a bad %s", err, what)
		}
	}
}
