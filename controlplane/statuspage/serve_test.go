package statuspage

// Tests of the stream, over HTTP on a pipe and in virtual time.

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A pipes listener is dialed in memory. What nobody reads is not written.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// A reader is a viewer at the other end.
type reader struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Reader
	resp  *http.Response
}

// serve serves p until the test ends.
func serve(t *testing.T, p *Page) *pipes {
	t.Helper()
	l := &pipes{make(chan net.Conn), make(chan struct{})}
	s := &http.Server{Handler: p.Handler("/status/")}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return l
}

// open asks for the fleet.
func (l *pipes) open(t *testing.T) *reader {
	t.Helper()
	near, far := net.Pipe()
	l.conns <- far
	t.Cleanup(func() { near.Close() })
	if _, err := near.Write([]byte("GET /status/fleet HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	return &reader{t: t, conn: near, lines: bufio.NewReader(near)}
}

// head reads the answer's head.
func (r *reader) head() int {
	r.t.Helper()
	resp, err := http.ReadResponse(r.lines, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.resp, r.lines = resp, bufio.NewReader(resp.Body)
	return resp.StatusCode
}

// next reads a line; nil is the end.
func (r *reader) next() *message {
	text, err := r.lines.ReadBytes('\n')
	if err != nil {
		return nil
	}
	m := new(message)
	if err := json.Unmarshal(text, m); err != nil {
		r.t.Fatal(err)
	}
	return m
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestPage()
		for i := range maxRows + 1 {
			p.set(testNode("node-"+strings.Repeat("x", i), "", yes))
		}
		r := serve(t, p).open(t)
		if r.head() != http.StatusOK || r.resp.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Fatalf("%s %v", r.resp.Status, r.resp.Header)
		}
		one, two := r.next(), r.next()
		if !one.Reset || two.Reset || len(one.Rows) != maxRows || len(two.Rows) != 1 || two.Nodes != maxRows+1 {
			t.Errorf("%d and %d rows of %d", len(one.Rows), len(two.Rows), two.Nodes)
		}
		began := time.Now()
		if m := r.next(); len(m.Rows) > 0 || time.Since(began) < quiet-time.Second || time.Since(began) > quiet+time.Second {
			t.Errorf("after %v of quiet it says %+v", time.Since(began), m)
		}
		p.set(testNode("node-", "", no))
		if m := r.next(); len(m.Rows) != 1 || time.Since(began) > quiet+3*time.Second {
			t.Errorf("a change is told after %v: %+v", time.Since(began), m)
		}
		for r.next() != nil {
		}
		if d := time.Since(began); d < maxLifetime-time.Second || d > maxLifetime+time.Second {
			t.Errorf("the request ends after %v", d)
		}
	})
}

// A quiet stream lives as long over HTTP/2.
func TestStreamOverHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestPage()
		l := &pipes{make(chan net.Conn), make(chan struct{})}
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		s := &http.Server{Handler: p.Handler("/status/"), Protocols: protocols}
		go s.Serve(l)
		defer s.Close()
		c := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			l.conns <- far
			return near, nil
		}}
		defer c.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://page/status/fleet", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.RoundTrip(req)
		if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		defer resp.Body.Close()
		began := time.Now()
		r := &reader{t: t, lines: bufio.NewReader(resp.Body)}
		for r.next() != nil {
		}
		if d := time.Since(began); d < maxLifetime-time.Second || d > maxLifetime+time.Second {
			t.Errorf("the request ends after %v", d)
		}
	})
}

// Viewers are told that the last session has ended.
func TestLastSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestPage()
		p.set(testNode("a", "", yes))
		p.take([]Sample{{Node: "a", RTT: time.Millisecond, Streams: 2}})
		r := serve(t, p).open(t)
		r.head()
		if m := r.next(); len(m.Rows) != 1 || m.Rows[0].Streams != 2 {
			t.Fatalf("%+v", m)
		}
		began := time.Now()
		p.take(nil)
		if m := r.next(); m.Live == nil || len(m.Live) != 0 || time.Since(began) > 2*time.Second {
			t.Errorf("after %v it says %+v", time.Since(began), m)
		}
	})
}

// One more than may is refused, and one who does not read makes place.
func TestViewersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestPage()
		p.set(testNode("a", "", yes))
		l := serve(t, p)
		stalled := l.open(t)
		for range maxViewers - 1 {
			r := l.open(t)
			if status := r.head(); status != http.StatusOK {
				t.Fatalf("a viewer gets %d", status)
			}
			go func() {
				for r.next() != nil {
				}
			}()
		}
		synctest.Wait()
		if r := l.open(t); r.head() != http.StatusTooManyRequests || r.resp.Header.Get("Retry-After") == "" {
			t.Errorf("one too many gets %s", r.resp.Status)
		}
		time.Sleep(writeTimeout + lookPeriod)
		synctest.Wait()
		if len(p.viewers) != maxViewers-1 {
			t.Errorf("%d viewers are left", len(p.viewers))
		}
		if r := l.open(t); r.head() != http.StatusOK {
			t.Errorf("the next one gets %s", r.resp.Status)
		}
		stalled.conn.Close()
	})
}

func TestRunEndsViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestPage()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		r := serve(t, p).open(t)
		r.head()
		r.next()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for r.next() != nil {
		}
		synctest.Wait()
		if len(p.viewers) != 0 {
			t.Errorf("%d viewers are left", len(p.viewers))
		}
	})
}

func TestHeaders(t *testing.T) {
	p, _ := newTestPage()
	close(p.closed)
	for path, want := range map[string]string{
		"/hawser/status/": "text/html", "/hawser/status/page.js": "text/javascript", "/hawser/status/page.css": "text/css",
		"/hawser/status/fleet": "", "/hawser/status/none": "text/plain",
	} {
		w := httptest.NewRecorder()
		p.Handler("/hawser/status/").ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		h := w.Header()
		if got := h.Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") || !strings.Contains(got, "frame-ancestors 'none'") || strings.Contains(got, "unsafe") {
			t.Errorf("%s: policy %q", path, got)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Frame-Options") != "DENY" || w.Code == http.StatusOK && h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", path, h)
		}
		if got := h.Get("Content-Type"); want != "" && !strings.HasPrefix(got, want) {
			t.Errorf("%s is %s", path, got)
		}
	}
	w := httptest.NewRecorder()
	p.Handler("/hawser/status/").ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/hawser/status/fleet", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}
