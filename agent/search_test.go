// Tests of moving from one session, or connection, to another while streams go on.

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hawser-project/hawser/tunnel"
)

// say sends text to an echo and reads it back.
func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("echo: %q, %v", got, err)
	}
}

// TestFallBack: when a session loses its connection the other server is tried within 3 s.
// Waiting dials go there too, and the session keeps its streams.
func TestFallBack(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		defer h.open("hub:2")()
		h.echo("apiserver:443")
		h.echo("10.0.0.7:80")
		fakeTransport := h.fakeTransport()
		var moved []bool
		c := Config{Servers: []string{"hub:1", "hub:2"}, Transport: fakeTransport.transport(), Allow: targets(t, "10.0.0.0/8")}
		c.Moved = func(stuck bool) { moved = append(moved, stuck) }
		reg := prometheus.NewRegistry()
		c.Metrics = reg
		a := h.start(c)
		pass(time.Hour)
		first := next(t, h.sessions)
		in, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		old := fakeTransport.latest()
		old.park()
		if s := a.State(); s.Connected || s.Parked.IsZero() || s.Session != 1 {
			t.Errorf("parked: %+v", s)
		}
		lost := time.Now()
		fresh, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(lost); took > 3*time.Second {
			t.Errorf("a dial took %v", took)
		}
		exchangeText(t, fresh)
		second := next(t, h.sessions)
		if s := a.State(); !s.Connected || s.Server != "hub:2" || second.hello.Meta[keepsKey] != "" {
			t.Errorf("fallen back: %+v, greeted with %v", s, second.hello.Meta)
		}
		if !slices.Equal(moved, []bool{true}) {
			t.Errorf("told of moves: %v", moved)
		}
		pass(20 * time.Second)
		old.resume()
		exchangeText(t, in)
		want := `
# HELP hawser_agent_link_parks_total Connections lost by sessions that continued.
# TYPE hawser_agent_link_parks_total counter
hawser_agent_link_parks_total{transport="fakeTransport"} 1
# HELP hawser_agent_link_retransmitted_bytes_total Bytes retransmitted on another connection.
# TYPE hawser_agent_link_retransmitted_bytes_total counter
hawser_agent_link_retransmitted_bytes_total{transport="fakeTransport"} 100
# HELP hawser_agent_link_resumes_total Connections that took the place of others.
# TYPE hawser_agent_link_resumes_total counter
hawser_agent_link_resumes_total{transport="fakeTransport"} 1
# HELP hawser_agent_migrations_total Migrations to another connection (reason connection) or to a new session (fallback, address), by reason and result.
# TYPE hawser_agent_migrations_total counter
hawser_agent_migrations_total{reason="fallback",result="ok"} 1
# HELP hawser_agent_sessions_total Sessions established with a server, by transport.
# TYPE hawser_agent_sessions_total counter
hawser_agent_sessions_total{transport="fakeTransport"} 2
`
		for range 2 { // with the old session, and when it has ended
			if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "hawser_agent_link_parks_total",
				"hawser_agent_link_resumes_total", "hawser_agent_link_retransmitted_bytes_total", "hawser_agent_migrations_total",
				"hawser_agent_sessions_total"); err != nil {
				t.Error(err)
			}
			_ = first.session.Close()
			synctest.Wait()
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("metrics: %v, %v", problems, err)
		}
	})
}

// TestParkedComesBack: with only one server, the agent waits for the session to resume, and
// logs it.
func TestParkedComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.echo("apiserver:443")
		fakeTransport := h.fakeTransport()
		a := h.start(Config{Servers: []string{"hub:1"}, Transport: fakeTransport.transport()})
		pass(time.Minute)
		b := fakeTransport.latest()
		b.park()
		waited := make(chan error, 1)
		h.group.Go(func() { waited <- a.Wait(t.Context()) })
		dialed := make(chan net.Conn, 1)
		h.group.Go(func() {
			c, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
			if err != nil {
				t.Error(err)
			}
			dialed <- c
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.Wait(ctx); err == nil || !strings.Contains(err.Error(), "hub:1") {
			t.Errorf("Wait for a parked session: %v", err)
		}
		pass(20 * time.Second)
		select {
		case <-waited:
			t.Error("Wait says that a parked session is connected")
		default:
		}
		b.resume()
		pass(2 * checkEvery)
		if err := next(t, waited); err != nil {
			t.Error(err)
		}
		exchangeText(t, next(t, dialed))
		if n := h.greetings(); n != 1 {
			t.Errorf("%d greetings", n)
		}
		if len(a.log.lines("connection lost, the session waits")) != 1 || len(a.log.lines("resent=100")) != 1 {
			t.Errorf("log: %q", a.log.lines(""))
		}
		b.park()
		b.resume()
		pass(2 * checkEvery)
		if len(a.log.lines("session migrated")) != 1 {
			t.Errorf("log of a short loss: %q", a.log.lines(""))
		}
		b.park()
		pass(2 * checkEvery)
		b.resume()
		b.park()
		pass(2 * checkEvery)
		if len(a.log.lines("connection lost, the session waits")) != 3 || len(a.log.lines("session resumed")) != 1 {
			t.Errorf("log of two losses between which nobody looked: %q", a.log.lines(""))
		}
		b.resume()
	})
}

