// Peers that run the bare library and know nothing of us, and peers that mean ill.

package overh2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// bareTLS is the configuration of a bare peer.
func bareTLS(t testing.TB) *tls.Config {
	t.Helper()
	c := tunneltest.TLS(t)
	c.NextProtos, c.ServerName = []string{ALPN}, "server"
	return c
}

func dialBare(t testing.TB, addr string) *tls.Conn {
	t.Helper()
	c, err := (&tls.Dialer{Config: bareTLS(t)}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*tls.Conn)
}

// A bare peer says which session it means, and echoes streams.
type bare struct {
	id     string
	client *http2.ClientConn
	asked  chan struct{} // closed when it has been asked for the ID
	once   sync.Once
}

func (b *bare) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		w.Header().Set(sessionHeader, b.id)
		b.once.Do(func() { close(b.asked) })
		return
	}
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	_, _ = io.Copy(flushing{w}, r.Body)
}

type flushing struct{ http.ResponseWriter }

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	_ = http.NewResponseController(f.ResponseWriter).Flush()
	return n, err
}

// become makes the peer the client on one connection.
func (b *bare) become(t *testing.T, c net.Conn) {
	t.Helper()
	var err error
	if b.client, err = new(http2.Transport).NewClientConn(c); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://hawser/session", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.client.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	id := resp.Header.Get("Hawser-Session")
	if b.id != "" && id != b.id || id == "" {
		t.Errorf("the session is %q, want %q", id, b.id)
	}
	b.id = id
}

// exchanges goes over a stream of either end.
func exchanges(t *testing.T, s tunnel.Session, b *bare) {
	t.Helper()
	const size = 1 << 20
	said := bytes.Repeat([]byte("s"), size)
	ours, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := ours.Write(said)
		if err = errors.Join(err, ours.CloseWrite()); err != nil {
			t.Error(err)
		}
	})
	if got, err := io.ReadAll(ours); err != nil || !bytes.Equal(got, said) {
		t.Errorf("of %d bytes %d came back, %v", size, len(got), err)
	}
	wg.Wait()
	_ = ours.Close()

	wg.Go(func() {
		st, err := s.Accept(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := io.Copy(st, st); err != nil {
			t.Error(err)
		}
		_ = st.Close()
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://hawser/stream", bytes.NewReader(said))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.client.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, said) {
		t.Errorf("bare peer: of %d bytes %d came back, %v", size, len(got), err)
	}
	_ = resp.Body.Close()
	wg.Wait()
}

func TestBareDialer(t *testing.T) {
	addr, sessions := tunneltest.ListenTCP(t, Transport(), tunnel.Options{})
	s, b := dialedBare(t, addr, sessions)
	exchanges(t, s, b)
	_ = b.client.Close()
	<-s.Context().Done()
	if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) || errors.Is(err, io.EOF) {
		t.Errorf("cause: %v", err)
	}
}

// dialedBare is a session whose dialing end is bare.
func dialedBare(t *testing.T, addr string, sessions <-chan tunnel.Session) (tunnel.Session, *bare) {
	t.Helper()
	b := &bare{asked: make(chan struct{})}
	b.become(t, dialBare(t, addr))
	serveBare(t, b, dialBare(t, addr))
	return <-sessions, b
}

// serveBare has the peer be the server on a connection until the test is over.
func serveBare(t *testing.T, b *bare, c net.Conn) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() { new(http2.Server).ServeConn(c, &http2.ServeConnOpts{Handler: b}) })
	t.Cleanup(func() {
		_ = c.Close()
		wg.Wait()
	})
}

func TestBareListener(t *testing.T) {
	ln, err := tls.Listen("tcp", "127.0.0.1:0", bareTLS(t))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	type result struct {
		s   tunnel.Session
		err error
	}
	dialed := make(chan result, 1)
	go func() {
		s, err := Dial(t.Context(), ln.Addr().String(), tunnel.Options{TLS: tunneltest.TLS(t)})
		dialed <- result{s, err}
	}()
	b := &bare{id: "anything", asked: make(chan struct{})}
	for i := range 2 {
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.(*tls.Conn).HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			serveBare(t, b, c)
		} else {
			b.become(t, c)
		}
	}
	r := <-dialed
	if r.err != nil {
		t.Fatal(r.err)
	}
	exchanges(t, r.s, b)
	_ = r.s.Close()
}

