// Tests of one address that leads to several servers, as a load balancer's does.

package agent

import (
	"context"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestBalancerLeadsElsewhere: while the only address leads to another server than the parked
// session's, the agent makes a session with that one, and the parked one keeps its streams.
func TestBalancerLeadsElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		h.echo("10.0.0.7:80")
		h.echo("apiserver:443")
		fakeTransport := h.fakeTransport()
		a := h.start(Config{Servers: []string{"hub:1"}, Transport: fakeTransport.transport(), Allow: targets(t, "10.0.0.0/8")})
		pass(time.Minute)
		first := next(t, h.sessions)
		in, err := tunnel.Connect(t.Context(), first.session, "tcp", "10.0.0.7:80")
		if err != nil {
			t.Fatal(err)
		}
		old := fakeTransport.latest()
		old.park()
		old.reachElsewhere()
		lost := time.Now()
		fresh, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(lost); took > 3*time.Second {
			t.Errorf("a dial took %v", took)
		}
		exchangeText(t, fresh)
		if second := next(t, h.sessions); second.hello.Meta[keepsKey] != "1" {
			t.Errorf("greeted with %v", second.hello.Meta)
		}
		pass(20 * time.Second)
		old.resume()
		exchangeText(t, in)
		pass(time.Minute)
		if n := h.greetings(); n != 2 || first.session.Context().Err() != nil {
			t.Errorf("%d greetings, and the first session: %v", n, context.Cause(first.session.Context()))
		}
	})
}

// TestElsewhereLate: where the address leads to another server only after a while, as when a load
// balancer notices that one is gone, the agent makes a session with it as soon.
func TestElsewhereLate(t *testing.T) {
	for range 10 { // the pauses are random
		for _, late := range []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second} {
			bubble(t, func(t *testing.T, h *servers) {
				defer h.open("hub:1")()
				f := h.fakeTransport()
				h.start(Config{Servers: []string{"hub:1"}, Transport: f.transport()})
				pass(time.Minute)
				next(t, h.sessions)
				old := f.latest()
				old.park()
				pass(late)
				old.reachElsewhere()
				began := time.Now()
				for h.greetings() < 2 && time.Since(began) < time.Minute {
					pass(100 * time.Millisecond)
				}
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("elsewhere after %v: a session only %v later", late, took)
				}
			})
		}
	}
}

// TestIdleIsNotResumedElsewhere: a session that has no streams, and whose attempts to resume reach
// another server, ends soon once there is a session with that one: each attempt costs a handshake.
func TestIdleIsNotResumedElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, h *servers) {
		defer h.open("hub:1")()
		fakeTransport := h.fakeTransport()
		h.start(Config{Servers: []string{"hub:1"}, Transport: fakeTransport.transport()})
		pass(time.Minute)
		first := next(t, h.sessions)
		old := fakeTransport.latest()
		old.park()
		old.reachElsewhere()
		pass(3 * checkEvery)
		next(t, h.sessions)
		pass(idleElsewhere - 3*checkEvery)
		if err := first.session.Context().Err(); err != nil {
			t.Errorf("too early: %v", err)
		}
		pass(3 * checkEvery)
		if first.session.Context().Err() == nil {
			t.Error("the session goes on without a connection or a stream")
		}
	})
}

// slow makes dials of a fakeTransport to one server take longer.
func slow(r *fakeTransport, server string, d time.Duration) tunnel.Transport {
	tr := r.transport()
	tr.Dial = func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
		if addr == server {
			<-time.After(d)
		}
		return r.dial(ctx, addr, o)
	}
	return tr
}
