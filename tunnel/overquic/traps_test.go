// What the suite does not know: what QUIC would do by itself.

package overquic

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A Write that Close has cut short does not look complete.
func TestCutWriteIsReset(t *testing.T) {
	a, b := pair(t, tunnel.Options{})
	near, far := open(t, a, b)
	wrote := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := near.Write(make([]byte, 4*maxStream))
		wrote <- err
	})
	// The window has been filled when this much of it has been read.
	if _, err := io.ReadFull(far, make([]byte, maxStream/2)); err != nil {
		t.Fatal(err)
	}
	if err := near.Close(); err != nil {
		t.Error(err)
	}
	if err := <-wrote; !errors.Is(err, net.ErrClosed) {
		t.Errorf("write: %v", err)
	}
	if _, err := io.Copy(io.Discard, far); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("far end: %v", err)
	}
	wg.Wait()
}

// Streams that nobody reads do not use up the window of the connection, as long as there
// are few of them.
func TestStalledReaders(t *testing.T) {
	a, b := pair(t, tunnel.Options{Intake: tunnel.NewIntake(1)}) // nothing is granted
	for range firstWindow/firstStream/2 - 1 {
		stalled, _ := open(t, a, b)
		if err := stalled.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := stalled.Write(make([]byte, 2*maxStream)); err == nil {
			t.Fatal("a stream that nobody reads takes everything")
		}
	}
	near, far := open(t, a, b)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := near.Write(make([]byte, 8*maxStream)); err != nil {
			t.Errorf("write: %v", err)
		}
		_ = near.CloseWrite()
	})
	if n, err := io.Copy(io.Discard, far); n != 8*maxStream || err != nil {
		t.Errorf("a neighbour read %d bytes, %v", n, err)
	}
	wg.Wait()
}

// However a stream ends, it gives its place back; far more streams can be than
// may be at a time.
func TestNothingIsLeftBehind(t *testing.T) {
	a, b := pair(t, tunnel.Options{MaxStreams: 4})
	for i := range 200 {
		near, far := open(t, a, b)
		switch i % 4 {
		case 0:
			_, _ = near.Close(), far.Close()
		case 1:
			_, _ = tunnel.Abort(near), far.Close()
		case 2:
			_, _ = tunnel.Abort(far), near.Close()
		case 3:
			_, _ = far.Write(make([]byte, 64<<10))
			_, _, _ = near.CloseWrite(), near.Close(), far.Close()
		}
	}
}

// The peer's reason for closing is told, and is no end of file, no timeout and no
// closing of our own.
func TestPeerCloses(t *testing.T) {
	a, b := pair(t, tunnel.Options{})
	near, _ := open(t, a, b)
	_ = b.Close()
	_, err := near.Read(make([]byte, 1))
	var ne net.Error
	switch {
	case !errors.Is(err, tunnel.Lost), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.As(err, &ne) && ne.Timeout():
		t.Errorf("read: %v", err)
	case !strings.Contains(err.Error(), "session closed"):
		t.Errorf("read does not say why: %v", err)
	}
	<-a.Context().Done()
	if cause := context.Cause(a.Context()); !errors.Is(cause, tunnel.Lost) {
		t.Errorf("cause: %v", cause)
	}
}

