// Tests of moving from one session to another while streams go on.

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hawser-project/hawser/tunnel"
)

// auto is a configuration with both transports.
func auto(quic, yamux *rig) Config {
	return Config{Servers: []string{"hub:1"}, Transports: []tunnel.Transport{quic.transport(), yamux.transport()}}
}

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

// TestTransportsInTurn: the preferred transport has a head start of a second; what
// worked is tried first from then on, until the way out changes.
func TestTransportsInTurn(t *testing.T) {
	for name, tt := range map[string]struct {
		mute bool
		err  error
		want time.Duration
	}{
		"silence": {mute: true, want: transportHeadStart},
		"error":   {err: tunnel.Refused, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harbor) {
				defer h.open("hub:1")()
				quic, yamux := h.rigs()
				quic.set(tt.mute, tt.err)
				start := time.Now()
				a := h.sail(auto(quic, yamux))
				if err := a.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != tt.want || a.State().Transport != "yamux" {
					t.Errorf("a session over %s after %v, want yamux after %v", a.State().Transport, took, tt.want)
				}
				first := next(t, h.moored)
				pass(time.Minute)
				_ = first.session.Close()
				if m := next(t, h.moored); !m.at.Equal(start.Add(tt.want+time.Minute)) || a.State().Transport != "yamux" {
					t.Errorf("then one over %s %v later", a.State().Transport, m.at.Sub(start))
				}
				if n := len(quic.dialed()); n != 1 {
					t.Errorf("quic was tried %d times", n)
				}
				quic.set(false, nil)
				h.shift("wlan0")
				pass(2 * shiftProbe)
				if s := a.State(); s.Transport != "quic" || !s.Connected {
					t.Errorf("with a new way out: %+v", s)
				}
			})
		})
	}
}

// TestProbe: a session that had to begin on the second transport moves up to the
// first when that works, and its streams go on.
func TestProbe(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		h.echo("apiserver:443")
		h.echo("10.0.0.7:80")
		quic, yamux := h.rigs()
		quic.set(true, nil)
		var moved []bool
		c := auto(quic, yamux)
		c.Allow = targets(t, "10.0.0.0/8")
		c.Moved = func(stuck bool) { moved = append(moved, stuck) }
		a := h.sail(c)
		pass(time.Minute)
		first := next(t, h.moored)
		in, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		out, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
		if err != nil {
			t.Fatal(err)
		}
		pass(4 * time.Hour)
		dials := quic.dialed()
		for i, want := range []time.Duration{5, 10, 20, 40, 60, 60} {
			want *= time.Minute
			if gap := dials[i+1].Sub(dials[i]); gap < want*7/10 || gap > want*13/10 {
				t.Errorf("probe %d came %v after the last, want about %v", i+1, gap, want)
			}
		}
		if s := a.State(); s.Transport != "yamux" || !s.Connected || h.greetings() != 1 {
			t.Errorf("before quic works: %+v after %d greetings", s, h.greetings())
		}
		quic.set(false, nil)
		for range 9 {
			if pass(10 * time.Minute); a.State().Transport == "quic" {
				break
			}
		}
		second := next(t, h.moored)
		if s := a.State(); s.Transport != "quic" || s.Session != 2 || second.hello.Meta[keepsKey] != "1" {
			t.Errorf("when quic works: %+v, greeted with %v", s, second.hello.Meta)
		}
		if !slices.Equal(moved, []bool{false}) {
			t.Errorf("told of moves: %v", moved)
		}
		say(t, in, "still")
		say(t, out, "here")
		_ = second.session.Context() // the hub's new dials go there
		fresh, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
		if err != nil {
			t.Fatal(err)
		}
		_ = first.session.Close()
		exchangeText(t, fresh)
		if !a.State().Connected {
			t.Error("the end of the old session is that of the new one")
		}
		_, _ = in.Close(), out.Close()
	})
}

// TestMeteredDoesNotProbe, but for a new way out.
func TestMeteredDoesNotProbe(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		quic, yamux := h.rigs()
		quic.set(true, nil)
		c := auto(quic, yamux)
		c.Link.Metered = true
		a := h.sail(c)
		pass(24 * time.Hour)
		if n := len(quic.dialed()); n != 1 {
			t.Errorf("quic was tried %d times in a day", n)
		}
		quic.set(false, nil)
		h.shift("wlan0")
		pass(time.Minute)
		if a.State().Transport != "quic" {
			t.Errorf("with a new way out: %+v", a.State())
		}
	})
}

