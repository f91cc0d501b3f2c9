// Tests of the loop that keeps one link.

package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestAttempts: the servers are tried in turn, each at once the first time, and then with
// back-off. The reason is logged once, and not each time.
func TestAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		type attempt struct {
			server string
			at     time.Time
		}
		var (
			mu       sync.Mutex // guards the following
			attempts []attempt
			configs  int
		)
		tr := h.exchange.Transport()
		dial := tr.Dial
		tr.Dial = func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			mu.Lock()
			attempts = append(attempts, attempt{addr, time.Now()})
			mu.Unlock()
			return dial(ctx, addr, o)
		}
		start := time.Now()
		a := h.start(Config{
			Servers: []string{"hub:1", "hub:2"}, Transport: tr,
			TLS: func(context.Context) (*tls.Config, error) {
				mu.Lock()
				defer mu.Unlock()
				configs++
				return nil, nil //nolint:nilnil // in memory
			},
		})
		pass(30 * time.Minute)
		a.stop()
		<-a.done
		// The average interval is 15 s, so there are about 120 attempts. Three times that
		// or a third of it is a fault.
		if n := len(attempts); n < 60 || n > 360 || configs != n {
			t.Fatalf("%d attempts in half an hour, with %d configurations", n, configs)
		}
		for i, at := range attempts {
			if want := []string{"hub:1", "hub:2"}[i%2]; at.server != want {
				t.Fatalf("attempt %d goes to %s, want %s", i, at.server, want)
			}
			if i == 0 {
				continue
			}
			if gap := at.at.Sub(attempts[i-1].at); gap > DefaultMaxBackoff {
				t.Errorf("attempt %d comes after %v", i, gap)
			}
		}
		if third := attempts[2].at.Sub(start); third != 0 {
			t.Errorf("each server failed once and is tried again after %v, want at once", third)
		}
		lines := a.log.lines("cannot connect")
		if n := len(lines); n < 2*15 || n > 2*31 {
			t.Errorf("%d log lines in half an hour about two servers that fail alike, want one a minute for each", n)
		}
		if len(a.log.lines("connection refused")) != len(lines) || len(a.log.lines("repeated=")) == 0 {
			t.Errorf("lines do not say why, or how often: %q", lines[len(lines)-1])
		}
	})
}

// TestLostSession: a session that lasted is followed by another at once, with the same server
// if that admits it, and else with the next.
func TestLostSession(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		shut := h.open("hub:1")
		defer h.open("hub:2")()
		h.start(Config{Servers: []string{"hub:1", "hub:2"}})
		first := next(t, h.sessions)
		pass(time.Hour)
		lost := time.Now()
		if err := first.session.Close(); err != nil {
			t.Fatal(err)
		}
		second := next(t, h.sessions)
		if second.server != "hub:1" || !second.at.Equal(lost) {
			t.Errorf("lost at %v, then %s at %v", lost, second.server, second.at)
		}
		if second.hello.Sequence != 2 || second.hello.Instance != first.hello.Instance {
			t.Errorf("hello %+v after %+v", second.hello, first.hello)
		}
		pass(time.Hour)
		lost = time.Now()
		shut()
		third := next(t, h.sessions)
		if third.server != "hub:2" || !third.at.Equal(lost) {
			t.Errorf("server gone at %v, then %s at %v", lost, third.server, third.at)
		}
	})
}

// TestServerFallsOver: there is a back-off after sessions that end at once.
func TestServerFallsOver(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.group.Go(func() {
			for {
				select {
				case m := <-h.sessions:
					_ = m.session.Close()
				case <-t.Context().Done():
					return
				}
			}
		})
		h.start(Config{Servers: []string{"hub:1"}})
		pass(30 * time.Minute)
		if n := h.greetings(); n < 60 || n > 360 {
			t.Errorf("%d sessions in half an hour", n)
		}
	})
}

// TestSilentServer: an attempt at a server that accepts and sends nothing times out.
func TestSilentServer(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := h.exchange.Listen("hub:1")
		h.group.Go(func() {
			if err := l.Serve(ctx, func(ctx context.Context, _ tunnel.Session) { <-ctx.Done() }); err != nil {
				t.Error(err)
			}
		})
		a := h.start(Config{Servers: []string{"hub:1"}})
		pass(connectTimeout + time.Second)
		if s := a.State(); s.Failures == 0 || tunnel.CodeOf(s.Err) != tunnel.Timeout {
			t.Errorf("after the time for connecting: %+v", s)
		}
	})
}