// A peer that opens more streams than may wait is told so, and the session lives on.
func TestFloodOfStreams(t *testing.T) {
	addr, sessions := tunneltest.ListenTCP(t, Transport(), tunnel.Options{})
	s, b := dialedBare(t, addr, sessions)
	ctx, cancel := context.WithCancel(t.Context())
	refused := make(chan int)
	var wg sync.WaitGroup
	for range backlog + 10 {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://hawser/stream", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := b.client.RoundTrip(req)
			if err == nil {
				_ = resp.Body.Close()
				refused <- resp.StatusCode
			}
		})
	}
	for range 10 {
		if code := <-refused; code != http.StatusServiceUnavailable {
			t.Errorf("status %d", code)
		}
	}
	cancel()
	wg.Wait()
	for range backlog {
		st, err := s.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = st.Close()
	}
	exchanges(t, s, b)
}

// Peers that break the protocol get no session.
func TestUnruly(t *testing.T) {
	addr, sessions := tunneltest.ListenTCP(t, Transport(), tunnel.Options{})
	for name, says := range map[string][]byte{
		"HTTP/1.1":       []byte("POST /stream HTTP/1.1\r\nHost: x\r\n\r\n"),
		"not a client":   []byte("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"),
		"not settings":   append([]byte{0, 0, 0, 8, 0, 0, 0, 0, 1}, make([]byte, 64)...),
		"a huge frame":   append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0),
		"not our server": {0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 7, 0, 0, 0, 0, 0},
	} {
		c := dialBare(t, addr)
		if _, err := c.Write(says); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name == "not our server" {
			_ = c.CloseWrite()
		}
		_, _ = io.Copy(io.Discard, c) // until it is cut off
	}
	select {
	case <-sessions:
		t.Error("a session came about")
	default:
	}
	s, b := dialedBare(t, addr, sessions)
	exchanges(t, s, b)
}

// A second connection must name a session that waits, and a session takes one.
func TestSecondOfNoSession(t *testing.T) {
	addr, sessions := tunneltest.ListenTCP(t, Transport(), tunnel.Options{})
	s, b := dialedBare(t, addr, sessions)
	for _, id := range []string{b.id, "guessed", ""} {
		c := dialBare(t, addr)
		new(http2.Server).ServeConn(c, &http2.ServeConnOpts{Handler: &bare{id: id, asked: make(chan struct{})}}) // until it is cut off
	}
	exchanges(t, s, b)
}

// A session is found by its identity alone, and those that wait are few.
func TestHalves(t *testing.T) {
	l := &listener{waiting: make(map[string]*session)}
	for i := range maxWaitingOfIdentity + 1 {
		h := &session{id: string(rune('a' + i)), identity: "one"}
		if err := l.addWaiting(h); (err != nil) != (i == maxWaitingOfIdentity) || err != nil && !errors.Is(err, tunnel.Busy) {
			t.Errorf("half %d: %v", i, err)
		}
	}
	if l.takeWaiting("a", "other") != nil {
		t.Error("found by another identity")
	}
	if l.takeWaiting("a", "one") == nil || l.takeWaiting("a", "one") != nil {
		t.Error("not found once")
	}
	if err := l.addWaiting(&session{id: "z", identity: "one"}); err != nil {
		t.Errorf("after one was found: %v", err)
	}
	for i := len(l.waiting); i < maxWaiting; i++ {
		l.waiting[time.Duration(i).String()] = new(session)
	}
	if err := l.addWaiting(&session{id: "y", identity: "two"}); !errors.Is(err, tunnel.Busy) {
		t.Errorf("one more than all: %v", err)
	}
}