// TestAroundParked: a session that loses its connection is gone around by the
// other transport within 3 s; what waited for it goes there too, and it keeps its
// streams.
func TestAroundParked(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		h.echo("apiserver:443")
		h.echo("10.0.0.7:80")
		quic, yamux := h.rigs()
		var moved []bool
		c := auto(quic, yamux)
		c.Allow = targets(t, "10.0.0.0/8")
		c.Moved = func(stuck bool) { moved = append(moved, stuck) }
		reg := prometheus.NewRegistry()
		c.Metrics = reg
		a := h.sail(c)
		pass(time.Hour)
		first := next(t, h.moored)
		in, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		old := quic.latest()
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
		second := next(t, h.moored)
		if s := a.State(); !s.Connected || s.Transport != "yamux" || second.hello.Meta[keepsKey] != "1" {
			t.Errorf("gone around: %+v, greeted with %v", s, second.hello.Meta)
		}
		if !slices.Equal(moved, []bool{true}) {
			t.Errorf("told of moves: %v", moved)
		}
		pass(20 * time.Second)
		old.resume()
		exchangeText(t, in)
		want := `
# HELP hawser_agent_link_parks_total Connections that were lost under a session that outlived them.
# TYPE hawser_agent_link_parks_total counter
hawser_agent_link_parks_total{transport="quic"} 1
hawser_agent_link_parks_total{transport="yamux"} 0
# HELP hawser_agent_link_resent_bytes_total Bytes that had to be sent again.
# TYPE hawser_agent_link_resent_bytes_total counter
hawser_agent_link_resent_bytes_total{transport="quic"} 100
hawser_agent_link_resent_bytes_total{transport="yamux"} 0
# HELP hawser_agent_link_resumes_total Connections that a session took after its first.
# TYPE hawser_agent_link_resumes_total counter
hawser_agent_link_resumes_total{transport="quic"} 1
hawser_agent_link_resumes_total{transport="yamux"} 0
# HELP hawser_agent_moves_total Attempts to go on over another connection or session, by reason (connection: the session moves itself, fallback, upgrade, address) and result.
# TYPE hawser_agent_moves_total counter
hawser_agent_moves_total{reason="fallback",result="ok"} 1
# HELP hawser_agent_sessions_total Sessions with a server that began, by transport.
# TYPE hawser_agent_sessions_total counter
hawser_agent_sessions_total{transport="quic"} 1
hawser_agent_sessions_total{transport="yamux"} 1
`
		for range 2 { // with the old session, and when it has ended
			if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "hawser_agent_link_parks_total",
				"hawser_agent_link_resumes_total", "hawser_agent_link_resent_bytes_total", "hawser_agent_moves_total",
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

// TestParkedComesBack: with only one way, the session is left to itself, and the
// log tells.
func TestParkedComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		h.echo("apiserver:443")
		_, yamux := h.rigs()
		a := h.sail(Config{Servers: []string{"hub:1"}, Transports: []tunnel.Transport{yamux.transport()}})
		pass(time.Minute)
		b := yamux.latest()
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
		pass(2 * lookEvery)
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
		pass(2 * lookEvery)
		if len(a.log.lines("on another connection")) != 1 {
			t.Errorf("log of a short loss: %q", a.log.lines(""))
		}
		b.park()
		pass(2 * lookEvery)
		b.resume()
		b.park()
		pass(2 * lookEvery)
		if len(a.log.lines("connection lost, the session waits")) != 3 || len(a.log.lines("session goes on")) != 1 {
			t.Errorf("log of two losses between which nobody looked: %q", a.log.lines(""))
		}
		b.resume()
	})
}

// TestParkedComesBackFirst: an attempt to go around a session is called off when
// the session is back before the server has been greeted.
func TestParkedComesBackFirst(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		quic, yamux := h.rigs()
		slow := yamux.transport()
		slow.Dial = func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			<-time.After(10 * time.Second)
			return yamux.dial(ctx, addr, o)
		}
		c := auto(quic, yamux)
		c.Transports[1] = slow
		a := h.sail(c)
		pass(time.Minute)
		b := quic.latest()
		b.park()
		pass(5 * time.Second)
		b.resume()
		pass(time.Minute)
		if s := a.State(); s.Transport != "quic" || !s.Connected || h.greetings() != 1 {
			t.Errorf("after a session came back: %+v, %d greetings", s, h.greetings())
		}
		if n := len(yamux.dialed()); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
}

