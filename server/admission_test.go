package server

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

func TestAdmission(t *testing.T) {
	now := time.Unix(1000, 0)
	wait := func(err error) time.Duration {
		t.Helper()
		d, ok := tunnel.RetryAfter(err)
		if !errors.Is(err, tunnel.Busy) || !ok {
			t.Fatalf("%v", err)
		}
		return d
	}
	a := newAdmission(20, 100)
	for i := range 20 {
		if err := a.enter(fmt.Sprint("n", i%10), now); err != nil {
			t.Fatal(err)
		}
	}
	// Refused agents come back one after the other.
	last := time.Duration(0)
	for range 10 {
		d := wait(a.enter("x", now))
		if d < soonest || d < last {
			t.Errorf("come back after %v, then after %v", last, d)
		}
		last = d
	}
	if last <= soonest {
		t.Error("all of them come back at once")
	}
	for range 100000 {
		last = wait(a.enter("x", now))
	}
	if last != latest {
		t.Errorf("the last of many comes back after %v", last)
	}
	if d := wait(a.enter("x", now.Add(time.Hour))); d != soonest {
		t.Errorf("an hour later: %v", d)
	}
	// Slow greetings make the queue slower.
	for range 100 {
		a.greeted(2 * time.Second)
		a.leave("n0")
		if err := a.enter("n0", now); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(2 * time.Hour)
	if d := wait(a.enter("x", now)); d != soonest {
		t.Errorf("first: %v", d)
	}
	if d := wait(a.enter("x", now)); d != soonest+50*time.Millisecond {
		t.Errorf("second: %v", d)
	}
	for i := range 20 {
		a.greeted(0)
		a.leave(fmt.Sprint("n", i%10))
	}
	if len(a.ofNode) != 0 || a.busy() != 0 {
		t.Errorf("left: %v, %d", a.ofNode, a.busy())
	}
	a.seat(100)
	if d := wait(a.enter("x", now)); d != fullAgain {
		t.Errorf("full: %v", d)
	}
}

func TestAdmissionOfOneNode(t *testing.T) {
	a := newAdmission(0, 0)
	for range maxGreetingOfNode {
		if err := a.enter("greedy", time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.enter("greedy", time.Now()); !errors.Is(err, tunnel.Busy) {
		t.Errorf("one more: %v", err)
	}
	if err := a.enter("modest", time.Now()); err != nil {
		t.Errorf("another node: %v", err)
	}
}

func TestTurningAwayIsBounded(t *testing.T) {
	a := newAdmission(2, 0)
	one, ok := a.turn()
	if _, ok2 := a.turn(); !ok || !ok2 {
		t.Fatal("no room")
	}
	if _, ok := a.turn(); ok {
		t.Error("room for one too many")
	}
	one()
	if _, ok := a.turn(); !ok {
		t.Error("a place is lost")
	}
}

// Silent sessions use places. Others get a time to come back, and a place once the silent
// ones were closed.
func TestBusyHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{MaxGreeting: 2})
		for _, node := range []string{"mute-1", "mute-2"} {
			if _, err := b.dial(node); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		_, err := b.connect(one("n"), nil)
		var bye *tunnel.Goodbye
		if d, ok := tunnel.RetryAfter(err); !errors.As(err, &bye) || bye.Code != tunnel.Busy || !ok || d != soonest {
			t.Fatalf("%v", err)
		}
		synctest.Wait()
		// Above that number, sessions get no answer.
		for _, node := range []string{"mute-3", "mute-4"} {
			if _, err := b.dial(node); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := b.metric("sessions_pending"); n != 4 {
			t.Errorf("%v sessions are being greeted", n)
		}
		if _, err = b.connect(one("n"), nil); err == nil || errors.As(err, &bye) && bye.Code != tunnel.Busy {
			t.Errorf("one too many: %v", err)
		}
		if n := b.metric("sessions_refused_total"); n != 4 {
			t.Errorf("%v refused", n)
		}
		time.Sleep(helloTimeout + time.Second) // the bubble's clock
		b.mustConnect(one("n"))
		synctest.Wait()
		if n := b.metric("sessions_pending"); n != 0 {
			t.Errorf("%v sessions are being greeted", n)
		}
	})
}

func TestSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{MaxSessions: 2})
		x := b.mustConnect(one("a"))
		b.mustConnect(one("b"))
		_, err := b.connect(one("c"), nil)
		if d, ok := tunnel.RetryAfter(err); !ok || d != fullAgain {
			t.Errorf("%v", err)
		}
		_ = x.session.Close()
		<-x.gone
		synctest.Wait()
		b.mustConnect(one("c"))
	})
}
