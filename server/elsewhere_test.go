package server

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// An other is another server, which has a node or does not.
type other struct {
	has   bool
	err   error
	asked []string
}

func (o *other) dial(_ context.Context, node string, d tunnel.Dial) (tunnel.Stream, bool, error) {
	o.asked = append(o.asked, node+" "+d.Addr)
	if !o.has || o.err != nil {
		return nil, o.has, o.err
	}
	near, far := memnet.Pipe(memnet.Addr("here"), memnet.Addr("there"))
	go func() {
		_, _ = io.WriteString(far, "elsewhere")
		_ = far.Close()
	}()
	return near, true, nil
}

func TestElsewhere(t *testing.T) {
	refused := &tunnel.DialError{Addr: "n:1", Code: tunnel.Refused}
	away := &tunnel.DialError{Addr: "n:1", Code: tunnel.NoNode, Text: "not there any more"}
	parked := &tunnel.DialError{Addr: "n:1", Code: tunnel.Parked, Text: "it reconnects there"}
	for _, tc := range []struct {
		name         string
		here, parked bool // a session, without a connection
		has          bool
		err          error
		want         string
		code         tunnel.Code
		asks         int
	}{
		{"nobody has it", false, false, false, nil, "", tunnel.NoNode, 1},
		{"another server has it", false, false, true, nil, "elsewhere", 0, 1},
		{"another server had it", false, false, true, away, "", tunnel.NoNode, 1},
		{"it reconnects to another server", false, false, true, parked, "", tunnel.Parked, 1},
		{"the node refuses", false, false, true, refused, "", tunnel.Refused, 1},
		{"here", true, false, true, nil, "n:1", 0, 0},
		{"parked here", true, true, true, nil, "elsewhere", 0, 1},
		{"parked here and nowhere else", true, true, false, nil, "", tunnel.Parked, 1},
		{"parked everywhere", true, true, true, parked, "", tunnel.Parked, 1},
		{"parked here, and the node refuses there", true, true, true, refused, "", tunnel.Refused, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &other{has: tc.has, err: tc.err}
				b := newTestHub(t, Config{Elsewhere: o.dial, ParkedPatience: time.Second})
				if tc.here {
					b.mustConnect(one("n"))
				}
				if tc.parked {
					b.last().park()
				}
				got, err := b.ask("n:1")
				if got != tc.want || tunnel.CodeOf(err) != tc.code || len(o.asked) != tc.asks {
					t.Errorf("%q, %v, asked %q", got, err, o.asked)
				}
				if tc.code != 0 {
					return
				}
				if n := b.metric("dials_total"); n != 1 {
					t.Errorf("%v dials counted, want 1", n)
				}
			})
		})
	}
}

// TestDialHere: a dial of another server is served by this hub's own sessions alone.
func TestDialHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &other{has: true}
		beyond := func(string) (func(context.Context, tunnel.Dial) (net.Conn, error), bool) {
			t.Error("asked beyond")
			return nil, false
		}
		b := newTestHub(t, Config{Elsewhere: o.dial, Beyond: beyond})
		if _, err := b.hub.DialHere(t.Context(), "n", tunnel.Dial{Network: "tcp", Addr: "n:1"}); !errors.Is(err, tunnel.NoNode) {
			t.Errorf("%v", err)
		}
		b.mustConnect(one("n"))
		c, err := b.hub.DialHere(t.Context(), "n", tunnel.Dial{Network: "tcp", Addr: "10.0.0.1:80"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		line := make([]byte, len("10.0.0.1:80\n"))
		if _, err := io.ReadFull(c, line); err != nil || string(line) != "10.0.0.1:80\n" {
			t.Errorf("%q, %v", line, err)
		}
		if len(o.asked) != 0 {
			t.Errorf("asked %q", o.asked)
		}
	})
}

// TestParksUnderTheDial: a session that is parked while a dial waits for its answer makes the dial
// try another server, once the node has had ParkedPatience to reconnect.
func TestParksUnderTheDial(t *testing.T) {
	for _, patience := range []time.Duration{-1, time.Second, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			o := &other{has: true}
			b := newTestHub(t, Config{Elsewhere: o.dial, ParkedPatience: patience})
			if _, err := b.connect(one("n"), func(ctx context.Context, _ *tunnel.Request) { <-ctx.Done() }); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			time.AfterFunc(1500*time.Millisecond, b.last().park)
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			c, err := b.hub.DialContext(ctx, "tcp", "n:1")
			if err != nil {
				t.Fatalf("%v: %v", patience, err)
			}
			defer c.Close()
			if got, err := io.ReadAll(c); err != nil || string(got) != "elsewhere" {
				t.Errorf("%q, %v", got, err)
			}
			want := 1500*time.Millisecond + patience
			if patience < 0 {
				want = 2 * parkedCheck
			}
			if d := time.Since(began); d != want {
				t.Errorf("after %v, want %v", d, want)
			}
		})
	}
}

// TestSpareDials: the last streams of a session are kept from dials for strangers, which go to
// another server that has the node, if there is one.
func TestSpareDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := new(other)
		b := newTestHub(t, Config{Elsewhere: o.dial})
		b.streams = 8
		b.mustConnect(one("n"))
		open := func(dial func(context.Context, string, string) (net.Conn, error)) error {
			c, err := dial(t.Context(), "tcp", "n:1")
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
			}
			return err
		}
		for range 7 {
			if err := open(b.hub.DialSpare); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if err := open(b.hub.DialSpare); !errors.Is(err, tunnel.Busy) || time.Since(began) != 0 {
			t.Errorf("the eighth: %v after %v", err, time.Since(began))
		}
		if err := open(b.hub.DialContext); err != nil {
			t.Errorf("a dial of the server's users: %v", err)
		}
		o.has = true
		if err := open(b.hub.DialSpare); err != nil || len(o.asked) != 2 {
			t.Errorf("with another server: %v, asked %q", err, o.asked)
		}
	})
}
