// Tests of the agent's waits.

package agent

import (
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestRetryAfter: a server that gives a time to come back is not tried before, and agents
// with the same time come back at different times.
func TestRetryAfter(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		const asked = 10 * time.Second
		h.decision = func(n int, _ tunnel.Hello) error {
			if n > 1 {
				return nil
			}
			return &tunnel.Goodbye{Code: tunnel.Busy, Text: "too many agents at once", Retry: asked}
		}
		defer h.open("hub:1")()
		start := time.Now()
		a := h.start(Config{Servers: []string{"hub:1"}})
		if err := a.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < asked || took > asked*3/2 || h.greetings() != 2 {
			t.Errorf("connected after %v and %d attempts, was asked to wait %v", took, h.greetings(), asked)
		}
	})
}

// TestRetryAfterElsewhere: another server is tried at once.
func TestRetryAfterElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.decision = func(n int, _ tunnel.Hello) error {
			if n > 1 {
				return nil
			}
			return &tunnel.Goodbye{Code: tunnel.Busy, Text: "too many agents at once", Retry: time.Minute}
		}
		defer h.open("hub:1")()
		defer h.open("hub:2")()
		start := time.Now()
		a := h.start(Config{Servers: []string{"hub:1", "hub:2"}})
		if err := a.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 0 || a.State().Server != "hub:2" {
			t.Errorf("connected to %s after %v", a.State().Server, took)
		}
	})
}

// TestRetryAfterOfOne: the delay that one server requests does not delay the attempts at
// another that is down.
func TestRetryAfterOfOne(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		var free atomic.Bool
		h.decision = func(int, tunnel.Hello) error {
			if free.Load() {
				return nil
			}
			return &tunnel.Goodbye{Code: tunnel.Busy, Text: "too many agents at once", Retry: time.Minute}
		}
		defer h.open("hub:1")()
		a := h.start(Config{Servers: []string{"hub:1", "hub:2"}, MaxBackoff: 5 * time.Second})
		pass(time.Second)
		defer h.open("hub:2")()
		free.Store(true)
		opened := time.Now()
		if err := a.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(opened); took > 5*time.Second || a.State().Server != "hub:2" {
			t.Errorf("connected to %s after %v", a.State().Server, took)
		}
	})
}

// TestRetryAfterSoonest: if each server requests a delay, the one with the shortest is tried
// first.
func TestRetryAfterSoonest(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.decision = func(n int, _ tunnel.Hello) error {
			if n > 2 {
				return nil
			}
			return &tunnel.Goodbye{Code: tunnel.Busy, Text: "too many agents at once", Retry: []time.Duration{time.Hour, time.Minute}[n-1]}
		}
		defer h.open("hub:1")()
		defer h.open("hub:2")()
		start := time.Now()
		a := h.start(Config{Servers: []string{"hub:1", "hub:2"}})
		if err := a.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Minute || a.State().Server != "hub:2" {
			t.Errorf("connected to %s after %v", a.State().Server, took)
		}
	})
}

// TestFlapping: sessions that live for a while do not add up to a back-off.
func TestFlapping(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.start(Config{Servers: []string{"hub:1"}})
		for range 50 {
			m := next(t, h.sessions)
			pass(settled)
			_ = m.session.Close()
		}
	})
}

// TestWaitCutShort: a change of the route ends the wait.
func TestWaitCutShort(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		a := h.start(Config{Servers: []string{"hub:1"}, MinBackoff: time.Second, MaxBackoff: time.Hour})
		pass(6 * time.Hour) // the wait is long by now
		defer h.open("hub:1")()
		changed := time.Now()
		h.shift("wlan0")
		if err := a.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(changed); took > time.Second {
			t.Errorf("connected %v after the way out changed", took)
		}
	})
}

// TestGoodbyeIsRead: the data that a server sent before its goodbye is delivered first.
func TestGoodbyeIsRead(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		ln, err := h.net.Listen(t.Context(), "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		got := make(chan string, 1)
		h.group.Go(func() {
			c, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			<-time.After(5 * time.Second) // a slow target
			b, err := io.ReadAll(c)
			if err != nil {
				t.Error(err)
			}
			got <- string(b)
		})
		h.start(Config{Servers: []string{"hub:1"}, Allow: targets(t, "10.0.0.0/8")})
		m := next(t, h.sessions)
		c, err := tunnel.Connect(t.Context(), m.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "last words"); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if err := m.control.Part(t.Context(), &tunnel.Goodbye{Code: tunnel.Draining, Text: "moved"}); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		select {
		case s := <-got:
			if s != "last words" {
				t.Errorf("the target read %q", s)
			}
		default:
			t.Error("the session ended before the target had read all")
		}
	})
}
