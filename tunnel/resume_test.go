package tunnel_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A parkedSession is a session that may be parked.
type parkedSession struct {
	staller
	rtt time.Duration
}

func (m *parkedSession) Link() tunnel.LinkState {
	return tunnel.LinkState{Window: 5 * time.Minute, RTT: m.rtt}
}

func (m *parkedSession) Move(context.Context) error { return errors.New("nowhere to go") }

func TestResumerTellsRTT(t *testing.T) {
	agent, server := pair(t)
	parked := &parkedSession{staller: staller{Session: agent}, rtt: 42 * time.Millisecond}
	a, _ := greet(t, parked, server, tunnel.Welcome{Session: 1})
	if got := a.RTT(); got != parked.rtt {
		t.Errorf("RTT %v, the session says %v", got, parked.rtt)
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
