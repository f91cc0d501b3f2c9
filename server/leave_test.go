package server

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestLeave: agents are notified that the server is about to stop, and no new session is
// accepted. Nothing else changes.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		x := b.mustConnect(one("n"))
		c, err := b.hub.DialContext(t.Context(), "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		if n := b.hub.Open(); n != 1 {
			t.Errorf("%d streams are open, want 1", n)
		}
		b.hub.Leave()
		b.hub.Leave()
		synctest.Wait()
		select {
		case <-x.control.Draining():
		default:
			t.Error("the agent was not told")
		}
		if _, err := b.connect(one("late"), nil); !errors.Is(err, tunnel.Draining) {
			t.Errorf("a new session: %v", err)
		}
		time.Sleep(time.Hour)
		if got, err := b.ask("n:2"); err != nil || got != "n:2" {
			t.Errorf("dial: %q, %v", got, err)
		}
		if c, err := b.hub.DialHere(t.Context(), "n", tunnel.Dial{Network: "tcp", Addr: "n:3"}); err != nil {
			t.Errorf("dial of another server: %v", err)
		} else {
			_ = c.Close()
		}
		if _, err := c.Write([]byte("still here")); err != nil {
			t.Errorf("stream: %v", err)
		}
		_ = c.Close()
	})
}

// TestDrainBy: time that streams have already had is not given to them again.
func TestDrainBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{DrainTimeout: time.Hour})
		b.mustConnect(one("n"))
		c, err := b.hub.DialContext(t.Context(), "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		began := time.Now()
		b.hub.DrainBy(began.Add(10 * time.Second))
		time.Sleep(7 * time.Second)
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d < 10*time.Second || d > 12*time.Second {
			t.Errorf("ended after %v, want 10 s", d)
		}
	})
}

// An opener is a session that keeps the stream it opened last.
type opener struct {
	tunnel.Session
	opened tunnel.Stream
}

func (r *opener) Open(ctx context.Context) (st tunnel.Stream, err error) {
	r.opened, err = r.Session.Open(ctx)
	return r.opened, err
}

// TestDrainOfDeafAgent: an agent that sends pings and reads nothing does not keep a server that
// stops from ending.
func TestDrainOfDeafAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{DrainTimeout: 2 * time.Second})
		s, err := b.dial("n")
		if err != nil {
			t.Fatal(err)
		}
		agent := &opener{Session: s}
		if _, _, err := tunnel.Greet(t.Context(), agent, one("n")); err != nil {
			t.Fatal(err)
		}
		ping := binary.BigEndian.AppendUint64([]byte{1, 6, 0, 8}, 1) // version, kind, length, number
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for err := error(nil); err == nil; {
				_, err = agent.opened.Write(ping)
			}
		}()
		synctest.Wait()
		began := time.Now()
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > b.hub.config.DrainTimeout+3*time.Second {
			t.Errorf("ended after %v", d)
		}
		<-sent
	})
}

// A windowless stream's peer grants no window: a write waits until its deadline, or the stream is
// aborted.
type windowless struct {
	tunnel.Stream
	over func()
	done <-chan struct{}
}

func newWindowless(st tunnel.Stream) tunnel.Stream {
	done := make(chan struct{})
	return &windowless{st, sync.OnceFunc(func() { close(done) }), done}
}

func (w *windowless) Write([]byte) (int, error) {
	<-w.done
	return 0, os.ErrDeadlineExceeded
}

func (w *windowless) SetWriteDeadline(t time.Time) error {
	time.AfterFunc(time.Until(t), w.over)
	return nil
}

func (w *windowless) Abort() error { w.over(); return tunnel.Abort(w.Stream) }

// TestNodeThatGrantsNoWindow: a node that says hello and takes no answer keeps neither the server
// from ending, nor a place among those that are greeted, nor its registration.
func TestNodeThatGrantsNoWindow(t *testing.T) {
	for name, end := range map[string]func(b *testHub){
		"the server ends":   func(b *testHub) { _ = b.stop() },
		"it is not awaited": func(b *testHub) { <-b.last().Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestHub(t, Config{DrainTimeout: 2 * time.Second})
				b.wrap = newWindowless
				s, err := b.dial("n")
				if err != nil {
					t.Fatal(err)
				}
				go func() { _, _, _ = tunnel.Greet(t.Context(), s, one("n")) }() // ends with the session
				synctest.Wait()
				began := time.Now()
				end(b)
				if d := time.Since(began); d > helloTimeout {
					t.Errorf("ended after %v", d)
				}
				synctest.Wait()
				if m := b.hub.registry.membersOf("n"); len(m) > 0 {
					t.Errorf("registered: %v", m)
				}
			})
		})
	}
}
