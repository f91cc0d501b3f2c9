// The node's link is cut in every way there is, over each transport that resumes, while streams
// go on.

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

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
		loads, bulk := startLoads(t, c), startBulk(t, c)
		l := c.lab(t)
		for series, cuts := range []struct {
			script string
			n      int
		}{{shortCuts, 19}, {longCut, 10}, {shortCuts, 19}} {
			before := c.metrics(t)
			for n := range cuts.n {
				flowing := bulk.take()
				c.sufferOn(t, l, fmt.Sprintf(cuts.script, 1000*slices.Index(resuming, transport)+100*series+n, c.node))
				select {
				case err := <-flowing:
					if err != nil {
						t.Fatal(err)
					}
				case <-time.After(patience):
					t.Fatal("the bulk stands still")
				}
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
		if bulk.read < 1<<30 {
			t.Errorf("%d bytes in bulk", bulk.read)
		}
		loads.finish(t)
	}, "--netns")
}

// A bulk is the output of an exec, numbers of ten digits in order, that is read in portions.
type bulk struct {
	out    io.Reader
	read   int64
	number int64
	want   bytes.Buffer // what comes next
}

// portion is what one cut of TestCuts meets: all meet a gibibyte.
const portion = 1<<30/48 + 1

func startBulk(t *testing.T, c *cluster) *bulk {
	t.Helper()
	c.podWith(t, "bulk", "", "", "sleep", "10000")
	b := &bulk{number: 1_000_000_000}
	cmd := c.startKubectl(t, "exec", "bulk", "--", "seq", strconv.FormatInt(b.number, 10), "9999999999")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // interrupted
	})
	b.out = out
	return b
}

// take reads a portion and compares it.
func (b *bulk) take() <-chan error {
	done := make(chan error, 1)
	go func() {
		block := make([]byte, 64<<10)
		for left := portion; left > 0; {
			n, err := b.out.Read(block[:min(left, len(block))])
			for b.want.Len() < n {
				b.want.Write(append(strconv.AppendInt(b.want.AvailableBuffer(), b.number, 10), '\n'))
				b.number++
			}
			if want := b.want.Next(n); err != nil || !bytes.Equal(block[:n], want) {
				done <- fmt.Errorf("in bulk, after %d bytes: %q, %w; want %q", b.read, block[:min(n, 40)], err, want[:min(n, 40)])
				return
			}
			b.read, left = b.read+int64(n), left-n
		}
		done <- nil
	}()
	return done
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
