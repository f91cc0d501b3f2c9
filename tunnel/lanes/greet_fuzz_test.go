package lanes

import (
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// Whatever a peer says of lanes, there are no more than both ends may have.
func FuzzGreet(f *testing.F) {
	f.Add("4", "2", "17", 4)
	f.Add("-1", "0", "", 4)
	f.Add("99999999999999999999", "1e9", "-1", 99)
	f.Fuzz(func(t *testing.T, lanes, lane, session string, want int) {
		m := tunnel.Meta{metaLanes: lanes, metaLane: lane, metaSession: session}
		if n := Agreed(m, want); n < 1 || n > max(1, min(want, Limit)) {
			t.Errorf("%d lanes", n)
		}
		if s, n, ok := Joined(m); !ok || n < 0 || n == 0 && s != 0 {
			t.Errorf("lane %d of session %d, %t", n, s, ok)
		}
	})
}
