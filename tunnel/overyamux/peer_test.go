// Peers that run the bare library and know nothing of us, and peers that mean ill.

package overyamux

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// quiet is the library's configuration for a bare peer.
func quiet() *yamux.Config {
	c := yamux.DefaultConfig()
	c.LogOutput = io.Discard
	return c
}

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

// accepted is the accepting end of a session, and its peer's connection.
func accepted(t testing.TB, o tunnel.Options) (tunnel.Session, *tls.Conn) {
	t.Helper()
	addr, sessions := tunneltest.ListenTCP(t, Transport(), o)
	c := dialBare(t, addr)
	return <-sessions, c
}

// exchange has each end say something to its end, and hear it.
func exchange(t *testing.T, ours tunnel.Stream, theirs *yamux.Stream) {
	t.Helper()
	question, answer := bytes.Repeat([]byte("q"), 1<<20), bytes.Repeat([]byte("a"), 1<<20)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, err := theirs.Write(question)
		if err = errors.Join(err, theirs.Close()); err != nil { // of its direction
			t.Errorf("bare peer: %v", err)
		}
	})
	if got, err := io.ReadAll(ours); err != nil || !bytes.Equal(got, question) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	wg.Go(func() {
		_, err := ours.Write(answer)
		if err = errors.Join(err, ours.Close()); err != nil {
			t.Error(err)
		}
	})
	if got, err := io.ReadAll(theirs); err != nil || !bytes.Equal(got, answer) {
		t.Errorf("bare peer read %d bytes, %v", len(got), err)
	}
}

// exchanges goes over a stream of either end.
func exchanges(t *testing.T, s tunnel.Session, bare *yamux.Session) {
	t.Helper()
	theirs, err := bare.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := s.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, ours, theirs)
	if ours, err = s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if theirs, err = bare.AcceptStream(); err != nil {
		t.Fatal(err)
	}
	exchange(t, ours, theirs)
	if _, err := bare.Ping(); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestBareClient(t *testing.T) {
	s, c := accepted(t, tunnel.Options{})
	bare, err := yamux.Client(c, quiet())
	if err != nil {
		t.Fatal(err)
	}
	exchanges(t, s, bare)
	_ = bare.Close()
	<-s.Context().Done()
	if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) {
		t.Errorf("cause: %v", err)
	}
}

func TestBareServer(t *testing.T) {
	conf := bareTLS(t)
	ln, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	sessions := make(chan *yamux.Session, 1)
	go func() {
		defer close(sessions)
		if c, err := ln.Accept(); err == nil {
			bare, _ := yamux.Server(c, quiet()) // which the test finds out
			sessions <- bare
		}
	}()
	s, err := Dial(t.Context(), ln.Addr().String(), tunnel.Options{TLS: tunneltest.TLS(t)})
	if err != nil {
		t.Fatal(err)
	}
	bare := <-sessions
	exchanges(t, s, bare)
	_, _ = s.Close(), bare.Close()
}

