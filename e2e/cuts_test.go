// The node's link is cut in every way there is, over each transport that resumes, while streams
// go on.

package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/cmd/lab"
)

// The cuts of TestCuts: five of all kinds, that may come while the one before is survived, and a
// blackhole of five seconds.
const (
	shortCuts = `
seed %d
at 0s cuts 5 between 50ms..600ms kinds rst,blackhole,rebind,move for 50ms..500ms on %s
`
	longCut = `
seed %d
at 0s cuts 1 between 100ms..1s kinds blackhole for 5s on %s
`
)

// Nothing that a stream carries is lost or comes twice, whatever happens to the
// node's link, and whoever uses it notices nothing but a pause.
func TestCuts(t *testing.T) {
	t.Parallel()
	if !netnsHere(t) {
		t.Skip("cutting links takes network namespaces")
	}
	overEach(t, resuming, func(t *testing.T, c *cluster, transport string) {
		loads := startLoads(t, c)
		l := c.lab(t)
		for series, cuts := range []struct {
			script string
			n      int
		}{{shortCuts, 19}, {longCut, 10}, {shortCuts, 19}} {
			before := c.metrics(t)
			for n := range cuts.n {
				c.sufferOn(t, l, fmt.Sprintf(cuts.script, 1000*slices.Index(resuming, transport)+100*series+n, c.node))
				loads.goOn(t, fmt.Sprintf("series %d: after cut %d", series+1, n+1))
			}
			now := c.metrics(t)
			for _, what := range []string{"parks", "resumes"} {
				name := fmt.Sprintf("hawser_hub_link_%s_total{transport=%q}", what, transport)
				more := now[name] - before[name]
				t.Logf("series %d: %s: %v", series+1, what, more)
				if more < float64(cuts.n/4) && (what == "resumes" || cuts.script == shortCuts) { // a blackhole need not park
					t.Errorf("series %d, of %d: only %v %s", series+1, cuts.n, more, what)
				}
			}
		}
		loads.finish(t)
	}, "--netns")
}

// suffer runs a script of faults on the cluster's links.
func (c *cluster) suffer(t *testing.T, text string) {
	t.Helper()
	t.Logf("%d faults", c.sufferOn(t, c.lab(t), text))
}

// sufferOn is suffer with access to the links, and returns how many faults there were.
func (c *cluster) sufferOn(t *testing.T, l *lab.Lab, text string) (faults int) {
	t.Helper()
	script, err := lab.ParseScript(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := script.Run(t.Context(), l, func(lab.Event) { faults++ }); err != nil {
		t.Fatal(err)
	}
	return faults
}