// TestRefused: the agent logs the reason as an error, and keeps trying.
func TestRefused(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		h.decision = func(n int, _ tunnel.Hello) error {
			if n < 5 {
				return fmt.Errorf("%w: the certificate is for another node", tunnel.Denied)
			}
			return nil
		}
		defer h.open("hub:1")()
		a := h.start(Config{Servers: []string{"hub:1"}})
		synctest.Wait()
		var r *Refusal
		if s := a.State(); !errors.As(s.Err, &r) || r.Server != "hub:1" || !errors.Is(s.Err, ErrNodeRefused) || !errors.Is(s.Err, tunnel.Denied) {
			t.Errorf("refused: %+v", s)
		}
		if lines := a.log.lines("level=ERROR"); len(lines) != 1 || len(a.log.lines("certificate is for another node")) == 0 {
			t.Errorf("log: %q", lines)
		}
		if err := a.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := h.greetings(); n != 5 {
			t.Errorf("%d greetings, want 5", n)
		}
	})
}

// TestClones: two agents with one identity, and a server that prefers the newest, do not
// replace each other in a fast loop.
func TestClones(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.group.Go(func() {
			var current *welcomed
			for {
				select {
				case m := <-h.sessions:
					if old := current; old != nil {
						h.group.Go(func() {
							_ = old.control.HangUp(&tunnel.Goodbye{Code: tunnel.Replaced, Text: "another agent with this node's identity"})
						})
					}
					current = m
				case <-t.Context().Done():
					return
				}
			}
		})
		one := h.start(Config{Servers: []string{"hub:1"}})
		pass(time.Second)
		two := h.start(Config{Servers: []string{"hub:1"}})
		pass(time.Second)
		if s := one.State(); s.Connected || !errors.Is(s.Err, ErrReplaced) || !errors.Is(s.Err, tunnel.Replaced) {
			t.Errorf("the older one: %+v", s)
		}
		if !two.State().Connected {
			t.Errorf("the newer one: %+v", two.State())
		}
		if lines := one.log.lines("level=ERROR"); len(lines) != 1 || len(one.log.lines("copy of another")) != 1 {
			t.Errorf("log: %q", one.log.lines(""))
		}
		pass(time.Hour)
		// Waits grow to between 150 and 300 s, for two alternating agents.
		if n := h.greetings(); n > 2*3600/150+10 {
			t.Errorf("%d sessions in an hour", n)
		}
	})
}

// TestFenced: an agent that the server refuses because of another one backs off as if it
// had been replaced. The start and the end of the fence are each reported once.
func TestFenced(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		var other atomic.Bool
		h.decision = func(int, tunnel.Hello) error {
			if other.Load() {
				return tunnel.Replaced
			}
			return nil
		}
		shut := h.open("hub:1")
		var told []bool
		a := h.start(Config{Servers: []string{"hub:1"}, Fenced: func(up bool) { told = append(told, up) }})
		want := func(when string, fenced bool, want ...bool) {
			t.Helper()
			if !slices.Equal(told, want) || a.State().Fenced != fenced {
				t.Errorf("%s: told %v and in state %t, want %v and %t", when, told, a.State().Fenced, want, fenced)
			}
		}
		next(t, h.sessions)
		want("connected", false)
		shut() // which is not about another agent
		pass(10 * time.Minute)
		want("cut off", false)
		shut = h.open("hub:1")
		pass(10 * time.Minute)
		m := next(t, h.sessions)
		other.Store(true)
		_ = m.control.HangUp(&tunnel.Goodbye{Code: tunnel.Replaced, Text: "another agent with this node's identity"})
		pass(time.Second)
		want("replaced", true, true)
		from := h.greetings()
		pass(time.Hour)
		if n := h.greetings() - from; n < 5 || n > 40 {
			t.Errorf("%d attempts in an hour", n)
		}
		if !errors.Is(a.State().Err, ErrReplaced) {
			t.Errorf("state: %+v", a.State())
		}
		want("turned away", true, true)
		shut() // an unreachable server does not end the fence
		pass(10 * time.Minute)
		want("turned away, and cut off", true, true)
		other.Store(false)
		defer h.open("hub:1")()
		pass(10 * time.Minute)
		want("taken back", false, true, false)
	})
}

// TestRevoked: an agent that the server does not admit any more is fenced and keeps trying,
// at the times that the server gives. Config.Revoked is called only if the agent was already
// refused when it started.
func TestRevoked(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		var out atomic.Bool
		h.decision = func(int, tunnel.Hello) error {
			if out.Load() {
				return &tunnel.Goodbye{Code: tunnel.Revoked, Text: "node was revoked", Retry: 30 * time.Second}
			}
			return nil
		}
		defer h.open("hub:1")()
		var fenced atomic.Bool
		var asked atomic.Int64
		conf := func() Config {
			return Config{Servers: []string{"hub:1"}, Fenced: fenced.Store, Revoked: func(began time.Time) {
				asked.Add(1)
				if d := time.Since(began); d < 0 || d > time.Second {
					t.Errorf("the attempt that was refused began %v ago", d)
				}
			}}
		}
		a := h.start(conf())
		pass(time.Second)
		out.Store(true)
		if err := (<-h.sessions).control.HangUp(&tunnel.Goodbye{Code: tunnel.Revoked, Text: "node was revoked"}); err != nil {
			t.Error(err)
		}
		pass(time.Hour)
		if !fenced.Load() || asked.Load() != 0 || !errors.Is(a.State().Err, ErrRevoked) {
			t.Errorf("revoked while it ran: fenced %t, told %d times, %v", fenced.Load(), asked.Load(), a.State().Err)
		}
		if n := h.greetings(); n < 3600/60 || n > 3600/30+5 {
			t.Errorf("%d attempts in an hour", n)
		}
		if n := len(a.log.lines("hawser node allow")); n == 0 || n > 65 {
			t.Errorf("%d lines that say what to do", n)
		}
		h.start(conf())
		pass(time.Minute)
		if !fenced.Load() || asked.Load() == 0 {
			t.Errorf("revoked before it started: fenced %t, told %d times", fenced.Load(), asked.Load())
		}
		out.Store(false)
		pass(time.Minute)
		if fenced.Load() || !a.State().Connected {
			t.Errorf("admitted: fenced %t, %+v", fenced.Load(), a.State())
		}
	})
}

