package tunnel_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A parkedSession is a session that says that it is parked.
type parkedSession struct {
	staller
	parked atomic.Int64 // since when, in nanoseconds; 0: it is not
	rtt    time.Duration
}

func (m *parkedSession) Link() tunnel.LinkState {
	l := tunnel.LinkState{Window: 5 * time.Minute, RTT: m.rtt}
	if since := m.parked.Load(); since != 0 {
		l.Parked = time.Unix(0, since)
	}
	return l
}

func (m *parkedSession) Move(context.Context) error { return errors.New("nowhere to go") }

func TestParkedSessionIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, server := pair(t)
		parked := &parkedSession{staller: staller{Session: agent}}
		a, s := greet(t, parked, server, tunnel.Welcome{Session: 1, Interval: 10 * time.Second, Timeout: 30 * time.Second})
		aErr, sErr, stop := run(t, a, s)
		defer stop()
		parked.parked.Store(time.Now().UnixNano())
		parked.stall()
		if err := <-sErr; !errors.Is(err, tunnel.Dead) { // it does not know
			t.Errorf("the other end: %v", err)
		}
		time.Sleep(4 * time.Minute) // the bubble's clock
		select {
		case err := <-aErr:
			t.Fatalf("a parked session ended after %v: %v", time.Since(time.Unix(0, parked.parked.Load())), err)
		default:
		}
		parked.parked.Store(0)
		start := time.Now()
		if err := <-aErr; !errors.Is(err, tunnel.Dead) {
			t.Errorf("silence ended with %v", err)
		}
		if d := time.Since(start); d < 20*time.Second || d > 40*time.Second {
			t.Errorf("noticed %v after it was taken up again", d)
		}
	})
}

func TestResumerTellsRTT(t *testing.T) {
	agent, server := pair(t)
	parked := &parkedSession{staller: staller{Session: agent}, rtt: 42 * time.Millisecond}
	a, _ := greet(t, parked, server, tunnel.Welcome{Session: 1})
	if got := a.RTT(); got != parked.rtt {
		t.Errorf("RTT %v, the session says %v", got, parked.rtt)
	}
}

func TestResumersArePingedSeldom(t *testing.T) {
	agent, server := pair(t)
	done := make(chan tunnel.Welcome, 1)
	go func() {
		_, w, err := tunnel.Greet(t.Context(), agent, tunnel.Hello{Node: "node-1", Instance: 1, Sequence: 1})
		if err != nil {
			t.Errorf("greet: %v", err)
		}
		done <- w
	}()
	g, err := tunnel.Await(t.Context(), &parkedSession{staller: staller{Session: server}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Control(tunnel.Welcome{Session: 1}).Welcome(); err != nil {
		t.Fatal(err)
	}
	if w := <-done; w.Interval != time.Hour || w.Timeout != 150*time.Minute {
		t.Errorf("welcomed with %v and %v", w.Interval, w.Timeout)
	}
}

func TestMoveNeedsAResumer(t *testing.T) {
	agent, _ := pair(t)
	if err := tunnel.Move(t.Context(), agent); err != nil {
		t.Errorf("a session that cannot move: %v", err)
	}
	if err := tunnel.Move(t.Context(), &parkedSession{staller: staller{Session: agent}}); err == nil {
		t.Error("a session that fails to move says nothing")
	}
	if _, ok := tunnel.LinkOf(agent); ok {
		t.Error("a session in memory claims a link")
	}
}
