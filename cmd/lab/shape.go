// Delay, jitter, reordering and loss of single packets: the link emulator between a
// node and its NAT.

package lab

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"

	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

// While a link is shaped, the NAT's namespace looks like this:
//
//	node ── lan0 ── routing ── nodeTUN ── emulator ── worldTUN ── routing, NAT ── wan0
//
// Policy routing sends what comes from lan0 into nodeTUN and what comes from wan0
// into worldTUN. Connections are tracked on the right-hand side only: otherwise each
// packet would be tracked twice.
const (
	nodeTUN  = "tun-node"
	worldTUN = "tun-world"
)

// noShape is a link that does nothing to packets.
var noShape emulator.Shape

// shaping is an emulator at work.
type shaping struct {
	wire *emulator.Wire
	stop context.CancelFunc
	done chan struct{} // closed once err is set
	err  error
}

// Shape puts a link emulator between the node and its NAT: out is for what the node
// sends, in for what it receives. Two zero shapes take it away, and what is then
// under way is lost. Chances are drawn from the lab's Seed at the time the emulator
// is put in. It lives in this process until Close.
func (n *Node) Shape(ctx context.Context, out, in emulator.Shape) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	none := out == noShape && in == noShape
	switch {
	case n.shaping == nil && none:
		return nil
	case n.shaping == nil:
		if err := n.startShaping(ctx, out, in); err != nil {
			return fmt.Errorf("shape %s: %w", n.Name, err)
		}
	case none:
		if err := n.stopShaping(ctx); err != nil {
			return fmt.Errorf("shape %s: %w", n.Name, err)
		}
	default:
		if err := n.shaping.wire.SetShape(out, in); err != nil {
			return fmt.Errorf("shape %s: %w", n.Name, err)
		}
	}
	return nil
}

// Shaped returns what the emulator has done to packets since it was put in; false
// means that there is none.
func (n *Node) Shaped() (out, in emulator.Counts, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.shaping == nil {
		return out, in, false
	}
	out, in = n.shaping.wire.Counts()
	return out, in, true
}

// seedOf gives each node of a lab chances of its own.
func seedOf(lab uint64, node string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", lab, node)
	return h.Sum64()
}

func (n *Node) startShaping(ctx context.Context, out, in emulator.Shape) error {
	wire, err := emulator.NewWire(out, in, seedOf(n.lab.Seed, n.Name))
	if err != nil {
		return err
	}
	var near, far *os.File
	err = inNamespace(n.nat, func() error {
		var errNear, errFar error
		near, errNear = openTUN(nodeTUN)
		far, errFar = openTUN(worldTUN)
		return errors.Join(errNear, errFar, withoutIPv6(nodeTUN), withoutIPv6(worldTUN))
	})
	if err != nil {
		for _, f := range []*os.File{near, far} {
			if f != nil {
				err = errors.Join(err, f.Close())
			}
		}
		return err
	}
	// The emulator outlives the call: Shape or Close ends it.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &shaping{wire: wire, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = wire.Run(running, near, far)
	}()
	n.shaping = s
	if err := n.divert(ctx); err != nil {
		return errors.Join(err, n.stopShaping(context.WithoutCancel(ctx)))
	}
	return nil
}

// divert leads the node's packets through the emulator.
func (n *Node) divert(ctx context.Context) error {
	for _, dev := range []string{nodeTUN, worldTUN} {
		// The devices' own queues are long, for the emulator's to be the one that
		// overflows.
		if err := run(ctx, n.inNAT("ip", "link", "set", dev, "txqueuelen", "10000", "up")...); err != nil {
			return err
		}
	}
	if err := n.changeLocked(ctx, "divert", func(f *faults) { f.shaped = true }); err != nil {
		return err
	}
	for _, w := range diversions {
		for _, args := range [][]string{
			{"ip", "route", "replace", "default", "dev", w.to, "table", w.table},
			{"ip", "rule", "add", "iif", w.from, "priority", w.table, "table", w.table},
		} {
			if err := run(ctx, n.inNAT(args...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

var diversions = []struct{ from, to, table string }{{"lan0", nodeTUN, "100"}, {"wan0", worldTUN, "101"}}

// stopShaping takes the emulator away and returns after it has ended.
func (n *Node) stopShaping(ctx context.Context) error {
	var errs []error
	for _, w := range diversions {
		// There may be no such rule, if putting the emulator in has failed.
		have, err := output(ctx, n.inNAT("ip", "rule", "list", "iif", w.from)...)
		if err == nil && have != "" {
			err = run(ctx, n.inNAT("ip", "rule", "del", "iif", w.from, "priority", w.table)...)
		}
		errs = append(errs, err)
	}
	errs = append(errs, n.changeLocked(ctx, "divert", func(f *faults) { f.shaped = false }))
	n.endEmulator()
	return errors.Join(append(errs, n.shapingErr())...)
}

// endEmulator stops the emulator and waits for it. Its devices go with it.
func (n *Node) endEmulator() {
	if n.shaping != nil {
		n.shaping.stop()
		<-n.shaping.done
	}
}

// shapingErr forgets the emulator, which has ended, and returns how.
func (n *Node) shapingErr() error {
	if n.shaping == nil {
		return nil
	}
	err := n.shaping.err
	n.shaping = nil
	return err
}
