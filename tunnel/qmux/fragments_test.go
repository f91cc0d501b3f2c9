// What a peer that sends crumbs can have this end hold.

package qmux

import (
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// Bytes that come one by one, each behind a gap that is closed later, do not have a
// block each, neither before the gap in front of all of them is closed nor after.
func TestCrumbsShareBlocks(t *testing.T) {
	for name, first := range map[string]uint64{"read in order": 0, "behind a gap": 1} {
		t.Run(name, func(t *testing.T) {
			s, p := byHand(t, true, tunnel.Options{})
			const step = 2 * (maxGaps - 4)
			end := first
			for end+step < initialWindow {
				for i := uint64(1); i < step; i += 2 {
					p.say(streamFrame(0, end+i, "x", false))
				}
				for i := uint64(0); i < step; i += 2 {
					p.say(streamFrame(0, end+i, "x", false))
				}
				end += step
			}
			p.say(appendInts(nil, framePing, 7))
			p.await(framePong) // it has all of that
			if n := held(s); uint64(n) > 2*end+maxGaps*smallBlock || n == 0 {
				t.Errorf("%d bytes are held for %d that came", n, end)
			}
			_ = p.conn.Close()
		})
	}
}