// TestParkedComesBackFirst: an attempt at another server is cancelled when the session
// resumes before the greeting.
func TestParkedComesBackFirst(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		defer h.open("hub:2")()
		fakeTransport := h.fakeTransport()
		a := h.start(Config{Servers: []string{"hub:1", "hub:2"}, Transport: slow(fakeTransport, "hub:2", 10*time.Second)})
		pass(time.Minute)
		b := fakeTransport.latest()
		b.park()
		pass(5 * time.Second)
		b.resume()
		pass(time.Minute)
		if s := a.State(); s.Server != "hub:1" || !s.Connected || h.greetings() != 1 {
			t.Errorf("after a session came back: %+v, %d greetings", s, h.greetings())
		}
		if n := len(fakeTransport.dialed()); n != 2 {
			t.Errorf("%d dials", n)
		}
	})
}

// TestLostWhileSeeking: the session ends while another server is tried, and that
// becomes the next session.
func TestLostWhileSeeking(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		defer h.open("hub:2")()
		fakeTransport := h.fakeTransport()
		a := h.start(Config{Servers: []string{"hub:1", "hub:2"}, Transport: slow(fakeTransport, "hub:2", 3*time.Second)})
		pass(time.Minute)
		first := next(t, h.sessions)
		fakeTransport.latest().park()
		pass(3 * time.Second)
		_ = first.session.Close()
		pass(searchTimeout)
		if s := a.State(); s.Server != "hub:2" || !s.Connected || h.greetings() != 2 {
			t.Errorf("%+v, %d greetings", s, h.greetings())
		}
	})
}

// TestLostWhileSeekingInVain: the session ends while another server is tried that does not
// answer. Its own server is tried soon.
func TestLostWhileSeekingInVain(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		fakeTransport := h.fakeTransport()
		tr := fakeTransport.transport()
		tr.Dial = func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			if addr == "hub:2" {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return fakeTransport.dial(ctx, addr, o)
		}
		a := h.start(Config{Servers: []string{"hub:1", "hub:2"}, Transport: tr})
		pass(time.Minute)
		first := next(t, h.sessions)
		fakeTransport.latest().park()
		pass(3 * time.Second)
		lost := time.Now()
		_ = first.session.Close()
		if err := a.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(lost); took != searchTimeout || a.State().Server != "hub:1" {
			t.Errorf("connected to %s after %v, want %v", a.State().Server, took, searchTimeout)
		}
	})
}

// TestOneServerIsLeftAlone: with one server there is no fallback.
func TestOneServerIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		fakeTransport := h.fakeTransport()
		h.start(Config{Servers: []string{"hub:1"}, Transport: fakeTransport.transport()})
		pass(time.Minute)
		fakeTransport.latest().park()
		pass(10 * time.Minute)
		if n := len(fakeTransport.dialed()); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
}

// TestWayOutChanges: a session that can migrate moves to another connection, any other is
// followed by a new one. Nothing happens while there is no route.
func TestWayOutChanges(t *testing.T) {
	for _, resumes := range []bool{true, false} {
		t.Run(fmt.Sprintf("resumes=%t", resumes), func(t *testing.T) {
			bubble(t, func(t *testing.T, h *servers) {
				defer h.open("hub:1")()
				h.echo("10.0.0.7:80")
				fakeTransport := h.fakeTransport()
				fakeTransport.resumes = resumes
				h.start(Config{Servers: []string{"hub:1"}, Transport: fakeTransport.transport(), Allow: targets(t, "10.0.0.0/8")})
				first := next(t, h.sessions)
				c, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
				if err != nil {
					t.Fatal(err)
				}
				h.shift("eth0") // no change
				h.shift("")
				if n := h.greetings(); n != 1 || resumes && fakeTransport.latest().moved() != 0 {
					t.Errorf("%d greetings without a way out", n)
				}
				h.shift("wlan0")
				exchangeText(t, c)
				switch {
				case resumes && (fakeTransport.latest().moved() != 1 || h.greetings() != 1):
					t.Errorf("%d moves, %d greetings", fakeTransport.latest().moved(), h.greetings())
				case !resumes:
					if m := next(t, h.sessions); m.hello.Meta[keepsKey] != "1" {
						t.Errorf("greeted with %v", m.hello.Meta)
					}
				}
				if resumes { // a parked session tries again after any change
					fakeTransport.latest().park()
					h.shift("wlan0")
					if n := fakeTransport.latest().moved(); n != 2 {
						t.Errorf("%d moves", n)
					}
				}
			})
		})
	}
}

