// What the tests of this package have in common: a server, and connections to it.

package carrier

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait. It is no measure: what takes this long hangs.
const patience = 30 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// spoken is the protocol of these tests.
const spoken = "hawser-test/1"

// A server is a listener and the connections that it makes.
type server struct {
	*listener
	addr  string
	conns chan *tls.Conn
	stop  func() // and wait
}

// serve listens until the test is over or stop is called.
func serve(t testing.TB, o tunnel.Options) *server { return crowded(t, maxHandshakes, maxQueue, o) }

// crowded is a server with room for so many handshakes, which wait so long for a turn.
func crowded(t testing.TB, limit int, longest time.Duration, o tunnel.Options) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s := &server{addr: ln.Addr().String(), conns: make(chan *tls.Conn, 100)}
	l, err := Listen(ln, "test", []string{spoken}, Bare, o, func(ctx context.Context, c *tls.Conn) (tunnel.Session, error) {
		_, _ = c.Write([]byte{letIn}) // who is not there does not read it
		s.conns <- c
		<-ctx.Done()
		return nil, c.NetConn().Close() // nobody uses it any more
	})
	if err != nil {
		t.Fatal(err)
	}
	s.listener = l.(*listener)
	s.admission = newAdmission(limit, o.Log)
	s.admission.maxQueue = longest
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Serve(ctx, nil); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	s.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(s.stop)
	return s
}

// next is the connection that the server has made.
func (s *server) next(t testing.TB) *tls.Conn {
	t.Helper()
	select {
	case c := <-s.conns:
		return c
	case <-within(t).Done():
		t.Fatal("no connection at the server")
		return nil
	}
}

// letIn is what the server says first: only then has it looked at the certificate.
const letIn = '.'

// dialFirst makes a Dialer of the server at addr, and a first connection.
func dialFirst(ctx context.Context, addr string, o tunnel.Options) (d *Dialer, c *tls.Conn, err error) {
	_, err = Dial(ctx, addr, spoken, Bare, o, func(_ context.Context, by *Dialer, first *tls.Conn) (tunnel.Session, error) {
		d, c = by, first
		return nil, nil
	})
	return d, c, err
}

// reach makes a connection, which is closed with the test, and waits to be let in.
func reach(t testing.TB, addr string, o tunnel.Options) (*tls.Conn, error) {
	t.Helper()
	_, c, err := dialFirst(within(t), addr, o)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.NetConn().Close() })
	return c, heard(c)
}

// heard waits to be let in.
func heard(c net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, err := c.Read(make([]byte, 1))
	return err
}

// dial is reach where nothing is in the way.
func dial(t testing.TB, addr string, o tunnel.Options) *tls.Conn {
	t.Helper()
	c, err := reach(t, addr, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// said checks that what one end writes is what the other reads.
func said(t *testing.T, from, to net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		t.Fatalf("write: %v", err)
	}
	got := make([]byte, len(text))
	_ = to.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v; want %q", got, err, text)
	}
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

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}
