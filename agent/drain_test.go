// Tests of servers and agents that drain.

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestDrain: an agent that stops notifies the server and waits for streams, also for one
// that the server was opening before the notification. It cuts those that do not end in
// time.
func TestDrain(t *testing.T) {
	for _, finishes := range []bool{true, false} {
		t.Run(fmt.Sprintf("finishes=%t", finishes), func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				defer h.open("hub:1")()
				h.echo("10.0.0.7:80")
				h.echo("apiserver:443")
				a := h.start(Config{Servers: []string{"hub:1"}, Allow: targets(t, "10.0.0.0/8"), DrainTimeout: 7 * time.Second})
				m := next(t, h.sessions)
				c, err := tunnel.Connect(t.Context(), m.session, "tcp", "10.0.0.7:80")
				if err != nil {
					t.Fatal(err)
				}
				asked := time.Now()
				a.stop()
				synctest.Wait()
				select {
				case <-m.control.Draining():
				default:
					t.Error("the server is not told")
				}
				under, err := tunnel.Connect(t.Context(), m.session, "tcp", "10.0.0.7:80")
				if err != nil {
					t.Fatalf("a stream that was under way: %v", err)
				}
				exchangeText(t, under)
				last, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
				if err != nil {
					t.Errorf("the node cannot say its last words: %v", err)
				} else {
					exchangeText(t, last)
				}
				pass(2 * time.Second)
				if finishes {
					exchangeText(t, c)
					h.group.Go(func() {
						_ = m.control.Part(t.Context(), &tunnel.Goodbye{Code: tunnel.Draining, Text: "the agent has left"})
					})
				}
				<-a.done
				took := time.Since(asked)
				switch {
				case finishes && took != 2*time.Second:
					t.Errorf("stopped after %v, when the stream had finished after 2 s", took)
				case !finishes && took != 7*time.Second:
					t.Errorf("stopped after %v, want 7 s", took)
				}
				if !finishes {
					if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
						t.Errorf("a stream that was cut: %v, want an error that is no end", err)
					}
				}
				synctest.Wait()
				var bye *tunnel.Goodbye
				h.mu.Lock()
				defer h.mu.Unlock()
				switch {
				case len(h.goodbyes) != 1:
					t.Errorf("sessions ended with %v", h.goodbyes)
				case finishes && !errors.Is(h.goodbyes[0], tunnel.Lost): // the agent closed it after the goodbye
					t.Errorf("the session ended with %v", h.goodbyes)
				case !finishes && (!errors.As(h.goodbyes[0], &bye) || bye.Code != tunnel.Draining):
					t.Errorf("the session ended with %v", h.goodbyes)
				}
			})
		})
	}
}

// TestServerDrains: if there is another server, the new link is made before the old one
// ends.
func TestServerDrains(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		defer h.open("hub:2")()
		h.echo("10.0.0.7:80")
		h.echo("apiserver:443")
		a := h.start(Config{Servers: []string{"hub:1", "hub:2"}, Allow: targets(t, "10.0.0.0/8")})
		first := next(t, h.sessions)
		c, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		if err := first.control.Drain(t.Context(), tunnel.Draining, "restart"); err != nil {
			t.Fatal(err)
		}
		second := next(t, h.sessions)
		if second.server != "hub:2" || !second.at.Equal(first.at) {
			t.Errorf("then %s at %v", second.server, second.at)
		}
		api, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
		if err != nil {
			t.Fatal(err)
		}
		exchangeText(t, api)
		exchangeText(t, c) // the old link still has its streams
		// Now the others drain too while the first has not ended: two draining sessions are
		// possible.
		m := second
		for i, want := range []string{"hub:1", "hub:2"} {
			if err := m.control.Drain(t.Context(), tunnel.Draining, "restart"); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
			if err := a.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			m = next(t, h.sessions)
			if m.server != want {
				t.Errorf("connected to %s", m.server)
			}
			if gone := first.session.Context().Err() != nil; gone != (i == 1) {
				t.Errorf("with %d links beside it, the first is gone: %t", i+2, gone)
			}
		}
		if got := m.hello.Meta[keepsKey]; got != "2" {
			t.Errorf("the last greeting keeps %q, want the link with the same server", got)
		}
	})
}

// TestDrainStartsOver: failed attempts before a session that lived do not delay the attempts
// after its server drained, however often servers restart.
func TestDrainStartsOver(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		tr := h.exchange.Transport()
		dial := tr.Dial
		tr.Dial = func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			if addr == "hub:2" { // it does not run
				<-time.After(time.Second)
			}
			return dial(ctx, addr, o)
		}
		a := h.start(Config{Servers: []string{"hub:1", "hub:2"}, Transport: tr})
		pass(10 * time.Minute) // the wait is long by now
		defer h.open("hub:1")()
		for i := range 3 {
			if err := a.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			m := next(t, h.sessions)
			pass(time.Hour)
			drained := time.Now()
			if err := m.control.Drain(t.Context(), tunnel.Draining, "restart"); err != nil {
				t.Fatal(err)
			}
			pass(time.Second / 2)
			_ = m.session.Close() // and it serves again
			if err := a.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(drained); took != time.Second {
				t.Errorf("restart %d: connected again after %v, want 1 s", i, took)
			}
		}
	})
}

