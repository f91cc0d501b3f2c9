// Tests of the texts of dial errors.

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel"
)

// The text of a dial error names the failure and the caller's target once.
func TestDialErrorTexts(t *testing.T) {
	refused := &os.SyscallError{Syscall: "connect", Err: syscall.ECONNREFUSED}
	op := func(addr string, err error) error {
		e := &net.OpError{Op: "dial", Net: "tcp", Err: err}
		if addr != "" {
			e.Addr = tunnel.Addr(addr)
		}
		return e
	}
	for name, tc := range map[string]struct {
		failure    error // at the node
		addr, want string
	}{
		"refused by address":  {op("10.0.0.7:80", refused), "10.0.0.7%n:80", "dial 10.0.0.7%n:80: connect: connection refused"},
		"refused on loopback": {op("127.0.0.1:80", refused), "n:80", "dial n:80: 127.0.0.1:80: connect: connection refused"},
		"no such name": {
			op("", &net.DNSError{Err: "no such host", Name: "db", IsNotFound: true}), "n:80",
			"dial n:80: lookup db: no such host",
		},
		"denied by policy":       {&tunnel.DialError{Addr: "n:80", Code: tunnel.Denied, Text: "not this one"}, "n:80", "dial n:80: not this one"},
		"denied, with no text":   {&tunnel.DialError{Addr: "n:80", Code: tunnel.Denied}, "n:80", "dial n:80: denied by policy"},
		"denied where it leads":  {op("127.0.0.1:80", &tunnel.DialError{Addr: "db:80", Code: tunnel.Denied, Text: "it leads home"}), "n:80", "dial n:80: it leads home"},
		"wrapped":                {fmt.Errorf("pod web: %w", op("10.0.0.7:80", refused)), "10.0.0.7%n:80", "dial 10.0.0.7%n:80: pod web: connect: connection refused"},
		"something else":         {errors.New("strange"), "n:80", "dial n:80: strange"},
		"a dial in another dial": {&tunnel.DialError{Addr: "x", Code: tunnel.Refused, Text: tunnel.Reason("x", op("x", refused))}, "n:80", "dial n:80: connect: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fail := func(context.Context, string, string) (net.Conn, error) { return nil, tc.failure }
				b := newTestHub(t, Config{Beyond: func(node string) (func(context.Context, tunnel.Dial) (net.Conn, error), bool) {
					return func(ctx context.Context, d tunnel.Dial) (net.Conn, error) { return fail(ctx, d.Network, d.Addr) }, node == "n"
				}})
				// The first dial does not go through the tunnel.
				_, around := b.hub.DialContext(t.Context(), "tcp", tc.addr)
				at := make(chan error, 2) // one for each dial through the tunnel
				if _, err := b.connect(one("n"), func(ctx context.Context, r *tunnel.Request) {
					_, err := tunnel.Answer(ctx, r, fail)
					at <- err
				}); err != nil {
					t.Fatal(err)
				}
				_, tunneled := b.hub.DialContext(t.Context(), "tcp", tc.addr)
				early, err := b.hub.DialEarly(t.Context(), "tcp", tc.addr)
				if err != nil {
					t.Fatal(err)
				}
				defer early.Close()
				_, late := early.Read(make([]byte, 1))
				for way, err := range map[string]error{"around the tunnel": around, "through it": tunneled, "through it, early": late} {
					if err == nil || err.Error() != tc.want || tunnel.CodeOf(err) != tunnel.CodeOf(tc.failure) {
						t.Errorf("%s: %v (%v), want %s", way, err, tunnel.CodeOf(err), tc.want)
					}
				}
				for range cap(at) {
					if err := <-at; !errors.Is(err, tc.failure) || tunnel.CodeOf(err) != tunnel.CodeOf(tc.failure) {
						t.Errorf("at the node: %v", err)
					}
				}
			})
		})
	}
}
