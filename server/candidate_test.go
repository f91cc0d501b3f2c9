// Tests of sessions that end after their hello, or never answer.

package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// hail sends a hello to the hub and nothing after that. The session ends with the test, if
// not before.
func (b *testHub) hail(h tunnel.Hello) tunnel.Session {
	b.t.Helper()
	s, err := b.dial(h.Node)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, _, err := tunnel.Greet(b.t.Context(), s, h); err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
	return s
}

// newcomers are the hellos that a second session of a node may send.
var newcomers = map[string]tunnel.Hello{
	"a probe that keeps the first": {Node: "n", Instance: 1, Sequence: 2, Meta: tunnel.Meta{keepsKey: "1"}},
	"a reconnect":                  {Node: "n", Instance: 1, Sequence: 2},
	"another instance":             {Node: "n", Instance: 2, Sequence: 1},
}

// A session that ends after its hello, or never answers the welcome, does not replace the
// present one.
func TestSessionThatDiesAfterItsHello(t *testing.T) {
	ends := map[string]func(*testHub, tunnel.Session){
		"it dies": func(_ *testHub, s tunnel.Session) { _ = s.Close() },
		"it is parked and then dies": func(b *testHub, s tunnel.Session) {
			b.last().park()
			time.Sleep(time.Second) // the bubble's clock
			_ = s.Close()
		},
		"it never answers": func(_ *testHub, s tunnel.Session) { <-s.Context().Done() },
	}
	for who, hello := range newcomers {
		for how, end := range ends {
			t.Run(who+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newTestHub(t, Config{})
					first := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 1})
					before, _ := b.hub.Observe("n")
					began := time.Now()
					newcomer := b.hail(hello)
					if got, err := b.ask("n:1"); err != nil || got != "n:1" {
						t.Errorf("dial while the newcomer has not answered: %q, %v", got, err)
					}
					end(b, newcomer)
					synctest.Wait()
					if d := time.Since(began); d > helloTimeout+time.Second { // the goodbye included
						t.Errorf("the newcomer was kept for %v", d)
					}
					time.Sleep(time.Hour) // the bubble's clock: nor does the first one end later
					select {
					case <-first.gone:
						t.Fatalf("the first session ended: %v", first.err)
					default:
					}
					if got, err := b.ask("n:2"); err != nil || got != "n:2" {
						t.Errorf("dial after the newcomer has ended: %q, %v", got, err)
					}
					if o, _ := b.hub.Observe("n"); o.State != Attached || o.Number != before.Number || o.Instance != 1 {
						t.Errorf("observed: %+v", o)
					}
					if n := b.metric("replaced_total") + b.metric("clones_total"); n != 0 {
						t.Errorf("%v sessions counted as replaced", n)
					}
					again := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 3})
					if got, err := b.ask("n:3"); err != nil || got != "n:3" || again.session.Context().Err() != nil {
						t.Errorf("the first instance is turned away: %q, %v", got, err)
					}
				})
			})
		}
	}
}

// If a node has no other session, one that has not answered serves it. A session that ends
// before it has answered does not prevent others.
func TestUnansweredSessionOfAnAbsentNode(t *testing.T) {
	inFleet(t, func(t *testing.T, f *fleet) {
		f.lose(f.let(1))
		f.sessions[2]++
		s := f.hail(tunnel.Hello{Node: "n", Instance: 2, Sequence: 1})
		dialed := make(chan error, 1)
		go func() {
			c, err := f.hub.DialContext(t.Context(), "tcp", "n:1")
			if err == nil {
				err = c.Close()
			}
			dialed <- err
		}()
		st, err := s.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r, err := tunnel.ReadRequest(st)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = r.Accept(); err != nil {
			t.Fatal(err)
		}
		if err := <-dialed; err != nil {
			t.Errorf("dial: %v", err)
		}
		_ = s.Close()
		synctest.Wait()
		f.let(1)
	})
}

// A session that the agent has moved away from serves again when the newer one ends, and
// is closed after the next move.
func TestOlderSessionServesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		first := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 1})
		held, err := b.hub.DialContext(t.Context(), "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		second := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2, Meta: tunnel.Meta{keepsKey: "1"}})
		_ = second.session.Close()
		<-second.gone
		synctest.Wait()
		if got, err := b.ask("n:2"); err != nil || got != "n:2" {
			t.Fatalf("dial: %q, %v", got, err)
		}
		if o, _ := b.hub.Observe("n"); o.State != Attached {
			t.Errorf("observed: %+v", o)
		}
		_ = held.Close()
		time.Sleep(time.Hour) // the bubble's clock: it is not idle any more, it serves
		if got, err := b.ask("n:3"); err != nil || got != "n:3" {
			t.Fatalf("dial after an hour: %q, %v", got, err)
		}
		b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 3, Meta: tunnel.Meta{keepsKey: "1"}})
		<-first.gone
		if !errors.Is(first.err, tunnel.Draining) {
			t.Errorf("the first session ended with %v", first.err)
		}
		if got, err := b.ask("n:4"); err != nil || got != "n:4" {
			t.Errorf("dial: %q, %v", got, err)
		}
	})
}

// An identity that is refused while its session waits for the agent is not registered.
func TestRefusedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := false
		b := newTestHub(t, Config{Admit: admitUnless(&refuse)})
		b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 1})
		s, err := b.dial("n")
		if err != nil {
			t.Fatal(err)
		}
		control, _, err := tunnel.Greet(t.Context(), s, tunnel.Hello{Node: "n", Instance: 1, Sequence: 2})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		refuse = true
		if err := control.Run(t.Context(), nil); !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("the session went on: %v", err)
		}
		_ = s.Close()
		synctest.Wait()
		if got, err := b.ask("n:1"); err != nil || got != "n:1" {
			t.Errorf("dial: %q, %v", got, err)
		}
	})
}

// The sessions of one node that have not answered are bounded.
func TestUnansweredSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 1})
		var waiting []tunnel.Session
		for i := range uint64(maxGreetingOfNode) {
			waiting = append(waiting, b.hail(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2 + i}))
		}
		if _, err := b.connect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 99}, nil); !errors.Is(err, tunnel.Busy) {
			t.Errorf("one more: %v", err)
		}
		b.mustConnect(one("other"))
		for _, s := range waiting {
			_ = s.Close()
		}
		synctest.Wait()
		b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 99})
		if len(b.hub.registry.waiting) != 0 || len(b.hub.admission.ofNode) != 0 {
			t.Errorf("left: %v, %v", b.hub.registry.waiting, b.hub.admission.ofNode)
		}
	})
}

// admitUnless refuses everybody once *refuse is set.
func admitUnless(refuse *bool) func(context.Context, string, tunnel.Peer) error {
	return func(context.Context, string, tunnel.Peer) error {
		if *refuse {
			return errors.New("certificate is revoked")
		}
		return nil
	}
}