// A peer that opens streams for ever: some wait, the others are reset, and the session
// lives on.
func TestFloodOfStreams(t *testing.T) {
	s, c := accepted(t, tunnel.Options{})
	conf := quiet()
	conf.AcceptBacklog = 1 << 20 // it does not wait
	bare, err := yamux.Client(c, conf)
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	for range 10 * backlog {
		st, err := bare.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
	}
	if _, err := bare.Ping(); err != nil { // by then it has seen them all
		t.Fatal(err)
	}
	if n := s.(*session).mux.NumStreams(); n != backlog {
		t.Errorf("%d streams wait to be accepted, want %d", n, backlog)
	}
	for range backlog {
		if _, err := s.Accept(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Open(t.Context()); err != nil {
		t.Errorf("open: %v", err)
	}
}

// Of the peer's streams this end has at most so many at a time.
func TestAcceptIsBounded(t *testing.T) {
	s, c := accepted(t, tunnel.Options{MaxStreams: 1})
	bare, err := yamux.Client(c, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	var last tunnel.Stream
	var theirs *yamux.Stream
	for range 1 + backlog {
		if theirs, err = bare.OpenStream(); err == nil {
			last, err = s.Accept(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err = bare.OpenStream(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one more: %v", err)
	}
	_, _ = last.Close(), theirs.Close()
	if _, err := s.Accept(t.Context()); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
}

// Peers that break the protocol are cut off.
func TestUnruly(t *testing.T) {
	ping := []byte{0, typePing, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}
	opened := []byte{0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}
	for name, says := range map[string][]byte{
		"nonsense":             []byte("GET / HTTP/1.1\r\n\r\n"),
		"a flood of pings":     bytes.Repeat(ping, maxPings+1),
		"a stream twice":       append(bytes.Clone(opened), opened...),
		"more than the window": append(bytes.Clone(opened), 0, typeData, 0, 0, 0, 0, 0, 1, 0x7f, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			s, c := accepted(t, tunnel.Options{})
			if _, err := c.Write(says); err != nil {
				t.Fatal(err)
			}
			<-s.Context().Done()
			if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) {
				t.Errorf("cause: %v", err)
			}
		})
	}
}

// The guard finds the frames however they are cut.
func TestGuardInPieces(t *testing.T) {
	data := append([]byte{0, typeData, 0, 0, 0, 0, 0, 1, 0, 0, 0, 24}, bytes.Repeat([]byte{0, typePing}, 12)...)
	for size := 1; size < 40; size++ {
		g := newGuard(nil, tunnel.NewIntake(0))
		for p := bytes.Repeat(data, 2*maxPings); len(p) > 0; {
			n := min(size, len(p))
			if err := g.parse(&g.in, p[:n], false); err != nil {
				t.Fatalf("pieces of %d bytes: %v", size, err)
			}
			p = p[n:]
		}
	}
}

// ends are both of a session over memory, with a configuration of the library's.
func ends(t *testing.T, change func(*yamux.Config)) (dialer, accepter *session, c *memnet.Conn) {
	t.Helper()
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	make := func(c net.Conn, start startFunc) *session {
		conf := config(tunnel.Options{})
		change(conf)
		s, err := newSession(c, tunnel.Peer{Addr: c.RemoteAddr()}, start, conf, tunnel.Options{MaxStreams: 10})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	return make(a, yamux.Client), make(b, yamux.Server), a
}

func open(t *testing.T, a, b *session) (near, far tunnel.Stream) {
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

// Whoever goes on writing to a stream that is closed is told at last, and a stream that
// is half-closed for too long does not look complete.
func TestCloseTimeout(t *testing.T) {
	a, b, _ := ends(t, func(c *yamux.Config) { c.StreamCloseTimeout = 20 * time.Millisecond })
	near, far := open(t, a, b)
	_ = near.Close()
	if _, err := io.Copy(far, endless{}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("writing to a closed stream: %v", err)
	}
	near, far = open(t, a, b)
	_ = near.CloseWrite()
	if got, err := io.ReadAll(far); err != nil || len(got) != 0 {
		t.Errorf("after CloseWrite the peer read %q, %v", got, err)
	}
	if _, err := io.ReadAll(near); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a stream that was half-closed for too long: read %v", err)
	}
	// The library takes a FIN of the peer for a breach until it has forgotten the stream, and
	// only then resets it.
	if _, err := io.Copy(far, endless{}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("writing to a stream that was half-closed for too long: %v", err)
	}
	_, _ = near.Close(), far.Close()
	open(t, a, b)
}

// A stream that the peer gave up does not hold a target that goes on saying nothing.
func TestGivenUpBesideSilentTarget(t *testing.T) {
	a, b, _ := ends(t, func(c *yamux.Config) { c.StreamCloseTimeout = 20 * time.Millisecond })
	near, far := open(t, a, b)
	target, silent := memnet.Pipe(memnet.Addr("target"), memnet.Addr("silent"))
	spliced := make(chan error, 1)
	go func() {
		_, err := tunnel.Splice(t.Context(), &tunnel.Tap{Conn: far}, target)
		spliced <- err
	}()
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-spliced:
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("spliced: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the target is held")
		_ = silent.Close()
		<-spliced
	}
}

// A lost session is not the end of its streams, except of those that had ended.
func TestLostIsNoEOF(t *testing.T) {
	a, b, c := ends(t, func(*yamux.Config) {})
	near, far := open(t, a, b)
	ended, other := open(t, a, b)
	_, err := far.Write([]byte("half a sente"))
	if err = errors.Join(err, other.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if _, err := ended.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // nothing else will do
		t.Errorf("an ended stream: %v", err)
	}
	if _, err := io.ReadFull(near, make([]byte, 6)); err != nil {
		t.Error(err)
	}
	_ = c.Abort()
	<-a.Context().Done()
	if got, err := io.ReadAll(near); string(got) != " sente" || !errors.Is(err, tunnel.Lost) {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := near.Write([]byte("x")); !errors.Is(err, tunnel.Lost) {
		t.Errorf("write: %v", err)
	}
	if _, err := a.Open(t.Context()); !errors.Is(err, tunnel.Lost) {
		t.Errorf("open: %v", err)
	}
}

// A session whose peer has fallen silent ends, whether there is something to say or not.
func TestSilence(t *testing.T) {
	for _, busy := range []bool{false, true} {
		a, _, c := ends(t, func(c *yamux.Config) {
			c.KeepAliveInterval, c.ConnectionWriteTimeout = 20*time.Millisecond, 50*time.Millisecond
			if busy {
				c.EnableKeepAlive = false
			}
		})
		near, err := a.Open(t.Context()) // or the machine was so busy that a has found b silent already
		c.Stall(true)
		if busy {
			if err == nil {
				_, err = io.Copy(near, endless{})
			}
			if !errors.Is(err, tunnel.Dead) {
				t.Errorf("write: %v", err)
			}
		}
		<-a.Context().Done()
		if err := context.Cause(a.Context()); !errors.Is(err, tunnel.Dead) {
			t.Errorf("busy %t: %v", busy, err)
		}
	}
}

// TestHalfCloseWithoutRoom: a session ends if its connection does not take the end of a stream in
// time. The library drops it, and tells nobody.
func TestHalfCloseWithoutRoom(t *testing.T) {
	for name, end := range map[string]func(tunnel.Stream) error{"half-close": tunnel.Stream.CloseWrite, "close": tunnel.Stream.Close} {
		a, b, _ := ends(t, func(*yamux.Config) {})
		near, _ := open(t, a, b)
		a.writeTimeout = 0 // any time is too long
		if err := end(near); !errors.Is(err, tunnel.Dead) || !errors.Is(context.Cause(a.Alive()), tunnel.Dead) {
			t.Errorf("%s: %v; the session: %v", name, err, context.Cause(a.Alive()))
		}
	}
}

// A peer that never reads costs a window, and a deadline ends the wait.
func TestPeerNeverReads(t *testing.T) {
	a, b, _ := ends(t, func(*yamux.Config) {})
	near, _ := open(t, a, b)
	_ = near.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	n, err := io.Copy(near, endless{})
	if !errors.Is(err, os.ErrDeadlineExceeded) || n > 256<<10 {
		t.Errorf("%d bytes, %v", n, err)
	}
	near, _ = open(t, a, b)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.Copy(near, endless{}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write during Close: %v", err)
		}
	})
	_ = near.Close()
	wg.Wait()
}

// Streams that come and go leave no goroutine.
func TestComeAndGo(t *testing.T) {
	a, b, _ := ends(t, func(*yamux.Config) {})
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
}

// The library's words are for those who look for a fault.
func TestSaysWhy(t *testing.T) {
	s, c := accepted(t, tunnel.Options{})
	_ = c.Close()
	<-s.Context().Done()
	if err := context.Cause(s.Context()); !strings.Contains(err.Error(), "peer closed the connection") || errors.Is(err, io.EOF) {
		t.Errorf("cause: %v", err)
	}
}

// endless is an endless source.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
