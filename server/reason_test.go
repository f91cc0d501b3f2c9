// Tests of what the users of a stream learn when its session ends.

package server

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel"
)

// TestStreamsTellTheReason: a stream that ends with its session fails with the reason of the
// session's end.
func TestStreamsTellTheReason(t *testing.T) {
	type dial = func(*Hub, context.Context, string, string) (net.Conn, error)
	for name, tc := range map[string]struct {
		end  func(*testHub)
		is   error
		text string
	}{
		"another instance takes over": {func(b *testHub) { b.mustConnect(tunnel.Hello{Node: "n", Instance: 2, Sequence: 1}) }, tunnel.Replaced, "the agent was started again, or there is another agent with this node's identity: one connected from"},
		"the agent reconnects":        {func(b *testHub) { b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2}) }, tunnel.Replaced, "the agent reconnected from"},
		"the node is deleted":         {func(b *testHub) { b.hub.End("n", func(tunnel.Peer) bool { return true }, tunnel.Revoked) }, tunnel.Revoked, tunnel.Revoked.String()},
		"the server stops":            {func(b *testHub) { _ = b.stop() }, tunnel.Draining, textLeaving},
	} {
		for how, dial := range map[string]dial{"dialed": (*Hub).DialContext, "dialed early": (*Hub).DialEarly} {
			for _, closes := range []bool{true, false} { // whether the agent answers a goodbye
				t.Run(name+", "+how, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						b := newTestHub(t, Config{})
						x := b.mustConnect(one("n"))
						x.polite.Store(!closes)
						c, err := dial(b.hub, t.Context(), "tcp", "n:1")
						if err != nil {
							t.Fatal(err)
						}
						defer c.Close()
						if _, err := io.ReadFull(c, make([]byte, len("n:1\n"))); err != nil {
							t.Fatal(err)
						}
						tc.end(b)
						_, rerr := c.Read(make([]byte, 1))
						_, werr := c.Write([]byte("x"))
						for _, err := range []error{rerr, werr} {
							if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.text) || strings.Contains(err.Error(), "closed") || strings.Contains(err.Error(), "peer") {
								t.Errorf("the stream failed with %v", err)
							}
						}
					})
				})
			}
		}
	}
}