// TestParkedOnOneServer: another server takes over the node's dials.
func TestParkedOnOneServer(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		defer h.open("hub:2")()
		_, yamux := h.rigs()
		a := h.sail(Config{Servers: []string{"hub:1", "hub:2"}, Transports: []tunnel.Transport{yamux.transport()}})
		pass(time.Minute)
		first := next(t, h.moored)
		yamux.latest().park()
		pass(5 * time.Second)
		second := next(t, h.moored)
		if s := a.State(); !s.Connected || s.Server != "hub:2" || second.hello.Meta[keepsKey] != "" {
			t.Errorf("%+v, greeted with %v", s, second.hello.Meta)
		}
		if first.session.Context().Err() != nil {
			t.Error("the parked session has been given up")
		}
	})
}

// TestLostWhileSeeking: the session ends while a way around it is sought, and
// that becomes the next session.
func TestLostWhileSeeking(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		quic, yamux := h.rigs()
		slow := yamux.transport()
		slow.Dial = func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			<-time.After(5 * time.Second)
			return yamux.dial(ctx, addr, o)
		}
		c := auto(quic, yamux)
		c.Transports[1] = slow
		a := h.sail(c)
		pass(time.Minute)
		first := next(t, h.moored)
		quic.latest().park()
		pass(3 * time.Second)
		_ = first.session.Close()
		pass(5 * time.Second)
		if s := a.State(); s.Transport != "yamux" || !s.Connected || h.greetings() != 2 {
			t.Errorf("%+v, %d greetings", s, h.greetings())
		}
	})
}

// TestWayOutChanges: a session that can moves to another connection, any other is
// followed by a new one; nothing happens while there is no way out.
func TestWayOutChanges(t *testing.T) {
	for _, resumes := range []bool{true, false} {
		t.Run(fmt.Sprintf("resumes=%t", resumes), func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harbor) {
				defer h.open("hub:1")()
				h.echo("10.0.0.7:80")
				_, yamux := h.rigs()
				yamux.resumes = resumes
				h.sail(Config{Servers: []string{"hub:1"}, Transports: []tunnel.Transport{yamux.transport()}, Allow: targets(t, "10.0.0.0/8")})
				first := next(t, h.moored)
				c, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
				if err != nil {
					t.Fatal(err)
				}
				h.shift("eth0") // no news
				h.shift("")
				if n := h.greetings(); n != 1 || resumes && yamux.latest().moved() != 0 {
					t.Errorf("%d greetings without a way out", n)
				}
				h.shift("wlan0")
				exchangeText(t, c)
				switch {
				case resumes && (yamux.latest().moved() != 1 || h.greetings() != 1):
					t.Errorf("%d moves, %d greetings", yamux.latest().moved(), h.greetings())
				case !resumes:
					if m := next(t, h.moored); m.hello.Meta[keepsKey] != "1" {
						t.Errorf("greeted with %v", m.hello.Meta)
					}
				}
				if resumes { // a parked session is helped by any change
					yamux.latest().park()
					h.shift("wlan0")
					if n := yamux.latest().moved(); n != 2 {
						t.Errorf("%d moves", n)
					}
				}
			})
		})
	}
}

// TestMoveTimeout: streams that stay on a session that has been left are cut some
// time later.
func TestMoveTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, h *harbor) {
		defer h.open("hub:1")()
		h.echo("10.0.0.7:80")
		quic, yamux := h.rigs()
		quic.set(true, nil)
		c := auto(quic, yamux)
		c.Allow, c.MoveTimeout = targets(t, "10.0.0.0/8"), 20*time.Minute
		a := h.sail(c)
		pass(time.Minute)
		first := next(t, h.moored)
		in, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		quic.set(false, nil)
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

// TestAsleep tells sleep from the passing of time.
func TestAsleep(t *testing.T) {
	now := time.Now()
	if asleep(now, now.Add(time.Hour)) {
		t.Error("an hour went by on both clocks")
	}
	// Round strips the other clock's reading, so that both of these are the wall's.
	if asleep(now.Round(0), now.Round(0).Add(time.Hour)) {
		t.Error("without the other clock nothing can be told")
	}
}
