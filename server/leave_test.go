package server

import (
	"errors"
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
