package server

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// An agent that moves: new dials go to the new session at once, the older one's
// streams go on, and it ends when the last of them has.
func TestMoveKeepsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		first := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 1})
		held, err := b.hub.DialContext(t.Context(), "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2, Meta: tunnel.Meta{keepsKey: "1"}})
		if got, err := b.ask("n:2"); err != nil || got != "n:2" {
			t.Errorf("dial after the move: %q, %v", got, err)
		}
		if n := b.metric("sessions"); n != 2 {
			t.Errorf("sessions metric: %v", n)
		}
		time.Sleep(10 * time.Minute) // the bubble's clock
		if _, err := io.WriteString(held, "still here"); err != nil {
			t.Error(err)
		}
		if err := held.(tunnel.Stream).CloseWrite(); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(held); err != nil || string(got) != "n:1\nstill here" {
			t.Errorf("stream of the older session: %q, %v", got, err)
		}
		start := time.Now()
		_ = held.Close()
		<-first.gone
		var bye *tunnel.Goodbye
		if !errors.As(first.err, &bye) || bye.Code != tunnel.Draining || !strings.Contains(bye.Text, "moved to another session") {
			t.Errorf("the older session ended with %v", first.err)
		}
		if d := time.Since(start); d != linger {
			t.Errorf("it went on for %v after its last stream", d)
		}
		synctest.Wait()
		if n := b.metric("sessions"); n != 1 {
			t.Errorf("sessions metric: %v", n)
		}
		if all := b.hub.Sessions(); len(all) != 1 {
			t.Errorf("sessions: %+v", all)
		}
	})
}

// A stream that the agent opens while its old session lingers keeps it.
func TestMovedSessionLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := memnet.NewHandoff(tunnel.Addr("api"), 1)
		defer api.Close()
		b := newTestHub(t, Config{API: api.Inject})
		first := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 1})
		b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2, Meta: tunnel.Meta{keepsKey: "1"}})
		time.Sleep(linger / 2) // the bubble's clock
		near, err := tunnel.Connect(t.Context(), first.session, "tcp", APIServer)
		if err != nil {
			t.Fatal(err)
		}
		far, err := api.Accept()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // the bubble's clock
		if _, err := io.WriteString(near, "x"); err != nil {
			t.Errorf("agent's stream: %v", err)
		}
		_, _ = near.Close(), far.Close()
		<-first.gone
	})
}

// An agent that leaves: the hub notifies it when no stream reads from it any more, and waits
// until the agent has read the data under way.
func TestLeavingAgentIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		got := make(chan string, 1)
		x, err := b.connect(one("n"), func(_ context.Context, r *tunnel.Request) {
			st, err := r.Accept()
			if err != nil {
				return
			}
			time.Sleep(time.Minute) // the bubble's clock: a slow target
			all, _ := io.ReadAll(st)
			got <- string(all)
			_ = st.Close()
		})
		if err != nil {
			t.Fatal(err)
		}
		c, err := b.hub.DialContext(t.Context(), "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		x.polite.Store(true)
		if err := x.control.Drain(t.Context(), tunnel.Draining, "stopping"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second) // the bubble's clock
		if x.session.Context().Err() != nil {
			t.Fatal("the session ended with a stream open")
		}
		if _, err := io.WriteString(c, "last words"); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		<-x.gone
		if s := <-got; s != "last words" {
			t.Errorf("the target read %q", s)
		}
	})
}

// Beyond is called for nodes without a session, and its connections are streams like
// others.
func TestBeyond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("no route")
		b := newTestHub(t, Config{Beyond: func(node string) (func(context.Context, tunnel.Dial) (net.Conn, error), bool) {
			return func(_ context.Context, d tunnel.Dial) (net.Conn, error) {
				if d.Addr == "far:2" {
					return nil, refused
				}
				near, far := net.Pipe()
				go func() {
					_, _ = io.WriteString(far, d.Network+" "+d.Addr+"\n")
					_ = far.Close()
				}()
				return near, nil
			}, node == "far"
		}})
		b.mustConnect(one("near"))
		for addr, want := range map[string]string{"near:1": "near:1", "far:1": "tcp far:1", "10.0.0.1%far:1": "tcp 10.0.0.1:1"} {
			c, err := b.hub.DialContext(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := c.(tunnel.Stream); !ok || c.RemoteAddr().String() != addr {
				t.Errorf("%s: %T to %v", addr, c, c.RemoteAddr())
			}
			line := make([]byte, len(want))
			if _, err := io.ReadFull(c, line); err != nil || string(line) != want {
				t.Errorf("%s: %q, %v", addr, line, err)
			}
			_ = c.Close()
		}
		var de *tunnel.DialError
		if _, err := b.hub.DialContext(t.Context(), "tcp", "far:2"); !errors.As(err, &de) || !strings.Contains(err.Error(), "dial far:2: no route") {
			t.Errorf("a dial that fails: %v", err)
		}
		if _, err := b.hub.DialContext(t.Context(), "tcp", "nowhere:1"); !errors.Is(err, tunnel.NoNode) {
			t.Errorf("a node that nobody knows: %v", err)
		}
		if n := b.metric("streams"); n != 0 {
			t.Errorf("%v streams are open", n)
		}
	})
}