// Options.Dial makes what a session runs over.
func TestDialOption(t *testing.T) {
	var used atomic.Value // of string
	a, b := pair(t, tunnel.Options{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		used.Store(network)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	near, far := open(t, a, b)
	if _, err := near.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if used.Load() != "udp" {
		t.Errorf("dialed %q", used.Load())
	}
}

// A server that does not accept a certificate says so, as it does over TCP; and
// handshakes that fail give their places back.
func TestCertificates(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenPacket(pc, tunnel.Options{TLS: tunneltest.TLS(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Serve(ctx, func(ctx context.Context, _ tunnel.Session) { <-ctx.Done() }); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	refused := func(err error) bool {
		var op *net.OpError
		return errors.As(err, &op) && op.Op == "remote error" && op.Err.Error() == tls.AlertError(116).Error()
	}
	for _, tc := range []struct {
		name string
		mend func(c *tls.Config)
		want func(err error) bool
	}{
		{"no certificate", func(c *tls.Config) { c.Certificates = nil }, refused},
		{"untrusted server", func(c *tls.Config) { c.RootCAs = nil }, func(err error) bool {
			var cert *tls.CertificateVerificationError
			return errors.As(err, &cert)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conf := tunneltest.TLS(t)
			tc.mend(conf)
			s, err := Transport().Dial(t.Context(), l.Addr().String(), tunnel.Options{TLS: conf})
			if err == nil { // with TLS 1.3 a client is done before the server has looked at it
				<-s.Context().Done()
				err = context.Cause(s.Context())
			}
			if !tc.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
	cancel()
	wg.Wait()
	await(t, "the handshakes to give their places back", func() bool { return l.(*listener).handshakes.Load() == 0 })
}

// Handshakes are bounded in all and from one address, which keeps no other one out.
func TestHandshakesAreBounded(t *testing.T) {
	l := &listener{options: tunnel.Options{Log: slog.New(slog.DiscardHandler)}}
	ctx, cancel := context.WithCancel(t.Context())
	storm := func(b byte, n int) (admitted int) {
		for range n {
			if _, err := l.admit(ctx, &quic.ClientInfo{RemoteAddr: &net.UDPAddr{IP: net.IPv4(10, 0, 0, b)}}); err == nil {
				admitted++
			}
		}
		return admitted
	}
	if n := storm(1, 10_000); n != maxOfSource {
		t.Errorf("%d from one address", n)
	}
	if n := storm(2, 10); n != 10 {
		t.Errorf("%d of 10 from another address", n)
	}
	for b := range byte(100) {
		storm(3+b, maxOfSource)
	}
	if got := l.Handshakes(); got.Underway != maxHandshakes || got.Refused < 10_000-maxOfSource {
		t.Errorf("%+v", got)
	}
	cancel()
	for l.handshakes.Load() != 0 { // the funcs run in goroutines of their own
		if t.Context().Err() != nil {
			t.Fatal("handshakes are never over")
		}
	}
}

// A server that was killed, and is back on the same port, ends the sessions of
// its former life as soon as it hears of them.
func TestKilledServer(t *testing.T) {
	serve := func(addr string) (pc net.PacketConn, wait func()) {
		t.Helper()
		pc, err := net.ListenPacket("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		l, err := ListenPacket(pc, tunnel.Options{TLS: tunneltest.TLS(t)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			// The first one fails, because its socket is closed under it.
			_ = l.Serve(ctx, func(ctx context.Context, s tunnel.Session) {
				if st, err := s.Accept(ctx); err == nil {
					_, _ = st.Write([]byte{1})
				}
				<-s.Context().Done()
			})
		})
		return pc, func() { cancel(); wg.Wait() }
	}
	pc, gone := serve("127.0.0.1:0")
	s, err := Transport().Dial(t.Context(), pc.LocalAddr().String(), tunnel.Options{TLS: tunneltest.TLS(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	st, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Once something has come back the handshake is confirmed on both sides. Before
	// that the client sends handshake packets too, and those have no reset for an
	// answer (RFC 9000, 10.3).
	if _, err := st.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = pc.Close() // so that it cannot say goodbye
	gone()
	_, gone = serve(pc.LocalAddr().String())
	if _, err := st.Write(make([]byte, 100)); err != nil && !errors.Is(err, tunnel.Lost) {
		t.Fatal(err)
	}
	select {
	case <-s.Context().Done():
	case <-time.After(patience):
		t.Fatal("the session lives on")
	}
	if _, err := st.Read(make([]byte, 1)); !errors.Is(err, tunnel.Lost) {
		t.Errorf("read: %v", err)
	}
	_ = s.Close()
	gone()
}

func TestListenNeedsPackets(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if _, err := Transport().Listen(ln, tunnel.Options{TLS: tunneltest.TLS(t)}); err == nil {
		t.Error("no error")
	}
}
