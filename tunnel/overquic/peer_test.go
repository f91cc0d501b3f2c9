// Peers that use the bare library and know nothing of this package, well-behaved and not.

package overquic

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// bareTLS is what a peer shows.
func bareTLS(t testing.TB) *tls.Config {
	c := tunneltest.TLS(t)
	c.NextProtos = []string{"hawser-quic/2"}
	return c
}

// bareClient is a peer that has dialed, and our end of the session.
func bareClient(t testing.TB, o tunnel.Options) (*quic.Conn, *session) {
	t.Helper()
	l, accepted := listen(t, o)
	c, err := quic.DialAddr(t.Context(), l.Addr().String(), bareTLS(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.CloseWithError(0, "") })
	return c, (<-accepted).(*session)
}

// bareServer is a peer that was dialed, and our end of the session.
func bareServer(t testing.TB, o tunnel.Options) (*quic.Conn, *session) {
	t.Helper()
	l, err := quic.ListenAddr("127.0.0.1:0", bareTLS(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	o.TLS = tunneltest.TLS(t)
	s, err := Transport().Dial(t.Context(), l.Addr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	c, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c, s.(*session)
}

var bare = map[string]func(testing.TB, tunnel.Options) (*quic.Conn, *session){"client": bareClient, "server": bareServer}

func TestBarePeer(t *testing.T) {
	for name, connect := range bare {
		t.Run(name, func(t *testing.T) {
			c, s := connect(t, tunnel.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()

			theirs, err := c.OpenStreamSync(ctx)
			if err != nil {
				t.Fatal(err)
			}
			talk(t, theirs, func() (tunnel.Stream, error) { return s.Accept(ctx) })
			ours, err := s.Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var accepted *quic.Stream
			talk(t, ours, func() (io.ReadWriteCloser, error) {
				accepted, err = c.AcceptStream(ctx)
				return accepted, err
			})

			// A reset, and that nobody reads any more.
			if ours, err = s.Open(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := ours.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if accepted, err = c.AcceptStream(ctx); err != nil {
				t.Fatal(err)
			}
			accepted.CancelWrite(77)
			if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read of what was reset: %v", err)
			}
			accepted.CancelRead(77)
			for err = nil; err == nil; {
				_, err = ours.Write(make([]byte, 64<<10))
			}
			if !errors.Is(err, syscall.EPIPE) {
				t.Errorf("write of what nobody reads: %v", err)
			}
			_ = ours.Close()

			if err := s.Dismiss(&tunnel.Goodbye{Code: tunnel.Revoked, Text: "go away"}); err != nil {
				t.Error(err)
			}
			<-c.Context().Done()
			var app *quic.ApplicationError
			if err := context.Cause(c.Context()); !errors.As(err, &app) || app.ErrorCode != codeGoodbye|0x11 || app.ErrorMessage != "go away" {
				t.Errorf("the peer was told %v", err)
			}
		})
	}
}

// talk has two ends of a stream say something and end it, one after the other.
func talk[S io.ReadWriteCloser](t *testing.T, near io.ReadWriteCloser, accept func() (S, error)) {
	t.Helper()
	if _, err := near.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	far, err := accept()
	if err != nil {
		t.Fatal(err)
	}
	closeWrite := func(c io.Closer) error { // the bare library's Close is that
		if h, ok := c.(interface{ CloseWrite() error }); ok {
			return h.CloseWrite()
		}
		return c.Close()
	}
	if err := closeWrite(near); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(far); err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := far.Write([]byte("answer")); err != nil {
		t.Error(err)
	}
	if err := far.Close(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(near); err != nil || string(got) != "answer" {
		t.Errorf("read %q, %v", got, err)
	}
	_ = near.Close()
}

// A peer of another protocol, or of none, is told so.
func TestOtherProtocol(t *testing.T) {
	l, _ := listen(t, tunnel.Options{})
	for _, names := range [][]string{{"hawser/1"}, {"h3"}} {
		c := tunneltest.TLS(t)
		c.NextProtos = names
		_, err := quic.DialAddr(t.Context(), l.Addr().String(), c, nil)
		if want := (&quic.TransportError{}); !errors.As(err, &want) || want.ErrorCode != 0x100+120 {
			t.Errorf("%v: %v", names, err)
		}
	}
}

// However fast a peer opens streams, resets them or leaves them alone, no more of them
// wait to be accepted than there may be.
func TestStreamFlood(t *testing.T) {
	const limit = 32
	for _, kind := range []string{"reset", "ended", "left alone"} {
		t.Run(kind, func(t *testing.T) {
			c, s := bareClient(t, tunnel.Options{MaxStreams: limit})
			if _, err := c.OpenUniStream(); err == nil {
				t.Error("opened a stream that goes one way")
			}
			for range limit {
				st, err := c.OpenStream()
				if err != nil {
					t.Fatal(err)
				}
				switch _, _ = st.Write([]byte("x")); kind {
				case "reset":
					st.CancelWrite(1)
					st.CancelRead(1)
				case "ended":
					_ = st.Close()
					st.CancelRead(1)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := c.OpenStreamSync(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("opened more than %d streams that nobody has accepted: %v", limit, err)
			}
			for range limit {
				st, err := s.Accept(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_ = st.Close()
			}
			if kind == "left alone" {
				return // they are open still
			}
			theirs, err := c.OpenStreamSync(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_ = theirs.Close()
		})
	}
}

// A peer that never reads takes what its own windows allow, and holds up a Write no longer
// than its deadline.
func TestNeverReads(t *testing.T) {
	c, s := bareClient(t, tunnel.Options{})
	for range 20 {
		st, err := s.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := st.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := st.Write(make([]byte, 4<<20)); err == nil {
			t.Errorf("a peer that never reads took %d bytes", n)
		}
		_ = tunnel.Abort(st)
	}
	_ = s.Close()
	<-c.Context().Done()
}

// Whatever a peer closes the connection with, it is a loss, and says nothing else.
func TestOddCodes(t *testing.T) {
	for _, code := range []quic.ApplicationErrorCode{0, 1, 2, 0xff, codeGoodbye, 0x200, 0x10111, 1<<62 - 1} {
		c, s := bareClient(t, tunnel.Options{})
		_ = c.CloseWithError(code, strings.Repeat("\xff\n", 400))
		<-s.Context().Done()
		var bye *tunnel.Goodbye
		if err := context.Cause(s.Context()); errors.As(err, &bye) || tunnel.CodeOf(err) != tunnel.Lost || len(err.Error()) > 2*maxReason {
			t.Errorf("code %#x: %v", code, err)
		}
		if _, err := s.Open(t.Context()); tunnel.CodeOf(err) != tunnel.Lost {
			t.Errorf("open: %v", err)
		}
	}
}

// A thousand streams that have come and gone leave no goroutine.
func TestNoGoroutineIsLeft(t *testing.T) {
	a, b := pair(t, tunnel.Options{MaxStreams: 64})
	says(t, a, b)
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 125 {
				st, err := a.Open(t.Context())
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				_, _ = st.Write([]byte("x"))
				_ = st.Close()
			}
		})
	}
	for range 8 * 125 {
		st, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = st.Close()
	}
	wg.Wait()
	await(t, "quiet", func() bool { return runtime.NumGoroutine() <= before })
}
