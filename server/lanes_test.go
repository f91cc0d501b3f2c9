package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/lanes"
)

// A wide boat is an agent whose session has lanes.
func (b *bay) wide(h tunnel.Hello, max int) (*lanes.Session, tunnel.Welcome) {
	b.t.Helper()
	h.Meta = tunnel.Meta{}
	lanes.Offer(h.Meta, max)
	home, err := b.dial(h.Node)
	if err != nil {
		b.t.Fatal(err)
	}
	control, welcome, err := tunnel.Greet(b.t.Context(), home, h)
	if err != nil {
		b.t.Fatal(err)
	}
	var wg sync.WaitGroup
	s := lanes.New(home, lanes.Config{Max: lanes.Agreed(welcome.Meta, max), Dial: func(ctx context.Context, lane int) (tunnel.Session, error) {
		more := h
		more.Meta = tunnel.Meta{}
		lanes.Join(more.Meta, welcome.Session, lane)
		x, derr := b.dial(h.Node)
		if derr != nil {
			return nil, derr
		}
		c, _, derr := tunnel.Greet(ctx, x, more)
		if derr != nil {
			_ = x.Close()
			return nil, derr
		}
		wg.Go(func() { _ = c.Run(x.Context(), nil); _ = x.Close() })
		return x, nil
	}})
	wg.Go(func() { _ = control.Run(home.Context(), nil); _ = s.Close() })
	wg.Go(func() { _ = tunnel.Serve(context.WithoutCancel(b.t.Context()), s, echo) })
	b.t.Cleanup(func() { _ = s.Close(); wg.Wait() })
	synctest.Wait()
	return s, welcome
}

// What is much goes to further lanes, which come and go with the session; what is
// small goes on beside it.
func TestLanes(t *testing.T) {
	for name, c := range map[string]struct{ server, agent, agreed, used int }{
		"by default":        {0, 4, 4, 2},
		"fewer by server":   {2, 4, 2, 2},
		"none by server":    {1, 4, 1, 1},
		"none by the agent": {4, 1, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBay(t, Config{Lanes: c.server})
				s, welcome := b.wide(one("n"), c.agent)
				if n := lanes.Agreed(welcome.Meta, lanes.Limit); n != c.agreed {
					t.Errorf("%d lanes agreed, want %d", n, c.agreed)
				}
				if c.agreed == 1 { // and then this end has to speak plainly too
					return
				}
				bulk, err := b.hub.DialContext(t.Context(), "tcp", "n:1")
				if err != nil {
					t.Fatal(err)
				}
				want := bytes.Repeat([]byte("0123456789abcdef"), 256<<10)
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := bulk.Write(want); err != nil {
						t.Errorf("write: %v", err)
					}
					_ = bulk.(tunnel.Stream).CloseWrite()
				})
				got, err := io.ReadAll(bulk)
				wg.Wait()
				if err != nil || !bytes.Equal(got, append([]byte("n:1\n"), want...)) {
					t.Errorf("%d bytes came back, %v", len(got), err)
				}
				if n := s.Lanes(); n < c.used || n > c.agreed {
					t.Errorf("%d lanes used, want %d to %d", n, c.used, c.agreed)
				}
				if got, err := b.ask("n:2"); got != "n:2" || err != nil {
					t.Errorf("beside it: %q, %v", got, err)
				}
				if all := b.hub.Sessions(); len(all) != 1 {
					t.Errorf("sessions: %+v", all)
				}
				_ = bulk.Close()
				_ = s.Close()
				synctest.Wait()
				for i, x := range b.berth {
					if x.Context().Err() == nil {
						t.Errorf("lane %d lives on", i)
					}
				}
			})
		})
	}
}

// A session without lanes is spoken to plainly by a server that has them.
func TestPlainBesideLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBay(t, Config{})
		b.mustConnect(one("n"))
		if got, err := b.ask("n:2"); got != "n:2" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// A lane is of a session of the same agent, or is turned away.
func TestLaneTurnedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBay(t, Config{})
		_, welcome := b.wide(one("n"), 4)
		_, other := b.wide(one("m"), 4)
		plain := b.mustConnect(one("plain"))
		for name, c := range map[string]struct {
			hello   tunnel.Hello
			session uint64
			lane    int
		}{
			"of no session":              {one("n"), 99, 1},
			"of another node's":          {one("n"), other.Session, 1},
			"of another instance's":      {tunnel.Hello{Node: "n", Instance: 2, Sequence: 1}, welcome.Session, 1},
			"of a session without":       {one("plain"), 3, 1},
			"without a number":           {one("n"), welcome.Session, 0},
			"of a node not there at all": {one("nobody"), welcome.Session, 1},
		} {
			c.hello.Meta = tunnel.Meta{}
			lanes.Join(c.hello.Meta, c.session, c.lane)
			s, err := b.dial(c.hello.Node)
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = tunnel.Greet(t.Context(), s, c.hello)
			var bye *tunnel.Goodbye
			if !errors.As(err, &bye) || bye.Code != tunnel.Invalid {
				t.Errorf("%s: %v", name, err)
			}
			_ = s.Close()
		}
		for _, node := range []string{"n", "m", "plain"} {
			if got, err := b.ask(node + ":2"); got != node+":2" || err != nil {
				t.Errorf("%s: %q, %v", node, got, err)
			}
		}
		if plain.session.Context().Err() != nil {
			t.Error("the session without lanes is over")
		}
	})
}