// TestMoveTimeout: streams on a superseded session are cut after some time.
func TestMoveTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.echo("10.0.0.7:80")
		fakeTransport := h.fakeTransport()
		fakeTransport.resumes = false
		a := h.start(Config{Servers: []string{"hub:1"}, Transport: fakeTransport.transport(), Allow: targets(t, "10.0.0.0/8"), MoveTimeout: 20 * time.Minute})
		pass(time.Minute)
		first := next(t, h.sessions)
		in, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		h.shift("wlan0")
		pass(19 * time.Minute)
		say(t, in, "still here")
		pass(2 * time.Minute)
		if _, err := in.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("a stream that was cut: %v, want an error that is no end", err)
		}
		if len(a.log.lines("cutting streams")) != 1 || !a.State().Connected {
			t.Errorf("log: %q", a.log.lines("cutting"))
		}
	})
}

// TestSuspended: suspend is distinguished from the passing of time, and from small corrections of
// the wall clock.
func TestSuspended(t *testing.T) {
	for _, tc := range []struct {
		wall, monotonic time.Duration
		want            bool
	}{
		{time.Hour, time.Hour, false},
		{time.Hour, time.Second, true},
		{time.Second + suspendedFrom, time.Second, true},
		{time.Second + suspendedFrom - 1, time.Second, false},
		{-time.Hour, time.Second, false},
	} {
		if got := suspended(tc.wall, tc.monotonic); got != tc.want {
			t.Errorf("%v by the wall clock and %v by the other: %t", tc.wall, tc.monotonic, got)
		}
	}
}

// TestFallBackHeedsRetryAfter: a server that asks to be left alone for a while is, also by an agent
// whose session waits for a connection.
func TestFallBackHeedsRetryAfter(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		defer h.open("hub:2")()
		var asked int
		h.opinion = func(name string) error {
			if name != "hub:2" {
				return nil
			}
			asked++
			return &tunnel.Goodbye{Code: tunnel.Busy, Text: "full", Retry: 10 * time.Minute}
		}
		fakeTransport := h.fakeTransport()
		h.start(Config{Servers: []string{"hub:1", "hub:2"}, Transport: fakeTransport.transport()})
		pass(time.Minute)
		fakeTransport.latest().park()
		pass(55 * time.Second)
		if asked != 1 {
			t.Errorf("asked %d times within 55 s", asked)
		}
		_ = fakeTransport.latest().Close()
		pass(time.Second)
	})
}

// TestMovesAfterSuspension: a session migrates after a suspension though the route is the same, as
// soon as there is one.
func TestMovesAfterSuspension(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		fakeTransport := h.fakeTransport()
		a, err := New(Config{Servers: []string{"hub:1"}, NodeName: "node-1", Transport: fakeTransport.transport()})
		if err != nil {
			t.Fatal(err)
		}
		a.routing = h.routing()
		l, err := a.connect(t.Context(), plan{server: "hub:1", sequence: 1})
		if err != nil {
			t.Fatal(err)
		}
		k := keeper{agent: a}
		h.shift("wlan0")
		l.path = a.routing.path(netip.Addr{})
		moves := 0
		for i, look := range []struct {
			route            string
			suspended, moves bool
		}{
			{"wlan0", false, false},
			{"wlan0", true, true},
			{"", false, false},
			{"wlan0", false, false},
			{"", false, false}, // goes to sleep
			{"", true, false},  // wakes up before there is a route
			{"wlan0", false, true},
			{"wlan0", false, false},
		} {
			h.shift(look.route)
			k.moving = nil
			k.pathChanged(t.Context(), l, look.suspended)
			k.links.Wait()
			if look.moves {
				moves++
			}
			if got := fakeTransport.latest().moved(); got != moves {
				t.Fatalf("look %d: migrated %d times, want %d", i, got, moves)
			}
		}
		_ = l.session.Close()
	})
}
