package tunnel_test

import (
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

func TestSessionTellsRTT(t *testing.T) {
	agent, server := pair(t)
	parked := &parkedSession{staller: staller{Session: agent}, rtt: 42 * time.Millisecond}
	a, _ := greet(t, parked, server, tunnel.Welcome{Session: 1})
	if got := a.RTT(); got != parked.rtt {
		t.Errorf("RTT %v, the session says %v", got, parked.rtt)
	}
}
