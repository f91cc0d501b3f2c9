// Tests of dials to addresses that no node has.

package server

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// TestThrough: a dial to a service goes through a node that reaches it and admits it, those
// with a session here first, and through no other node.
func TestThrough(t *testing.T) {
	service := netip.MustParsePrefix("10.96.0.0/12")
	refusing := func(code tunnel.Code) func(context.Context, *tunnel.Request) {
		return func(_ context.Context, r *tunnel.Request) { _ = r.Reject(code, "") }
	}
	for _, tc := range []struct {
		name    string
		through []string
		nodes   map[string]func(context.Context, *tunnel.Request)
		addr    string
		want    string
		code    tunnel.Code
	}{
		{"none", nil, map[string]func(context.Context, *tunnel.Request){"a": nil}, "10.96.0.1:443", "", tunnel.NoNode},
		{"not connected", []string{"b", "c"}, map[string]func(context.Context, *tunnel.Request){"a": nil}, "10.96.0.1:443", "", tunnel.NoNode},
		{"of another range", []string{"a"}, map[string]func(context.Context, *tunnel.Request){"a": nil}, "10.112.0.1:443", "", tunnel.NoNode},
		{"the one that is here", []string{"b", "c", "a"}, map[string]func(context.Context, *tunnel.Request){"a": nil}, "10.96.0.1:443", "10.96.0.1:443", 0},
		{"IPv4 in IPv6", []string{"a"}, map[string]func(context.Context, *tunnel.Request){"a": nil}, "[::ffff:10.96.0.1]:443", "[::ffff:10.96.0.1]:443", 0},
		{"one that does not admit it", []string{"a", "b"}, map[string]func(context.Context, *tunnel.Request){"a": refusing(tunnel.Denied), "b": nil}, "10.96.0.1:443", "10.96.0.1:443", 0},
		{"one that is busy", []string{"a", "b"}, map[string]func(context.Context, *tunnel.Request){"a": refusing(tunnel.Busy), "b": nil}, "10.96.0.1:443", "10.96.0.1:443", 0},
		{"the service refuses", []string{"a", "b"}, map[string]func(context.Context, *tunnel.Request){"a": refusing(tunnel.Refused), "b": nil}, "10.96.0.1:443", "", tunnel.Refused},
		{"all deny", []string{"a", "b", "x"}, map[string]func(context.Context, *tunnel.Request){"a": refusing(tunnel.Denied), "b": refusing(tunnel.Denied)}, "10.96.0.1:443", "", tunnel.Denied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestHub(t, Config{Through: func(ip netip.Addr) []string {
					if !service.Contains(ip) {
						return nil
					}
					return slices.Clone(tc.through)
				}})
				for node, serve := range tc.nodes {
					if _, err := b.connect(one(node), serve); err != nil {
						t.Fatal(err)
					}
				}
				got, err := b.ask(tc.addr)
				if code := tunnel.CodeOf(err); got != tc.want || code != tc.code {
					t.Errorf("%q, %v", got, err)
				}
				if tc.name == "not connected" && !strings.Contains(err.Error(), "none that leads there is connected") {
					t.Error(err)
				}
				if n := b.metric("dials_total"); n != 1 {
					t.Errorf("%v dials counted, want 1", n)
				}
			})
		})
	}
}

// TestThroughIsBounded: a dial reaches a few of the nodes that do not admit it, and none once
// its caller has given up.
func TestThroughIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		nodes := []string{"a", "b", "c", "d", "e"}
		b := newTestHub(t, Config{Through: func(netip.Addr) []string { return nodes }})
		for _, node := range nodes {
			if _, err := b.connect(one(node), func(_ context.Context, r *tunnel.Request) {
				asked++
				_ = r.Reject(tunnel.Denied, "")
			}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.ask("10.96.0.1:443"); tunnel.CodeOf(err) != tunnel.Denied || asked != maxThrough {
			t.Errorf("%v after %d nodes", err, asked)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.hub.DialContext(ctx, "tcp", "10.96.0.1:443"); err == nil || asked > maxThrough+1 {
			t.Errorf("%v after %d nodes", err, asked)
		}
	})
}

// TestThroughOthers: a node of another server leads to a service as well, and a node that
// has the address itself comes first.
func TestThroughOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &other{has: true}
		b := newTestHub(t, Config{Elsewhere: o.dial, Through: func(netip.Addr) []string { return []string{"far"} }})
		if got, err := b.ask("10.96.0.1:443"); got != "elsewhere" || err != nil || !slices.Equal(o.asked, []string{"far 10.96.0.1:443"}) {
			t.Errorf("%q, %v, asked %q", got, err, o.asked)
		}
		b.mustConnect(one("near"))
		b.hub.SetRoutes("near", netip.MustParsePrefix("10.96.0.0/24"))
		if got, err := b.ask("10.96.0.1:443"); got != "10.96.0.1:443" || err != nil || len(o.asked) != 1 {
			t.Errorf("%q, %v, asked %q", got, err, o.asked)
		}
	})
}

// TestThroughWaitsForRestart: if the only node is being restarted, a dial waits for it, and
// takes another one at once if there is one.
func TestThroughWaitsForRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{Through: func(netip.Addr) []string { return []string{"a", "b"} }})
		b.mustConnect(one("a")).leave(t, 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			if got, err := b.ask("10.96.0.1:443"); got != "10.96.0.1:443" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
		synctest.Wait()
		if n := b.metric("dials_waiting"); n != 1 {
			t.Errorf("%v dials wait, want 1", n)
		}
		b.mustConnect(again("a"))
		wg.Wait()
		b.mustConnect(one("b")).leave(t, 0)
		began := time.Now()
		if got, err := b.ask("10.96.0.1:443"); got != "10.96.0.1:443" || err != nil || time.Since(began) != 0 {
			t.Errorf("%q, %v after %v", got, err, time.Since(began))
		}
	})
}
