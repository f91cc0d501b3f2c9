// Tests of what a server knows of nodes that say nothing to another one.

package peers

import (
	"math"
	"testing"
	"time"

	"github.com/hawser-project/hawser/server"
)

// TestQuiet: when another server last heard a node that is attached to it is known, though
// that server announces no change.
func TestQuiet(t *testing.T) {
	const attached = time.Hour // before the sample
	for name, tc := range map[string]struct {
		attached, quiet, want time.Duration // ago
	}{
		"said nothing for five minutes": {attached, 5 * time.Minute, 5 * time.Minute},
		"for as long as counts":         {attached, quietAfter, quietAfter},
		"less than that":                {attached, quietAfter - 1, 0},
		"an older server does not say":  {attached, 0, 0},
		"not since before it came":      {time.Minute, 5 * time.Minute, time.Minute},
		"that makes no sense":           {attached, math.MaxInt64, attached},
		"nor that":                      {attached, math.MinInt64, 0},
		"a clock a little ahead":        {-stalled / 2, 5 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, "a")
			p := f.servers["a"].peers
			l := p.link(Peer{ID: "b"})
			defer func() { // it has no goroutine to end
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.links, "b")
			}()
			heard := func() time.Duration {
				t.Helper()
				o, ok := p.Observe("n")
				if !ok {
					t.Fatal("nothing is known of the node")
				}
				return time.Since(o.Heard)
			}
			check := func(what string, got, want time.Duration) {
				t.Helper()
				if (got - want).Abs() > 8*time.Second { // on a slow machine; less than all differences
					t.Errorf("%s: it was heard %v ago, want %v", what, got, want)
				}
			}
			o := server.Observation{Node: "n"}
			at := time.Now().Add(-tc.attached)
			o.Change = server.Change{Number: 1, At: at, Heard: at, State: server.Attached}
			here := message{Now: time.Now(), Nodes: []server.Observation{o}}
			announce(t, l, here, message{Now: time.Now(), Samples: []Sample{{Node: "n", Quiet: tc.quiet}}})
			check("quiet", heard(), tc.want)
			l.change(&message{Samples: []Sample{{Node: "n"}}})
			check("it goes on", heard(), 0)
			l.change(&message{Samples: []Sample{{Node: "n", Quiet: tc.quiet}}})
			l.lose()
			check("its server is lost", heard(), tc.want)
			announce(t, l, here)
			check("its server is back", heard(), 0)
		})
	}
}
