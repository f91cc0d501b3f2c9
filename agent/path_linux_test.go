// Tests of routing netlink, with the kernel's own.

package agent

import (
	"context"
	"net/netip"
	"sync"
	"testing"
)

func TestPathTo(t *testing.T) {
	for _, to := range []string{"127.0.0.1", "::ffff:127.0.0.1", "::1"} {
		got, err := lookUpRoute(netip.MustParseAddr(to).Unmap())
		if err != nil {
			t.Fatal(err)
		}
		if got == "" && to == "::1" {
			t.Log("no IPv6 here")
			continue
		}
		if again := pathTo(netip.MustParseAddr(to)); got == "" || again != got {
			t.Errorf("path to %s: %q, then %q", to, got, again)
		}
	}
	// Multicast to a device that does not exist has no route on any machine.
	if got, err := lookUpRoute(netip.MustParseAddr("240.0.0.1")); err != nil {
		t.Errorf("no route: %q, %v", got, err)
	}
}

func FuzzParseRoute(f *testing.F) {
	f.Add(routeRequest(netip.MustParseAddr("10.0.0.1")))
	f.Add(routeRequest(netip.MustParseAddr("fd00::1")))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseRoute(b) // it must not panic
	})
}

// TestWatchPathsEnds with its context.
func TestWatchPathsEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { watchPaths(ctx, func() {}) })
	cancel()
	wg.Wait()
}