// TestDrainedAtOnce: servers that drain each session at once are backed off from.
func TestDrainedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		defer h.open("hub:2")()
		a := h.start(Config{Servers: []string{"hub:1", "hub:2"}})
		start := time.Now()
		for range 10 {
			if err := a.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			m := next(t, h.sessions)
			if err := m.control.Drain(t.Context(), tunnel.Draining, "restart"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if time.Since(start) == 0 {
			t.Error("ten sessions without a wait between them")
		}
	})
}

// TestOnlyServerDrains: the name of the only server may lead to several, by a balancer. When its
// server is about to leave, the agent tries the name again, ever more seldom. Until that leads to
// another server, dials go by the session that drains, whose streams continue after that.
func TestOnlyServerDrains(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		var leaving atomic.Bool // the name leads to the server that is about to leave
		h.decision = func(int, tunnel.Hello) error {
			if leaving.Load() {
				return &tunnel.Goodbye{Code: tunnel.Draining, Text: "restart"}
			}
			return nil
		}
		defer h.open("hub:1")()
		h.echo("apiserver:443")
		h.echo("10.0.0.7:80")
		a := h.start(Config{Servers: []string{"hub:1"}, Allow: targets(t, "10.0.0.0/8")})
		first := next(t, h.sessions)
		in, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		pass(time.Minute)
		leaving.Store(true)
		if err := first.control.Drain(t.Context(), tunnel.Draining, "restart"); err != nil {
			t.Fatal(err)
		}
		dial := func() {
			t.Helper()
			c, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
			if err != nil {
				t.Fatal(err)
			}
			exchangeText(t, c)
		}
		for range 30 {
			said := time.Now()
			dial()
			if took := time.Since(said); took > 0 {
				t.Errorf("a dial waited %v although the server still answers", took)
			}
			pass(time.Second)
		}
		if n := h.greetings() - 1; n < 3 || n > 15 {
			t.Errorf("the server that is about to leave was tried %d times in 30 s", n)
		}
		leaving.Store(false)
		pass(DefaultMaxBackoff + 2*time.Second)
		second := next(t, h.sessions)
		if s := a.State(); !s.Connected || s.Session == 1 || second.hello.Meta[keepsKey] != "1" {
			t.Errorf("then %+v, greeted with %v", s, second.hello.Meta)
		}
		dial()
		say(t, in, "still here")
	})
}

// TestRefusedBeforeTheAnnouncement: a dial that the only server refuses because it stops waits for
// the next session, also if the refusal is read before the announcement.
func TestRefusedBeforeTheAnnouncement(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		leaving := h.restarting()
		defer h.open("hub:1")()
		h.echo("apiserver:443")
		a := h.start(Config{Servers: []string{"hub:1"}})
		m := next(t, h.sessions)
		pass(time.Minute)
		leaving.Store(true)
		dialed := h.dials(a)
		synctest.Wait()
		if err := m.control.Drain(t.Context(), tunnel.Draining, "restart"); err != nil {
			t.Fatal(err)
		}
		pass(3 * time.Second)
		select {
		case err := <-dialed:
			t.Fatalf("the dial has ended with %v", err)
		default:
		}
		leaving.Store(false)
		_ = m.session.Close()
		if err := <-dialed; err != nil {
			t.Error(err)
		}
	})
}

// restarting has servers refuse sessions and dials once the result is true.
func (h *servers) restarting() *atomic.Bool {
	leaving := new(atomic.Bool)
	h.decision = func(int, tunnel.Hello) error {
		if leaving.Load() {
			return &tunnel.Goodbye{Code: tunnel.Draining, Text: "restart"}
		}
		return nil
	}
	h.api = func(string) dialFunc {
		if leaving.Load() {
			return func(context.Context, string, string) (net.Conn, error) { return nil, tunnel.Draining }
		}
		return nil
	}
	return leaving
}

// dials returns the result of a dial of a, which goes on.
func (h *servers) dials(a *started) <-chan error {
	dialed := make(chan error, 1)
	h.group.Go(func() {
		c, err := a.DialContext(h.t.Context(), "tcp", "apiserver:443")
		if err == nil {
			err = c.Close()
		}
		dialed <- err
	})
	return dialed
}

// TestOnlyServerRestarts: a dial that a server refuses because it stops waits for the next
// session, which is tried at once when the one that drains has ended.
func TestOnlyServerRestarts(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		leaving := h.restarting()
		defer h.open("hub:1")()
		h.echo("apiserver:443")
		a := h.start(Config{Servers: []string{"hub:1"}})
		m := next(t, h.sessions)
		pass(time.Minute)
		leaving.Store(true)
		if err := m.control.Drain(t.Context(), tunnel.Draining, "restart"); err != nil {
			t.Fatal(err)
		}
		dialed := h.dials(a)
		pass(3 * time.Second)
		select {
		case err := <-dialed:
			t.Fatalf("the dial has ended with %v", err)
		default:
		}
		leaving.Store(false)
		_ = m.session.Close()
		said := time.Now()
		if err := <-dialed; err != nil {
			t.Error(err)
		}
		if took := time.Since(said); took > DefaultMinBackoff {
			t.Errorf("connected again %v after the end of the session", took)
		}
	})
}
