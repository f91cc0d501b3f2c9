package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo stands in for an API server and echoes.
func echo(t *testing.T) net.Listener {
	t.Helper()
	l := listen(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			wg.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// start runs a relay on a port until stop is called.
func start(t *testing.T, c Config) (r *Relay, addr string, stop func()) {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, l) }()
	stop = sync.OnceFunc(func() {
		_ = l.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return r, l.Addr().String(), stop
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// said sends a word and returns the answer.
func said(c net.Conn, word string) (string, error) {
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	back := make([]byte, len(word))
	_, err := io.ReadFull(c, back)
	return string(back), err
}

// TestRelay: connections of the port and injected ones of agents reach the API server, with
// half-close, and end with the relay.
func TestRelay(t *testing.T) {
	r, addr, stop := start(t, Config{Addr: echo(t).Addr().String()})
	c := dial(t, addr)
	if got, err := said(c, "word"); got != "word" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := io.WriteString(c, "last"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); string(rest) != "last" || err != nil {
		t.Errorf("after half-close %q, %v", rest, err)
	}
	mine, its := net.Pipe()
	if err := r.Inject(t.Context(), its); err != nil {
		t.Fatal(err)
	}
	if got, err := said(mine, "word"); got != "word" {
		t.Fatalf("injected: %q, %v", got, err)
	}
	stop()
	if _, err := mine.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlives the relay")
	}
}

// TestBounded: connections of unauthenticated clients are bounded, and agents' do not count.
func TestBounded(t *testing.T) {
	r, addr, _ := start(t, Config{Addr: echo(t).Addr().String(), Limit: 2})
	mine, its := net.Pipe()
	defer mine.Close()
	if err := r.Inject(t.Context(), its); err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	for range 3 {
		c := dial(t, addr)
		if got, err := said(c, "in"); got != "in" {
			t.Fatalf("%q, %v", got, err)
		}
		conns = append(conns, c)
	}
	if _, err := conns[0].Read(make([]byte, 1)); err == nil {
		t.Error("the oldest keeps its place")
	}
	for _, c := range append(conns[1:], mine) {
		if got, err := said(c, "still"); got != "still" {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// TestUnreachable: an unreachable API server is logged once.
func TestUnreachable(t *testing.T) {
	var log bytes.Buffer
	r, _, stop := start(t, Config{
		Addr: "192.0.2.1:6443", Log: slog.New(slog.NewTextHandler(&log, nil)),
		Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") },
	})
	for range 3 {
		mine, its := net.Pipe()
		if err := r.Inject(t.Context(), its); err != nil {
			t.Fatal(err)
		}
		if _, err := mine.Read(make([]byte, 1)); err == nil {
			t.Error("somebody answers")
		}
	}
	stop()
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "192.0.2.1:6443") {
		t.Errorf("the log says\n%s", &log)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{Addr: "nowhere"}); err == nil {
		t.Error("an address without a port is fine")
	}
}

// TestEnds: Run ends with its context, also if other waiters are woken first.
func TestEnds(t *testing.T) {
	l := listen(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	for range 100_000 {
		defer context.AfterFunc(ctx, func() {})()
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, l) }()
	for range 1000 {
		runtime.Gosched() // until it waits
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it has not ended")
	}
}

// TestReplacedWhileDialing: a connection that is replaced while the API server does not answer
// waits for it no longer, so that who opens many holds no more than there may be.
func TestReplacedWhileDialing(t *testing.T) {
	dialing, ended := make(chan struct{}), make(chan struct{}, 10)
	_, addr, _ := start(t, Config{
		Addr: "192.0.2.1:443", Limit: 2,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			dialing <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return nil, context.Cause(ctx)
		},
		DialTimeout: time.Hour,
	})
	for i := range 10 {
		dial(t, addr)
		<-dialing
		if i < 2 {
			continue
		}
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("%d dials go on", i+1)
		}
	}
}
