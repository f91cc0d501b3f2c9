package agent

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/lanes"
)

// TestLanes: a server that allows lanes is given them when there is much to carry,
// of the same session and instance; they end with it.
func TestLanes(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		h.echo("10.0.0.1:80")
		pier := &pier{t: t, moored: make(chan *lanes.Session, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := h.exchange.Listen("hub:1")
		h.group.Go(func() {
			if err := l.Serve(ctx, pier.session); err != nil {
				t.Error(err)
			}
		})
		a := h.sail(Config{Servers: []string{"hub:1"}, Allow: targets(t, "10.0.0.1:80"), Lanes: 3})
		s := <-pier.moored
		st, err := tunnel.Connect(t.Context(), s, "tcp", "10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte("0123456789abcdef"), 256<<10)
		h.group.Go(func() {
			if _, err := st.Write(want); err != nil {
				t.Errorf("write: %v", err)
			}
			_ = st.CloseWrite()
		})
		if got, err := io.ReadAll(st); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
		_ = st.Close()
		if n := s.Lanes(); n < 2 || n > 3 {
			t.Errorf("%d lanes", n)
		}
		pass(2 * time.Minute)
		if n := s.Lanes(); n != 1 {
			t.Errorf("%d lanes after a pause", n)
		}
		a.stop()
		<-a.done
		synctest.Wait()
		if n := len(a.log.lines("disconnected")); n != 0 || s.Context().Err() == nil {
			t.Errorf("the session: %v; said so %d times", s.Context().Err(), n)
		}
	})
}

// A pier is a server whose sessions have lanes.
type pier struct {
	t      *testing.T
	moored chan *lanes.Session

	mu    sync.Mutex // guards the following
	hello tunnel.Hello
	main  *lanes.Session
}

const pierSession = 7

func (p *pier) session(ctx context.Context, s tunnel.Session) {
	g, err := tunnel.Await(ctx, s)
	if err != nil {
		return
	}
	w := tunnel.Welcome{Session: pierSession, Meta: tunnel.Meta{}}
	p.mu.Lock()
	number, lane, further := lanes.Joined(g.Meta)
	if !further {
		lanes.Offer(w.Meta, lanes.Agreed(g.Meta, 4))
		p.main, p.hello = lanes.New(s, lanes.Config{Max: lanes.Agreed(g.Meta, 4)}), g.Hello
		p.moored <- p.main
	} else if number != pierSession || g.Instance != p.hello.Instance || g.Node != p.hello.Node || p.main.Add(lane, s) != nil {
		p.t.Errorf("lane %d of session %d, of %+v", lane, number, g.Hello)
	}
	main := p.main
	p.mu.Unlock()
	c := g.Control(w)
	if err := c.Welcome(); err != nil {
		p.t.Error(err)
		return
	}
	_ = c.Run(ctx, nil) // the agent's end is what is tested
	if !further {
		_ = main.Close()
	}
	_ = s.Close()
}
