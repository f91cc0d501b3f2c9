// The harness of the hub's tests: a hub and agents on a network in memory.

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A failing listener returns its errors in turn.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	err := f.errs[0]
	f.errs = f.errs[1:]
	return nil, err
}
func (f *failing) Close() error   { return nil }
func (f *failing) Addr() net.Addr { return memnet.Addr("failing") }

// A testHub is a hub with its network in memory.
type testHub struct {
	t        *testing.T
	hub      *Hub
	exchange *tunneltest.Exchange
	registry *prometheus.Registry
	streams  int           // MaxStreams of new sessions; zero means the default
	log      *bytes.Buffer // read only once the hub has stopped or is idle
	stop     func() error
	wrap     func(tunnel.Stream) tunnel.Stream // the streams that agents open, unless nil

	mu          sync.Mutex     // guards the following
	testSession []*testSession // the hub's ends of the sessions, in the order of Accept
}

// A testListener has sessions that can be parked.
type testListener struct {
	tunnel.Listener
	testHub *testHub
}

func (d *testListener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	return d.Listener.Serve(ctx, func(ctx context.Context, s tunnel.Session) {
		x := &testSession{Session: s, resumed: make(chan struct{}), wrap: d.testHub.wrap}
		close(x.resumed)
		d.testHub.mu.Lock()
		d.testHub.testSession = append(d.testHub.testSession, x)
		d.testHub.mu.Unlock()
		f(ctx, x)
	})
}

// Transport implements tunnel.Listener.
func (d *testListener) Transport() string { return "memory" }

func (d *testListener) Handshakes() tunnel.Handshakes {
	return tunnel.Handshakes{Done: 7, Failed: 5, NoSession: 2, Refused: 3, Underway: 1}
}

// last is the hub's end of the latest session.
func (b *testHub) last() *testSession {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.testSession[len(b.testSession)-1]
}

// A testSession is a session that can be parked by parkFor. While it is parked it opens no
// stream.
type testSession struct {
	tunnel.Session
	wrap    func(tunnel.Stream) tunnel.Stream // each stream that the agent opens, unless nil
	mu      sync.Mutex                        // guards the following
	state   tunnel.LinkState
	tell    func(tunnel.LinkState)
	resumed chan struct{} // closed unless parked
}

func (x *testSession) Link() tunnel.LinkState {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, below := x.state, x.Session.Link()
	s.Streams, s.MaxStreams = below.Streams, below.MaxStreams
	s.Window = tunnel.DefaultDetachWindow
	return s
}

func (x *testSession) Move(context.Context) error { return errors.New("only agents move") }

func (x *testSession) Tell(f func(tunnel.LinkState)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tell = f
}

func (x *testSession) park() { x.parkFor(io.EOF, 0) }

// parkFor parks it with a cause, after a silence.
func (x *testSession) parkFor(cause error, silence time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.state.Parked, x.resumed = time.Now(), make(chan struct{})
	x.state.Cause, x.state.Heard = cause, time.Now().Add(-silence)
	x.state.Parks++
	x.tell(x.state)
}

func (x *testSession) resume() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.state.Parked, x.state.Cause, x.state.Heard = time.Time{}, nil, time.Now()
	x.state.Resumes++
	x.state.Replayed += 100
	close(x.resumed)
	x.tell(x.state)
}

func (x *testSession) Accept(ctx context.Context) (tunnel.Stream, error) {
	st, err := x.Session.Accept(ctx)
	if err == nil && x.wrap != nil {
		st = x.wrap(st)
	}
	return st, err
}

func (x *testSession) Open(ctx context.Context) (tunnel.Stream, error) {
	x.mu.Lock()
	resumed := x.resumed
	x.mu.Unlock()
	select {
	case <-resumed:
		return x.Session.Open(ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func newTestHub(t *testing.T, c Config) *testHub {
	t.Helper()
	b := &testHub{t: t, exchange: new(tunneltest.Exchange), registry: prometheus.NewRegistry(), log: new(bytes.Buffer)}
	c.Listeners = []tunnel.Listener{&testListener{Listener: b.exchange.Listen("hub"), testHub: b}}
	c.Metrics = b.registry
	c.Log = slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if c.Identify == nil {
		c.Identify = func(p tunnel.Peer) (string, error) { return p.TLS.ServerName, nil } // the result of dial below
	}
	var err error
	if b.hub, err = New(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var (
		wg   sync.WaitGroup
		rerr error
	)
	wg.Go(func() { rerr = b.hub.Run(ctx) })
	b.stop = func() error {
		cancel()
		wg.Wait()
		return rerr
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	synctest.Wait()
	return b
}

// metric is the value of a metric with the given labels.
func (b *testHub) metric(name string) float64 {
	b.t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != "hawser_hub_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// A testAgent is a minimal agent.
type testAgent struct {
	session tunnel.Session
	control *tunnel.Control
	err     error // why the session ended
	gone    chan struct{}
	// polite agents wait for the end of their streams before they close the session.
	polite atomic.Bool
}

// dial makes a session without a greeting.
func (b *testHub) dial(node string) (tunnel.Session, error) {
	s, err := b.exchange.Dial(b.t.Context(), "hub", tunnel.Options{TLS: &tls.Config{ServerName: node}, MaxStreams: b.streams})
	if err == nil {
		b.t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// connect connects an agent whose streams are served by serve; nil echoes.
func (b *testHub) connect(h tunnel.Hello, serve func(context.Context, *tunnel.Request)) (*testAgent, error) {
	b.t.Helper()
	s, err := b.dial(h.Node)
	if err != nil {
		return nil, err
	}
	control, _, err := tunnel.Greet(b.t.Context(), s, h)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	if serve == nil {
		serve = echo
	}
	x := &testAgent{session: s, control: control, gone: make(chan struct{})}
	var wg sync.WaitGroup
	life, stop := context.WithCancel(context.WithoutCancel(b.t.Context()))
	served := make(chan struct{})
	wg.Go(func() {
		x.err = control.Run(life, nil)
		stop()
		if x.polite.Load() {
			<-served
		}
		_ = s.Close()
	})
	wg.Go(func() {
		_ = tunneltest.ServeRequests(life, s, serve)
		close(served)
	})
	go func() { wg.Wait(); close(x.gone) }()
	b.t.Cleanup(func() { _ = s.Close(); <-x.gone })
	synctest.Wait()
	return x, nil
}

func (b *testHub) mustConnect(h tunnel.Hello) *testAgent {
	b.t.Helper()
	x, err := b.connect(h, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return x
}

// echo accepts every stream, sends its address, and then sends back what it reads.
func echo(_ context.Context, r *tunnel.Request) {
	st, err := r.Accept()
	if err != nil {
		return
	}
	_, _ = io.WriteString(st, r.Addr+"\n") // the dialer gets it
	_, _ = io.Copy(st, st)
	_ = st.Close()
}

// ask dials and returns the first line.
func (b *testHub) ask(addr string) (string, error) {
	c, err := b.hub.DialContext(b.t.Context(), "tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if c.RemoteAddr().String() != addr {
		b.t.Errorf("remote address %v, want %s", c.RemoteAddr(), addr)
	}
	if err = c.(tunnel.Stream).CloseWrite(); err != nil {
		return "", err
	}
	got, err := io.ReadAll(c)
	return strings.TrimSpace(string(got)), err
}

func one(node string) tunnel.Hello { return tunnel.Hello{Node: node, Instance: 1, Sequence: 1} }
