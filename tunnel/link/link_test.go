package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A rig is a registry and a way to it.
type rig struct {
	registry *Registry
	accepted chan *Link

	wg sync.WaitGroup

	mu       sync.Mutex // guards the following
	identity string
	refuse   error                   // Identity's answer
	down     error                   // dial's answer
	wrap     func(net.Conn) net.Conn // the dialing end of each connection; may be nil
	far      func(net.Conn) net.Conn // the accepting end; may be nil
	near     []*memnet.Conn          // dialing ends, in order
	errs     []error                 // of Accept
}

func newRig(t testing.TB, c Config) *rig {
	t.Helper()
	r := &rig{accepted: make(chan *Link, 16), identity: "system:node:a"}
	var err error
	r.registry, err = NewRegistry(RegistryConfig{Config: c, MaxPerIdentity: 2, Identity: func(net.Conn) (string, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.identity, r.refuse
	}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *rig) dial(context.Context) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down != nil {
		return nil, r.down
	}
	a, b := memnet.Pipe(memnet.Addr("agent"), memnet.Addr("server"))
	r.near = append(r.near, a)
	var near, far net.Conn = a, b
	if r.wrap != nil {
		near = r.wrap(near)
	}
	if r.far != nil {
		far = r.far(far)
	}
	r.wg.Go(func() {
		l, resumed, err := r.registry.Accept(context.Background(), far)
		r.set(func() {
			if err != nil {
				r.errs = append(r.errs, err)
			}
		})
		if err == nil && !resumed {
			r.accepted <- l
		}
	})
	return near, nil
}

// cut resets the latest connection.
func (r *rig) cut() { r.set(func() { _ = r.near[len(r.near)-1].Abort() }) }

// stall makes the latest connection swallow everything.
func (r *rig) stall() { r.set(func() { r.near[len(r.near)-1].Stall(true) }) }

func (r *rig) pair(t testing.TB, c Config) (client, server *Link) {
	t.Helper()
	client, err := Dial(t.Context(), r.dial, c)
	if err != nil {
		t.Fatal(err)
	}
	return client, <-r.accepted
}

func (r *rig) close(t testing.TB, links ...*Link) {
	t.Helper()
	for _, l := range links {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	_ = r.registry.Close()
	r.wg.Wait()
	if n, _ := r.registry.Len(); n != 0 {
		t.Errorf("%d links left in the registry", n)
	}
}

func send(t testing.TB, l *Link, s string) {
	t.Helper()
	if n, err := l.Write([]byte(s)); n != len(s) || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
}

func expect(t testing.TB, l *Link, s string) {
	t.Helper()
	buf := make([]byte, len(s))
	if _, err := io.ReadFull(l, buf); err != nil || string(buf) != s {
		t.Fatalf("read %q, %v; want %q", buf, err, s)
	}
}

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		return a, b, func() { r.close(t, a, b) }, nil
	})
}

// What is in flight, or written while parked, arrives after the cut.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		send(t, a, "one ")
		expect(t, b, "one ")
		r.set(func() { r.down = errors.New("no way") })
		r.cut()
		synctest.Wait()
		// Nobody reads, so only who writes finds out.
		send(t, a, "two ")
		send(t, b, "back")
		synctest.Wait()
		if a.Stats().Parked.IsZero() || b.Stats().Parked.IsZero() {
			t.Fatalf("not parked: %+v, %+v", a.Stats(), b.Stats())
		}
		if links, parked := r.registry.Len(); links != 1 || parked != 1 {
			t.Errorf("registry has %d links, %d parked", links, parked)
		}
		time.Sleep(30 * time.Second)
		r.set(func() { r.down = nil })
		expect(t, b, "two ")
		expect(t, a, "back")
		if s := a.Stats(); s.Resumes != 1 || s.Parks != 1 || !s.Parked.IsZero() {
			t.Errorf("dialing end: %+v", s)
		}
		r.close(t, a, b)
	})
}

// After the window both ends fail, with why; not before.
func TestWindow(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cut   func(*rig)
		code  tunnel.Code
		bound time.Duration
	}{
		{"reset", (*rig).cut, tunnel.Lost, DefaultWindow},
		{"silence", (*rig).stall, tunnel.Dead, DefaultWindow + 20*time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{})
				a, b := r.pair(t, Config{Window: time.Hour})
				r.set(func() { r.down = errors.New("no way") })
				start := time.Now()
				tc.cut(r)
				var wg sync.WaitGroup
				for _, l := range []*Link{a, b} {
					wg.Go(func() {
						_, err := l.Read(make([]byte, 1))
						var e *Error
						if !errors.As(err, &e) || e.Code != tc.code || !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
							t.Errorf("read: %v", err)
						}
						if d := time.Since(start); d < DefaultWindow || d > tc.bound {
							t.Errorf("failed after %v", d)
						}
						if _, err := l.Write([]byte("x")); !errors.Is(err, tc.code) {
							t.Errorf("write: %v", err)
						}
					})
				}
				wg.Wait()
				r.close(t, a, b)
			})
		})
	}
}

// A dead peer is found within four intervals, and the link lives on.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		time.Sleep(time.Hour) // the bubble's clock; nobody reads, and nothing happens
		if s := a.Stats(); s.Parks != 0 {
			t.Fatalf("an idle link was parked: %+v", s)
		}
		r.stall()
		time.Sleep(4*DefaultKeepalive + time.Second)
		// Whoever notices first brings the other along.
		if sa, sb := a.Stats(), b.Stats(); sa.Resumes != 1 || sb.Resumes != 1 || sa.Parks+sb.Parks == 0 {
			t.Errorf("%+v, %+v", sa, sb)
		}
		send(t, a, "still there")
		expect(t, b, "still there")
		r.close(t, a, b)
	})
}

