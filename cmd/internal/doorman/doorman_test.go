package doorman

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"

	"github.com/hawser-project/hawser/e2e/await"
	"github.com/hawser-project/hawser/e2e/rogue"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait. It is no measure: what takes this long hangs.
const patience = time.Minute

// A rig is an HTTPS server behind a Doorman, on a network in memory.
type rig struct {
	*Doorman
	t     *testing.T
	roots *x509.CertPool
	conns chan net.Conn
	over  chan struct{}
	log   lines
}

// lines is a log that can be looked at.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), "\n")
}

func (r *rig) Accept() (net.Conn, error) {
	select {
	case c := <-r.conns:
		return c, nil
	case <-r.over:
		return nil, net.ErrClosed
	}
}
func (r *rig) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 99), Port: 6443} }
func (r *rig) Close() error {
	select {
	case <-r.over:
	default:
		close(r.over)
	}
	return nil
}

// serve serves h until the test is over.
func serve(t *testing.T, limit int, h http.HandlerFunc) *rig {
	t.Helper()
	r := &rig{t: t, conns: make(chan net.Conn), over: make(chan struct{})}
	var err error
	if r.Doorman, err = New(Config{Server: "test", Limit: limit, Log: slog.New(slog.NewTextHandler(&r.log, nil))}); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(r.Handler(h))
	_ = s.Listener.Close()
	s.Listener = r.Listener(r)
	s.EnableHTTP2 = true
	s.Config.ReadHeaderTimeout = time.Hour // nobody is closed for being slow
	s.Config.MaxHeaderBytes = 16 << 10
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.StartTLS()
	r.roots = x509.NewCertPool()
	r.roots.AddCert(s.Certificate())
	t.Cleanup(s.Close)
	return r
}

// dial connects from 10.0.0.b.
func (r *rig) dial(b byte) net.Conn {
	r.t.Helper()
	far, near := memnet.Pipe(&net.TCPAddr{IP: net.IPv4(10, 0, 0, b), Port: 1}, r.Addr())
	select {
	case r.conns <- near:
	case <-r.t.Context().Done():
	}
	r.t.Cleanup(func() { _ = far.Close() })
	return far
}

// tls is the configuration of a client.
func (r *rig) tls() *tls.Config { return &tls.Config{RootCAs: r.roots, ServerName: "example.com"} }

// get makes a request over a new connection from 10.0.0.b.
func (r *rig) get(b byte, change func(*http.Request)) (*http.Response, error) {
	r.t.Helper()
	tr := &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return r.dial(b), nil },
		TLSClientConfig:   &tls.Config{RootCAs: r.roots, ServerName: "example.com"},
		ForceAttemptHTTP2: true,
	}
	r.t.Cleanup(tr.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	r.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://server/", nil)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(req)
	}
	resp, err := tr.RoundTrip(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return resp, err
}

// closed is how many connections were, for a reason.
func (r *rig) closed(reason string) int {
	return int(testutil.ToFloat64(r.metrics.closed.WithLabelValues(reason)))
}

// eventually waits for something that nobody announces.
func (r *rig) eventually(what string, is func() bool) {
	r.t.Helper()
	await.True(r.t, patience, what, is)
}

// Ten thousand connections that say nothing, or begin a handshake and do not go on,
// cost the places of one another, and others get in.
func TestTenThousandSlowHandshakes(t *testing.T) {
	const limit, slow = 128, 10_000
	r := serve(t, limit, func(w http.ResponseWriter, req *http.Request) { Seen(req.Context(), true) })
	began := time.Now()
	first, err := rogue.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	for i := range slow {
		c := r.dial(1)
		if i%20 == 0 { // the server answers, which takes a while
			_, _ = c.Write(first)
		}
		if i%1000 == 999 {
			if resp, err := r.get(2, nil); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("after %d slow ones an honest client gets %v", i+1, err)
			}
		}
	}
	if n := r.pending.Count(); n > limit {
		t.Errorf("%d strangers inside", n)
	}
	r.eventually("closed", func() bool { return r.closed(crowded) >= slow-limit })
	// Two for each that has a place, and what ten requests leave behind for a while.
	const few = 2*limit + 200
	r.eventually("few goroutines", func() bool { return runtime.NumGoroutine() <= before+few })
	if n, most := r.log.count(), 1+int(time.Since(began)/time.Minute); n > most {
		t.Errorf("%d lines:\n%s", n, &r.log.buf)
	}
}

