package lanes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/inproc"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/qmux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eager is a tuning with which nearly everything moves, and comes home soon.
func eager() tuning {
	t := standard
	t.far, t.near, t.leak = 512, 512, 0
	t.sweep, t.calm, t.idle = 5*time.Millisecond, 64, 10*time.Millisecond
	t.probe, t.retry = 20*time.Millisecond, 10*time.Millisecond
	return t
}

// A maker makes sessions without lanes.
type maker func(ctx context.Context, t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, err error)

// pair makes a session with lanes of the sessions that mk makes.
func pair(t testing.TB, mk maker, o tunnel.Options, c Config) (dialer, accepter *Session) {
	t.Helper()
	a, b, err := mk(t.Context(), t, o)
	if err != nil {
		t.Fatal(err)
	}
	accepter = New(b, Config{Max: c.Max, RTT: c.RTT, Log: c.Log, tune: c.tune})
	dial := c.Dial
	c.Dial = func(ctx context.Context, lane int) (tunnel.Session, error) {
		if dial != nil {
			if s, err := dial(ctx, lane); s != nil || err != nil {
				return s, err
			}
		}
		near, far, err := mk(ctx, t, o)
		if err != nil {
			return nil, err
		}
		if err := accepter.Add(lane, far); err != nil {
			_ = near.Close()
			return nil, err
		}
		return near, nil
	}
	dialer = New(a, c)
	t.Cleanup(func() { _, _ = dialer.Close(), accepter.Close() })
	return dialer, accepter
}

func inMemory(_ context.Context, _ testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, err error) {
	dialer, accepter = inproc.Pair(tunnel.Peer{Addr: memnet.Addr("a")}, tunnel.Peer{Addr: memnet.Addr("b")}, o)
	return dialer, accepter, nil
}

// overLoopback makes sessions of a transport over TLS on loopback.
func overLoopback(tr tunnel.Transport) maker {
	return func(ctx context.Context, t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session, err error) {
		addr, accepted := tunneltest.ListenTCP(t, tr, o)
		return meet(ctx, t, tr, addr, o, accepted)
	}
}

// meet makes a session with a listener and returns both its ends.
func meet(ctx context.Context, t testing.TB, tr tunnel.Transport, addr string, o tunnel.Options, accepted <-chan tunnel.Session) (dialer, accepter tunnel.Session, err error) {
	o.TLS = tunneltest.TLS(t)
	if dialer, err = tr.Dial(ctx, addr, o); err != nil {
		return nil, nil, err
	}
	select {
	case accepter = <-accepted:
		return dialer, accepter, nil
	case <-ctx.Done():
		_ = dialer.Close()
		return nil, nil, context.Cause(ctx)
	}
}

func TestConformance(t *testing.T) {
	engine := overLoopback(qmux.Transport())
	for _, c := range []struct {
		name string
		mk   maker
		tune tuning
	}{
		{"eager over qmux", engine, eager()},
		{"eager in memory", inMemory, eager()},
	} {
		t.Run(c.name, func(t *testing.T) {
			tunneltest.Run(t, tunnel.Capabilities{HalfClose: true, Reset: true}, func(t testing.TB, o tunnel.Options) (tunnel.Session, tunnel.Session) {
				return pair(t, c.mk, o, Config{tune: c.tune})
			})
		})
	}
}

// connect opens a stream and accepts it, and has its number read.
func connect(t testing.TB, from, to *Session) (near, far tunnel.Stream) {
	t.Helper()
	near, err := from.Open(t.Context())
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	if _, err = near.Write([]byte{1}); err != nil {
		t.Fatalf("first write: %v", err)
	}
	if far, err = to.Accept(t.Context()); err != nil {
		t.Fatalf("accept: %v", err)
	}
	if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
		t.Fatalf("first read: %v", err)
	}
	return near, far
}

// pattern is a source whose bytes tell where they belong.
type pattern struct{ at, left int64 }

func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(b)), p.left)
	for i := range n {
		b[i] = byte((p.at + i) * 31 >> 3)
	}
	p.at, p.left = p.at+n, p.left-n
	return int(n), nil
}

// expect reads size bytes of a pattern, from at on, and no more.
func expect(r io.Reader, at, size int64) error {
	want := pattern{at: at, left: size}
	buf, model := make([]byte, 8<<10), make([]byte, 8<<10)
	for got := int64(0); got < size; {
		n, err := r.Read(buf[:min(int64(len(buf)), size-got)])
		_, _ = io.ReadFull(&want, model[:n])
		if string(buf[:n]) != string(model[:n]) {
			return fmt.Errorf("bytes %d to %d are not the ones that were sent", at+got, at+got+int64(n))
		}
		got += int64(n)
		if err != nil && got < size {
			return fmt.Errorf("after %d of %d bytes: %w", got, size, err)
		}
	}
	return nil
}

func isEnd(r io.Reader) error {
	n, err := r.Read(make([]byte, 1))
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return nil
	case err == nil:
		return fmt.Errorf("%d bytes after the end", n)
	default:
		return fmt.Errorf("at the end: %w", err)
	}
}
