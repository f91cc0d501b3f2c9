// Dials that are given up, whatever state they are in, leave nothing behind.

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var cancels = flag.Int("e2e.cancels", 500, "how many dials TestCancels gives up over each transport")

// cancelling is how many are at it at a time.
const cancelling = 64

// TestCancels gives dials up before the request is complete, while the node dials,
// when the answer is on its way, after it, in the middle of the data and at the end
// of it. Then server and agent hold what they held before, and so do the targets.
func TestCancels(t *testing.T) {
	t.Parallel()
	overEachFront(t, everyTransport, func(t *testing.T, f *front, transport string) {
		_, hole := newHole(t)
		g := &giver{front: f, target: newTarget(t, nil, serveCancelled), hole: hole}
		idle := map[string]usage{}
		for _, program := range f.bothEnds() {
			idle[program] = f.usage(t, program)
		}
		// What is made once and kept is there after this.
		g.giveUp(t, *cancels/10, 1)
		g.settle(t, idle)
		before := map[string]usage{}
		for _, program := range f.bothEnds() {
			before[program] = f.usage(t, program)
			idle[program] = usage{idle[program].goroutines, idle[program].files, idle[program].streams, before[program].memory}
		}
		began := time.Now()
		g.giveUp(t, *cancels, 2)
		took := time.Since(began)
		g.settle(t, idle)
		settled := time.Since(began) - took
		for _, program := range f.bothEnds() {
			t.Logf("%s: %v before, %v after %d dials given up in %v, settled in %v", program, before[program], f.usage(t, program), *cancels,
				took.Round(time.Second), settled.Round(time.Second))
		}
		if slices.Contains(resetting, transport) { // without a reset nobody hears of it
			g.noneTimedOut(t)
		}
	})
}

// serveCancelled is a target for all states: the first byte says what it does.
func serveCancelled(c *net.TCPConn) {
	var what [1]byte
	if _, err := io.ReadFull(c, what[:]); err != nil {
		return
	}
	switch what[0] {
	case 'e':
		_, _ = io.Copy(c, c)
	case 'f':
		_, _ = io.Copy(c, pattern{})
	}
}

// A giver dials and gives up.
type giver struct {
	*front
	target *target
	hole   int // a port that does not answer
}

// giveUp gives n dials up, in turn in every state.
func (g *giver) giveUp(t *testing.T, n int, seed uint64) {
	t.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for i := range cancelling {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				k := left.Add(-1)
				if k < 0 || t.Failed() {
					return
				}
				state := cancelStates[int(k)%len(cancelStates)]
				if err := state.do(g, r); err != nil {
					t.Errorf("given up %s: %v", state.name, err)
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// cancelStates are the states in which a dial may be given up. What do returns is
// that it did not get that far.
var cancelStates = []struct {
	name string
	do   func(g *giver, r *rand.Rand) error
}{
	{"within the request", func(g *giver, r *rand.Rand) error {
		c, err := g.openTunnel(g.target.port, r.IntN(20))
		if err != nil {
			return err
		}
		return c.Close()
	}},
	{"while the node dials", func(g *giver, r *rand.Rand) error {
		c, err := g.openTunnel(g.hole, all)
		if err != nil {
			return err
		}
		<-time.After(time.Duration(r.IntN(20)) * time.Millisecond)
		return c.Close()
	}},
	{"about when it is answered", func(g *giver, r *rand.Rand) error {
		c, err := g.openTunnel(g.target.port, all)
		if err != nil {
			return err
		}
		<-time.After(time.Duration(r.IntN(3000)) * time.Microsecond)
		return c.Close()
	}},
	{"right after the answer", func(g *giver, r *rand.Rand) error {
		c, err := g.connect(g.target.port)
		if err != nil {
			return err
		}
		return c.Close()
	}},
	{"with data both ways", func(g *giver, r *rand.Rand) error {
		return g.speak(r, 'e', 1+r.IntN(100<<10), func(c *net.UnixConn, n int) error {
			return skip(c, r.IntN(n))
		})
	}},
	{"under a flood", func(g *giver, r *rand.Rand) error {
		return g.speak(r, 'f', 1, func(c *net.UnixConn, _ int) error {
			return skip(c, r.IntN(1<<20))
		})
	}},
	{"after half of it was closed", func(g *giver, r *rand.Rand) error {
		return g.speak(r, 'e', 1+r.IntN(100<<10), func(c *net.UnixConn, n int) error {
			return errors.Join(c.CloseWrite(), skip(c, r.IntN(n)))
		})
	}},
	{"while the target closes", func(g *giver, r *rand.Rand) error {
		return g.speak(r, 'c', 1, func(*net.UnixConn, int) error { return nil })
	}},
	{"after all has ended", func(g *giver, r *rand.Rand) error {
		return g.speak(r, 'e', 1+r.IntN(10<<10), func(c *net.UnixConn, n int) error {
			if err := c.CloseWrite(); err != nil {
				return err
			}
			if got, err := io.Copy(io.Discard, c); err != nil || got != int64(n-1) {
				return fmt.Errorf("%d of %d bytes came back: %w", got, n-1, err)
			}
			return nil
		})
	}},
}

// speak opens a stream, says what the target is to do and n bytes in all, and
// closes after as much of the rest as then wants.
func (g *giver) speak(r *rand.Rand, what byte, n int, then func(c *net.UnixConn, n int) error) error {
	c, err := g.connect(g.target.port)
	if err != nil {
		return err
	}
	b := make([]byte, n)
	b[0] = what
	if _, err = c.Write(b); err == nil {
		err = then(c, n)
	}
	return errors.Join(err, c.Close())
}

// skip reads n bytes.
func skip(c net.Conn, n int) error {
	_, err := io.CopyN(io.Discard, c, int64(n))
	return err
}

// settle waits until both programs hold what they held before, or hardly more, and
// nothing is connected to the target.
func (g *giver) settle(t *testing.T, before map[string]usage) {
	t.Helper()
	for program, was := range before {
		g.settled(t, program, was)
	}
	g.target.deserted(t)
}

// noneTimedOut wants the node to have heard that nobody waits for what does not
// answer: given up, not timed out.
func (g *giver) noneTimedOut(t *testing.T) {
	t.Helper()
	results := map[string]float64{}
	for name, v := range g.metricsAt(t, metricsOf(g.node)) {
		for _, result := range []string{"canceled", "timeout"} {
			if name == fmt.Sprintf(`hawser_agent_dials_total{direction="in",result=%q}`, result) {
				results[result] = v
			}
		}
	}
	if results["canceled"] == 0 || results["timeout"] != 0 {
		t.Errorf("dials by the node that nobody waited for, by result: %v", results)
	}
}