// TestRevokedByOneOfTwo: a server that none of the node's sessions was with does not have a
// node join again that was revoked while it ran: no operator has started it since.
func TestRevokedByOneOfTwo(t *testing.T) {
	for name, same := range map[string]bool{"a server that was down": false, "two addresses of one server": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				revoked := &tunnel.Goodbye{Code: tunnel.Revoked, Text: "node was revoked", Retry: 30 * time.Second}
				var out atomic.Bool
				h.decision = func(int, tunnel.Hello) error {
					if out.Load() {
						return revoked
					}
					return nil
				}
				h.open("a:1")
				if same {
					h.identity = sameServer
					h.open("b:1")
				}
				var asked atomic.Int64
				g := h.startGroup(Config{Servers: []string{"a:1", "b:1"}, Revoked: func(time.Time) { asked.Add(1) }}, 2)
				pass(time.Minute)
				out.Store(true)
				for len(h.sessions) > 0 {
					if m := <-h.sessions; m.session.Context().Err() == nil {
						if err := m.control.HangUp(revoked); err != nil {
							t.Error(err)
						}
					}
				}
				if !same {
					h.open("b:1")
				}
				pass(time.Hour)
				if asked.Load() != 0 || !errors.Is(g.State().Err, ErrRevoked) {
					t.Errorf("told %d times to join again, %v", asked.Load(), g.State().Err)
				}
			})
		})
	}
}

// TestTurnedAwayUntil: an agent that is refused because the server prefers another one comes
// back at the time that the server gives, and logs that time each time.
func TestTurnedAwayUntil(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		const asked, refusals = 40 * time.Second, 20
		var attempts []time.Time
		h.decision = func(n int, _ tunnel.Hello) error {
			attempts = append(attempts, time.Now())
			if n > refusals {
				return nil
			}
			return &tunnel.Goodbye{Code: tunnel.Replaced, Text: "another agent with this node's identity is connected", Retry: asked}
		}
		defer h.open("hub:1")()
		a := h.start(Config{Servers: []string{"hub:1"}})
		pass(time.Hour)
		if !a.State().Connected || len(attempts) != refusals+1 {
			t.Fatalf("%d attempts, and then %+v", len(attempts), a.State())
		}
		lines := a.log.lines("refused: another agent")
		if len(lines) != refusals {
			t.Fatalf("%d lines for %d refusals: %q", len(lines), refusals, a.log.lines(""))
		}
		for i, line := range lines {
			if d := attempts[i+1].Sub(attempts[i]); d < asked || d > asked*3/2 {
				t.Errorf("attempt %d comes after %v", i+2, d)
			}
			if when := attempts[i+1].Format(time.RFC3339); !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "next="+when) {
				t.Errorf("the next attempt is at %s, but: %s", when, line)
			}
		}
	})
}

// TestNewFailureIsNews: after a session, the same failure as before is logged again.
func TestNewFailureIsNews(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		a := h.start(Config{Servers: []string{"hub:1"}, MaxBackoff: time.Second})
		synctest.Wait()
		shut := h.open("hub:1")
		if err := a.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := len(a.log.lines("cannot connect"))
		shut()
		pass(5 * time.Second)
		if n := len(a.log.lines("cannot connect")) - before; before != 1 || n != 1 {
			t.Errorf("%d lines before the session and %d after it, want 1 and 1", before, n)
		}
	})
}

// TestSessionsAskForRoots: each connection of a session trusts the authorities that there are then.
func TestSessionsAskForRoots(t *testing.T) {
	pool := x509.NewCertPool()
	var asked *x509.CertPool
	a, err := New(Config{Servers: []string{"hub:1"}, NodeName: "node-1", Roots: func() *x509.CertPool { return pool }, Transport: tunnel.Transport{
		Dial: func(_ context.Context, _ string, o tunnel.Options) (tunnel.Session, error) {
			asked = o.Roots()
			return nil, tunnel.Refused
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.connect(t.Context(), plan{server: "hub:1", sequence: 1}); err == nil || asked != pool {
		t.Errorf("%v, %v", asked, err)
	}
}
