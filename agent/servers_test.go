// Servers in memory that tests control, and their agents.

package agent

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A welcomed session is the server's end.
type welcomed struct {
	server  string
	hello   tunnel.Hello
	session tunnel.Session
	control *tunnel.Control
	at      time.Time
}

// servers are what the agents of one test connect to.
type servers struct {
	t        *testing.T
	exchange tunneltest.Exchange
	net      tunneltest.Network // targets
	sessions chan *welcomed
	decision func(n int, h tunnel.Hello) error // of the nth greeting, from 1
	opinion  func(name string) error           // of the server of that name, of every greeting
	identity func(name string) string          // of the server of that name; nil means that none says it
	api      func(name string) dialFunc        // how the server of that name reaches targets; nil, also as a result, means by net
	group    sync.WaitGroup

	mu       sync.Mutex // guards the following
	greeted  int
	goodbyes []error // why sessions ended
	path     string  // the route of every agent
	told     []func()
}

// routing is the agents' view of routes: that of the last change.
func (h *servers) routing() routing {
	return routing{
		path: func(netip.Addr) string {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.path
		},
		watch: func(ctx context.Context, changed func()) {
			h.mu.Lock()
			h.told = append(h.told, changed)
			h.mu.Unlock()
			<-ctx.Done()
		},
	}
}

// shift changes the route; an empty path means none.
func (h *servers) shift(path string) {
	h.mu.Lock()
	h.path = path
	told := slices.Clone(h.told)
	h.mu.Unlock()
	for _, f := range told {
		f()
	}
	synctest.Wait()
}

func newServers(t *testing.T) *servers {
	return &servers{t: t, sessions: make(chan *welcomed, 1000), path: "eth0"}
}

// open serves name until shut is called.
func (h *servers) open(name string) (shut func()) {
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

// judge is the answer to the nth greeting, at the server of that name.
func (h *servers) judge(name string, n int, hello tunnel.Hello) (err error) {
	if h.opinion != nil {
		err = h.opinion(name)
	}
	if err == nil && h.decision != nil {
		err = h.decision(n, hello)
	}
	return err
}

func (h *servers) session(ctx context.Context, name string, s tunnel.Session) {
	g, err := tunnel.Await(ctx, s)
	if err != nil {
		return
	}
	h.mu.Lock()
	h.greeted++
	n := h.greeted
	h.mu.Unlock()
	if err := h.judge(name, n, g.Hello); err != nil {
		if rerr := g.Refuse(tunnel.GoodbyeOf(err)); rerr != nil {
			h.t.Error(rerr)
		}
		return
	}
	welcome := tunnel.Welcome{Session: uint64(n)}
	if h.identity != nil {
		welcome.Meta = tunnel.Meta{serverKey: h.identity(name)}
	}
	m := &welcomed{server: name, hello: g.Hello, session: s, at: time.Now(), control: g.Control(welcome)}
	if err := m.control.Welcome(ctx); err != nil {
		if ctx.Err() == nil { // else the test is over
			h.t.Error(err)
		}
		return
	}
	h.sessions <- m
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		err := tunneltest.ServeRequests(ctx, s, func(ctx context.Context, r *tunnel.Request) {
			_, _ = tunnel.Answer(ctx, r, h.reach(name)) // the agent's end is what is tested
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

// reach returns how the server of that name reaches targets.
func (h *servers) reach(name string) dialFunc {
	if h.api != nil {
		if f := h.api(name); f != nil {
			return f
		}
	}
	return h.net.Dial
}

func (h *servers) greetings() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.greeted
}

// echo serves addr until the test ends.
func (h *servers) echo(addr string) {
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

// A log is the log of an agent.
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

// A started agent runs.
type started struct {
	*Agent
	log  *log
	stop func()
	done chan struct{}
}

// start runs an agent until stop is called or the test ends.
func (h *servers) start(c Config) *started {
	h.t.Helper()
	l := new(log)
	if c.NodeName == "" {
		c.NodeName = "node-1"
	}
	if c.Transport.Dial == nil {
		c.Transport = h.exchange.Transport()
	}
	if c.Dial == nil {
		c.Dial = h.net.Dial
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
	a.routing = h.routing()
	ctx, cancel := context.WithCancel(h.t.Context())
	s := &started{Agent: a, log: l, stop: cancel, done: make(chan struct{})}
	h.group.Go(func() {
		defer close(s.done)
		if err := a.Run(ctx); err != nil {
			h.t.Error(err)
		}
	})
	return s
}

// bubble runs f in synctest's time and joins what it started.
func bubble(t *testing.T, f func(t *testing.T, h *servers)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newServers(t)
		t.Cleanup(h.group.Wait) // runs after t.Context is done
		f(t, h)
	})
}

// pass sleeps in the bubble's time.
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

// exchangeText checks that c is connected to an echo.
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
