// Package await is what tests do that wait for programs of their own: for something
// to come about, and for a port that they may listen on.
//
// What it is not: a way to judge how long anything takes. What is waited for must
// happen, and only a fault lets the bound pass.
package await

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// period is how often a check is repeated.
const period = 50 * time.Millisecond

// Until repeats check until it returns nil, and fails the test with what it returned
// last if that takes longer than bound.
func Until(t testing.TB, bound time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(bound)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-tick.C
	}
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

// FreePort returns a TCP port of the loopback interface that nobody listened on a
// moment ago.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