// A client that takes back its requests as fast as it makes them is cut off, whether
// the library or the Doorman sees it first, and others are served.
func TestRapidReset(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"slow": func(_ http.ResponseWriter, r *http.Request) {
			Seen(r.Context(), true)
			if r.URL.Path != "/" {
				<-r.Context().Done()
			}
		},
		"stubborn": func(_ http.ResponseWriter, r *http.Request) { // does not mind who is gone
			Seen(r.Context(), true)
			if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && r.URL.Path != "/" {
				<-s.BaseContext(nil).Done()
			}
		},
		"unknown": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/" {
				return
			}
			Seen(r.Context(), false)
			w.Header().Set("Connection", "close") // as the API server does
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var served atomic.Int64
			r := serve(t, 0, func(w http.ResponseWriter, r *http.Request) {
				served.Add(1)
				answer(w, r)
			})
			let := rogue.Reset(r.dial(1), r.tls(), "/slow", 100_000)
			// Who is not known is told that the connection is over (GOAWAY), and what comes
			// afterwards is read and thrown away.
			if n := served.Load(); let && name != "unknown" || n > 10_000 {
				t.Errorf("100,000 requests were taken back over one connection; %d were served", n)
			}
			t.Logf("%d were served", served.Load())
			r.eventually("counted", func() bool { return r.closed(resets)+r.closed(unknown) == 1 })
			if n := r.log.count(); n != 1 {
				t.Errorf("%d lines:\n%s", n, &r.log.buf)
			}
			if resp, err := r.get(2, nil); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("another client: %v", err)
			}
		})
	}
}

// Whatever breaks the rules ends with its connection closed, a number and a line.
func TestMalformed(t *testing.T) {
	for name, attack := range rogue.Malformed() {
		t.Run(name, func(t *testing.T) {
			r := serve(t, 0, func(http.ResponseWriter, *http.Request) {})
			c := r.dial(1)
			_ = c.SetDeadline(time.Now().Add(patience))
			attack(c, r.tls())
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is open")
			}
			r.eventually("counted", func() bool { return r.closed(noRequest) == 1 })
			if n := r.log.count(); n != 1 {
				t.Errorf("%d lines:\n%s", n, &r.log.buf)
			}
			if resp, err := r.get(2, nil); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("another client: %v", err)
			}
		})
	}
}

// What clients do all the time is neither counted nor logged.
func TestHonest(t *testing.T) {
	r := serve(t, 0, func(w http.ResponseWriter, req *http.Request) { Seen(req.Context(), true) })
	for range 3 {
		if _, err := r.get(1, nil); err != nil {
			t.Error(err)
		}
		if _, err := r.get(1, func(req *http.Request) { req.Close = true }); err != nil {
			t.Error(err)
		}
	}
	if n := r.pending.Count(); n != 0 {
		t.Errorf("%d strangers", n)
	}
	_ = r.Close()
	if n := r.log.count(); n != 0 {
		t.Errorf("log: %s", &r.log.buf)
	}
}

// TestManyWatchesEnd: a client that stops in good order takes back all its watches at once, and is
// not blamed for that. One that takes back more than it may have open is.
func TestManyWatchesEnd(t *testing.T) {
	r := serve(t, 10, func(http.ResponseWriter, *http.Request) {})
	for n, want := range map[int]float64{250: 0, resetsSuspect: 1} {
		near, far := net.Pipe()
		defer far.Close()
		c := &conn{Conn: near, d: r.Doorman, leave: func() {}, resets: rate.NewLimiter(0, resetsBurst)}
		c.asked.Store(true)
		c.known.Store(true)
		before := testutil.ToFloat64(r.metrics.closed.WithLabelValues(resets))
		for range n {
			c.reset()
		}
		_ = c.Close()
		if got := testutil.ToFloat64(r.metrics.closed.WithLabelValues(resets)) - before; got != want {
			t.Errorf("after %d: counted %v", n, got)
		}
	}
}
