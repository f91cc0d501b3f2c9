// Tests of paths that die before a session has been of any use.

package overquic

import (
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// A path that dies as soon as there is a session, before the dialing end knows
// that the peer has its part of the handshake and before it has made sure of
// another path, and with nothing to send: when it is back, so is the session.
func TestBlackholeAtOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		ways []int
	}{{"both ways", []int{up, down}}, {"up", []int{up}}, {"down", []int{down}}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			a, b, r := relayed(t, tunnel.Options{Link: quick})
			for _, way := range tc.ways {
				r.lose(way, func([]byte) bool { return true })
			}
			await(t, "parking", func() bool { return parked(a) && parked(b) })
			r.hole(false)
			await(t, "the path's return", func() bool { return !parked(a) && !parked(b) })
			dials(t, a, b)
		})
	}
}