// A reader that stalls stalls the writer; what lies between them is bounded, and
// the other direction goes on.
func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 256 << 10
		budget := NewBudget(1 << 20)
		c := Config{Buffer: size, Budget: budget}
		r := newRig(t, c)
		a, b := r.pair(t, c)
		_ = a.SetWriteDeadline(time.Now().Add(time.Minute))
		n, err := a.Write(make([]byte, 4*size))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n < size/2 || n > size {
			t.Fatalf("wrote %d, %v", n, err)
		}
		if used := budget.Used(); used > size {
			t.Errorf("budget: %d", used)
		}
		send(t, b, "against the stream")
		expect(t, a, "against the stream")
		r.cut() // what lies unread is not sent again
		time.Sleep(10 * time.Second)
		if got, err := io.CopyN(io.Discard, b, int64(n)); got != int64(n) || err != nil {
			t.Fatalf("read %d, %v", got, err)
		}
		if s := a.Stats(); s.Resumes != 1 || s.Replayed != 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * DefaultKeepalive) // nobody reads at a: the pulse has to find the acknowledgement
		if used := budget.Used(); used != 0 {
			t.Errorf("budget of an idle link: %d", used)
		}
		_ = a.SetWriteDeadline(time.Time{})
		send(t, a, "more")
		expect(t, b, "more")
		r.close(t, a, b)
	})
}

// With no budget a link goes on with one chunk.
func TestBudgetEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Budget: NewBudget(0)}
		r := newRig(t, c)
		a, b := r.pair(t, c)
		data := randomBytes(1, 1<<20)
		var wg sync.WaitGroup
		wg.Go(func() { send(t, a, string(data)) })
		got := make([]byte, len(data))
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read: %v", err)
		}
		wg.Wait()
		r.close(t, a, b)
	})
}

// Close is told, so that the other end does not wait.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, server := range []bool{false, true} {
			r := newRig(t, Config{})
			near, far := r.pair(t, Config{})
			if server {
				near, far = far, near
			}
			start := time.Now()
			send(t, near, "the last")
			var wg sync.WaitGroup
			wg.Go(func() { _ = near.Close() })
			got, err := io.ReadAll(far)
			if string(got) != "the last" || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
			wg.Wait()
			if d := time.Since(start); d != 0 {
				t.Errorf("close took %v", d)
			}
			if _, err := far.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("write: %v", err)
			}
			if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read after close: %v", err)
			}
			synctest.Wait() // the far end needs no Close to be forgotten
			if n, _ := r.registry.Len(); n != 0 {
				t.Errorf("%d links left", n)
			}
			r.close(t, near, far)
		}
	})
}

// Two ends that close at once do not wait for each other.
func TestCloseBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		start := time.Now()
		var wg sync.WaitGroup
		for _, l := range []*Link{a, b} {
			wg.Go(func() { _ = l.Close() }) // never fails
		}
		wg.Wait()
		if d := time.Since(start); d != 0 {
			t.Errorf("close took %v", d)
		}
		r.close(t, a, b)
	})
}

// A link closed while parked is over at once here, and there as soon as it
// tries.
func TestCloseParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		r.set(func() { r.down = errors.New("no way") })
		r.cut()
		send(t, b, "x")
		synctest.Wait()
		start := time.Now()
		_ = b.Close()
		if d := time.Since(start); d != 0 {
			t.Errorf("close took %v", d)
		}
		r.set(func() { r.down = nil })
		_, err := a.Read(make([]byte, 1))
		if !errors.Is(err, tunnel.Lost) || time.Since(start) > 2*highestBackoff {
			t.Errorf("read: %v after %v", err, time.Since(start))
		}
		r.close(t, a, b)
	})
}

// Move changes over under traffic, and nobody notices.
func TestMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		data := randomBytes(2, 4<<20)
		var wg sync.WaitGroup
		for _, l := range []*Link{a, b} {
			wg.Go(func() { _, _ = l.Write(data) }) // the readers notice
			wg.Go(func() {
				got := make([]byte, len(data))
				if _, err := io.ReadFull(l, got); err != nil || !bytes.Equal(got, data) {
					t.Errorf("read: %v", err)
				}
			})
		}
		for range 20 {
			if err := a.Move(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		wg.Wait()
		if s := a.Stats(); s.Parks != 0 || s.Resumes != 20 {
			t.Errorf("%+v", s)
		}
		if err := b.Move(t.Context()); err == nil {
			t.Error("the accepting end moved")
		}
		r.close(t, a, b)
	})
}

// Transports that come and break at once are not dialed as fast as can be.
func TestUseless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := r.pair(t, Config{})
		dials := 0
		resuming := len((&message{kind: kindResume}).encode())
		r.set(func() {
			r.wrap = func(c net.Conn) net.Conn {
				dials++
				return &fuse{Conn: c.(*memnet.Conn), soft: true, left: resuming + 1}
			}
		})
		r.cut()
		time.Sleep(DefaultWindow / 2)
		r.set(func() {
			if r.wrap = nil; dials < 5 || dials > 100 {
				t.Errorf("%d dials in %v", dials, DefaultWindow/2)
			}
		})
		send(t, a, "in the end")
		expect(t, b, "in the end")
		r.close(t, a, b)
	})
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	g := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = g.Read(b) // never fails
	return b
}