// The opener may end its direction alone, for as long as it likes; when the accepting
// end does, it has said all.
func TestHalfClose(t *testing.T) {
	a, b := tunneltest.OverTCP(Transport())(t, tunnel.Options{})
	near, far := open(t, a, b)
	if err := near.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(far); err != nil || len(got) != 0 {
		t.Errorf("read %q, %v", got, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := far.Write(make([]byte, 4<<20))
		if err = errors.Join(err, far.CloseWrite()); err != nil {
			t.Error(err)
		}
	})
	if got, err := io.ReadAll(near); err != nil || len(got) != 4<<20 {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	wg.Wait()
	near, far = open(t, a, b)
	_, err := far.Write([]byte("all"))
	if err = errors.Join(err, far.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(near); err != nil || string(got) != "all" {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("what the peer would have said: %v", err)
	}
	_, _ = a.Close(), b.Close()
}

func open(t *testing.T, a, b tunnel.Session) (near, far tunnel.Stream) {
	t.Helper()
	near, err := a.Open(t.Context())
	if err == nil {
		far, err = b.Accept(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

// A lost connection is not the end of its streams, and the session ends with either.
func TestLostIsNoEOF(t *testing.T) {
	for _, which := range []string{"first", "second"} {
		a, b := tunneltest.OverTCP(Transport())(t, tunnel.Options{})
		near, far := open(t, a, b)
		back, forth := open(t, b, a)
		for _, st := range []tunnel.Stream{near, far, back, forth} {
			if _, err := st.Write([]byte("half a sente")); err != nil {
				t.Fatal(err)
			}
		}
		if which == "first" {
			_ = a.(*session).client.Close()
		} else {
			_ = b.(*session).client.Close()
		}
		<-a.Context().Done()
		<-b.Context().Done()
		for _, st := range []tunnel.Stream{near, far, back, forth} {
			if got, err := io.ReadAll(st); err == nil {
				t.Errorf("%s connection lost: read %q and an orderly end", which, got)
			}
		}
		for _, s := range []tunnel.Session{a, b} {
			if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) || errors.Is(err, io.EOF) {
				t.Errorf("cause: %v", err)
			}
		}
	}
}

// Streams that come and go leave no goroutine.
func TestComeAndGo(t *testing.T) {
	a, b := tunneltest.OverTCP(Transport())(t, tunnel.Options{})
	before := runtime.NumGoroutine()
	for range 1000 {
		near, far := open(t, a, b)
		_, _ = near.Close(), far.Close()
	}
	for deadline := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before+5; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
	_, _ = a.Close(), b.Close()
}

// A session whose peer has fallen silent ends.
func TestSilence(t *testing.T) {
	a, b, relay := tunneltest.OverRelay(Transport())(t, tunnel.Options{Link: tunnel.LinkOptions{Keepalive: 50 * time.Millisecond}})
	near, far := open(t, a, b)
	relay.Stall(true)
	for _, s := range []tunnel.Session{a, b} {
		<-s.Context().Done()
		if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Dead) {
			t.Errorf("cause: %v", err)
		}
	}
	for _, st := range []tunnel.Stream{near, far} {
		if _, err := st.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("read: %v", err)
		}
	}
}

// A peer that never reads costs what its window and the pair in memory hold, and a
// deadline ends the wait; Close does not wait for it.
func TestPeerNeverReads(t *testing.T) {
	a, b := tunneltest.OverTCP(Transport())(t, tunnel.Options{})
	near, far := open(t, a, b)
	for _, st := range []tunnel.Stream{near, far} {
		_ = st.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := io.Copy(st, endless{})
		if !errors.Is(err, os.ErrDeadlineExceeded) || n > 2*streamWindow {
			t.Errorf("%d bytes, %v", n, err)
		}
		_ = st.Close()
	}
	_, _ = a.Close(), b.Close()
}

// endless is an endless source.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// What the Intake grants to the windows of connections it has back when they are gone.
func TestWindowsAreGranted(t *testing.T) {
	intake := tunnel.NewIntake(1 << 30)
	a, b := tunneltest.OverTCP(Transport())(t, tunnel.Options{Intake: intake})
	// Two connections, each with a window at either end.
	if got := intake.Granted(); got < 4*streamWindow || got > 4*headroom {
		t.Errorf("%d bytes are granted", got)
	}
	_, _ = a.Close(), b.Close() // neither ever fails
	if got := intake.Granted(); got != 0 {
		t.Errorf("%d bytes are granted to nobody", got)
	}
	poor := tunnel.NewIntake(1 << 20)
	a, b = tunneltest.OverTCP(Transport())(t, tunnel.Options{Intake: poor})
	near, far := open(t, a, b)
	said := make(chan error, 1)
	go func() {
		_, err := io.CopyN(near, endless{}, 1<<20)
		said <- err
	}()
	if _, err := io.CopyN(io.Discard, far, 1<<20); err != nil {
		t.Error(err)
	}
	if err := <-said; err != nil {
		t.Error(err)
	}
	if got := poor.Granted(); got != 0 {
		t.Errorf("%d bytes are granted of nothing", got)
	}
}
