// Package await is what tests do that wait for programs of their own: for something
// to come about, and for a port that they may listen on.
//
// What it is not: a way to judge how long anything takes. What is waited for must
// happen, and only a fault lets the bound pass.
package await

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// The pause between two checks is from minPause to maxPause: a sixteenth of the time waited so
// far, and not less than four times what the last check took. Tests run side by side, and what
// one asks for costs the others processor time.
const (
	minPause = 50 * time.Millisecond
	maxPause = 500 * time.Millisecond
)

// Until repeats check until it returns nil, and fails the test with what it returned
// last if that takes longer than bound.
func Until(t testing.TB, bound time.Duration, what string, check func() error) {
	t.Helper()
	start := time.Now()
	for {
		asked := time.Now()
		err := check()
		if err == nil {
			return
		}
		waited := time.Since(start)
		if waited > bound {
			t.Fatalf("%s: %v", what, err)
		}
		<-time.After(pause(waited, time.Since(asked)))
	}
}

// pause is how long to wait before a check is repeated.
func pause(waited, check time.Duration) time.Duration {
	return min(max(waited/16, 4*check, minPause), maxPause)
}

// True is Until for a check that has nothing to say.
func True(t testing.TB, bound time.Duration, what string, is func() bool) {
	t.Helper()
	Until(t, bound, what, func() error {
		if is() {
			return nil
		}
		return fmt.Errorf("not within %v", bound)
	})
}

// Ports that FreePort gives out: the kernel gives none of these to connections, and to
// listeners that ask for any port.
const (
	firstPort = 20000
	lastPort  = 32767
)

// nextPort is the port after the last one that was given out. It begins anywhere, since
// several test programs run at once.
var nextPort atomic.Int64

func init() { nextPort.Store(rand.Int64N(lastPort - firstPort)) }

// FreePort returns a port that nobody listens on now, by TCP or UDP. A process gets none
// twice before it has had all.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := firstPort + int(nextPort.Add(1))%(lastPort-firstPort+1)
		addr := net.JoinHostPort("", strconv.Itoa(port))
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", addr)
		if err != nil {
			continue
		}
		_ = l.Close()
		u, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", addr)
		if err != nil {
			continue
		}
		_ = u.Close()
		return port
	}
	t.Fatalf("of 100 ports from %d to %d none is free", firstPort, lastPort)
	return 0
}
