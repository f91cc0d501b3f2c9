// Faults of a node's link that the kernel does: cuts, losses, resets, a slow wire, a
// NAT that forgets, an address that changes.

package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Direction is one way, or both, over a node's link as the node sees it.
type Direction uint8

const (
	// In is from the host to the node.
	In Direction = 1 << iota
	// Out is from the node to the host.
	Out
	// Both is In and Out.
	Both = In | Out
)

func (d Direction) String() string {
	switch d {
	case In:
		return "in"
	case Out:
		return "out"
	case Both:
		return "both"
	}
	return "none"
}

// faults is what the packet filter of a NAT does at present. The zero value does
// nothing.
type faults struct {
	cut     Direction
	loss    float64 // share of packets, each way
	reset   bool
	noUDP   bool
	shaped  bool // the emulator is in the path
	binding int  // how often the NAT has been rebound
	strict  bool // connections that the NAT does not know get no answer
}

const (
	// A rebound NAT maps to one of bindings ranges of bindingPorts ports, which lie
	// below the ports that nodes choose themselves: two bindings that follow each
	// other have no port in common.
	bindings     = 20
	bindingPorts = 1000
	firstBinding = 10_000
	// lossGrain is the resolution of a loss.
	lossGrain = 1_000_000
	// maxReset bounds a reset: a link that resets for longer is not a moment's.
	maxReset = time.Hour
	// maxRate bounds a rate, in bytes per second.
	maxRate = 1_000_000_000_000
)

// rules is what nft is told. The table is made anew, in one transaction.
func (f faults) rules() string {
	var b strings.Builder
	b.WriteString("table ip faults {}\ndelete table ip faults\ntable ip faults {\n")
	b.WriteString("\tchain raw {\n\t\ttype filter hook prerouting priority raw; policy accept;\n")
	if f.shaped {
		// Between the node and the emulator packets are not yet, or no longer, of
		// the NAT's concern.
		fmt.Fprintf(&b, "\t\tiifname { \"lan0\", %q } notrack\n", nodeTUN)
	}
	b.WriteString("\t}\n\tchain forward {\n\t\ttype filter hook forward priority filter - 10; policy accept;\n")
	for _, way := range []struct {
		direction Direction
		match     string
	}{{Out, `oifname "wan0"`}, {In, `iifname "wan0"`}} {
		if f.cut&way.direction != 0 {
			fmt.Fprintf(&b, "\t\t%s drop\n", way.match)
		}
		if f.strict {
			fmt.Fprintf(&b, "\t\t%s meta l4proto tcp ct state new tcp flags & (syn | ack) != syn drop\n", way.match)
		}
		if f.noUDP {
			fmt.Fprintf(&b, "\t\t%s meta l4proto udp drop\n", way.match)
		}
		if f.reset {
			fmt.Fprintf(&b, "\t\t%s meta l4proto tcp reject with tcp reset\n", way.match)
		}
		switch {
		case f.loss == 1:
			fmt.Fprintf(&b, "\t\t%s drop\n", way.match)
		case f.loss > 0:
			fmt.Fprintf(&b, "\t\t%s numgen random mod %d < %d drop\n", way.match, lossGrain, int(f.loss*lossGrain))
		}
	}
	b.WriteString("\t}\n")
	if f.binding > 0 {
		from := firstBinding + f.binding%bindings*bindingPorts
		b.WriteString("\tchain rebind {\n\t\ttype nat hook postrouting priority srcnat - 1; policy accept;\n")
		fmt.Fprintf(&b, "\t\toifname \"wan0\" meta l4proto { tcp, udp } masquerade to :%d-%d\n\t}\n", from, from+bindingPorts-1)
	}
	b.WriteString("}\n")
	return b.String()
}

// change applies a change of the filter; if that fails, nothing has changed.
func (n *Node) change(ctx context.Context, what string, edit func(*faults)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changeLocked(ctx, what, edit)
}

func (n *Node) changeLocked(ctx context.Context, what string, edit func(*faults)) error {
	next := n.faults
	edit(&next)
	if err := runInput(ctx, next.rules(), n.inNAT("nft", "-f", "-")...); err != nil {
		return fmt.Errorf("%s %s: %w", what, n.Name, err)
	}
	n.faults = next
	return nil
}

// Cut drops every packet, both ways, without a word to anybody, until Heal.
func (n *Node) Cut(ctx context.Context) error { return n.CutOneWay(ctx, Both) }

// CutOneWay drops every packet of a direction. It adds to what is cut already.
func (n *Node) CutOneWay(ctx context.Context, d Direction) error {
	return n.change(ctx, "cut", func(f *faults) { f.cut |= d })
}

// Heal ends Cut and CutOneWay. Other faults stay.
func (n *Node) Heal(ctx context.Context) error {
	return n.change(ctx, "heal", func(f *faults) { f.cut = 0 })
}

// BlockUDP drops every UDP packet, both ways, as networks do that know of nothing
// but the web; false ends it.
func (n *Node) BlockUDP(ctx context.Context, on bool) error {
	return n.change(ctx, "block UDP", func(f *faults) { f.noUDP = on })
}

// Loss drops a share of the packets, 0 to 1, each way, by chance without a seed; 0
// ends it. The kernel may treat several segments of a TCP stream as one packet here;
// a loss in Shape counts single packets, from a seed.
func (n *Node) Loss(ctx context.Context, share float64) error {
	if !(share >= 0 && share <= 1) {
		return fmt.Errorf("loss %s: %v: must be from 0 to 1", n.Name, share)
	}
	return n.change(ctx, "loss", func(f *faults) { f.loss = share })
}

// Reset answers every TCP segment with a reset, both ways, for a while of at most
// an hour. A connection over which nothing goes in that time survives. It returns
// when the while is over; if ctx ends before, it ends the fault and returns its error.
func (n *Node) Reset(ctx context.Context, d time.Duration) error {
	if d <= 0 || d > maxReset {
		return fmt.Errorf("reset %s: for %v: must be above 0 and at most %v", n.Name, d, maxReset)
	}
	if err := n.setReset(ctx, true); err != nil {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	var cause error
	select {
	case <-timer.C:
	case <-ctx.Done():
		cause = context.Cause(ctx)
	}
	return errors.Join(cause, n.setReset(context.WithoutCancel(ctx), false))
}

func (n *Node) setReset(ctx context.Context, on bool) error {
	return n.change(ctx, "reset", func(f *faults) { f.reset = on })
}

// Rate limits the link to a number of bytes per second, each way, by the kernel's
// own token bucket, with a queue of 100 ms (at least 16 KiB); 0 ends it.
func (n *Node) Rate(ctx context.Context, bytesPerSecond int64) error {
	if bytesPerSecond < 0 || bytesPerSecond > maxRate {
		return fmt.Errorf("rate %s: %d bytes per second: must be from 0 to %d", n.Name, bytesPerSecond, int64(maxRate))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, dev := range []string{"wan0", "lan0"} {
		if err := n.limitLocked(ctx, dev, bytesPerSecond); err != nil {
			return fmt.Errorf("rate %s: %w", n.Name, err)
		}
	}
	return nil
}

// limitLocked limits what a device of the NAT sends.
func (n *Node) limitLocked(ctx context.Context, dev string, bytesPerSecond int64) error {
	const burst = 16 << 10
	have, err := output(ctx, n.inNAT("tc", "qdisc", "show", "dev", dev)...)
	if err != nil {
		return err
	}
	if strings.Contains(have, "qdisc htb") {
		if err := run(ctx, n.inNAT("tc", "qdisc", "del", "dev", dev, "root")...); err != nil {
			return err
		}
	}
	if bytesPerSecond == 0 {
		return nil
	}
	bits, queue := fmt.Sprintf("%dbit", bytesPerSecond*8), fmt.Sprint(max(burst, bytesPerSecond/10))
	for _, args := range [][]string{
		{"qdisc", "add", "dev", dev, "root", "handle", "1:", "htb", "default", "1"},
		{"class", "add", "dev", dev, "parent", "1:", "classid", "1:1", "htb", "rate", bits, "burst", fmt.Sprint(burst), "cburst", fmt.Sprint(burst)},
		{"qdisc", "add", "dev", dev, "parent", "1:1", "handle", "2:", "bfifo", "limit", queue},
	} {
		if err := run(ctx, n.inNAT(append([]string{"tc"}, args...)...)...); err != nil {
			return err
		}
	}
	return nil
}

// Rebind makes the NAT forget every connection and choose other ports from now on:
// to the host, the node's packets come from somewhere new; what the host sends to
// where they came from before is dropped.
func (n *Node) Rebind(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rebindLocked(ctx)
}

// Forget makes the NAT forget every connection. Unlike after Rebind, the host does not
// hear of what the node goes on to send on them, and cannot say that it knows none of
// it: packets of TCP that begin nothing are dropped from now on.
func (n *Node) Forget(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.changeLocked(ctx, "forget", func(f *faults) { f.strict = true }); err != nil {
		return err
	}
	return n.rebindLocked(ctx)
}

func (n *Node) rebindLocked(ctx context.Context) error {
	if err := n.changeLocked(ctx, "rebind", func(f *faults) { f.binding++ }); err != nil {
		return err
	}
	if err := inNamespace(n.nat, flushConntrack); err != nil {
		return fmt.Errorf("rebind %s: %w", n.Name, err)
	}
	return nil
}

// Move takes the node to another network: its own address changes, so that its
// sockets bound to the old one are dead, and so does the NAT's outer address. A
// second move takes it back.
func (n *Node) Move(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.moved = !n.moved
	for _, args := range [][]string{
		n.inNode("ip", "address", "flush", "dev", "eth0"),
		n.inNode("ip", "address", "add", n.innerLocked()+"/24", "dev", "eth0"),
		n.inNode("ip", "route", "add", "default", "via", n.gateway()),
		n.inNAT("ip", "address", "flush", "dev", "wan0"),
		n.inNAT("ip", "address", "add", n.outerLocked()+"/24", "dev", "wan0"),
	} {
		if err := run(ctx, args...); err != nil {
			return fmt.Errorf("move %s: %w", n.Name, err)
		}
	}
	return n.rebindLocked(ctx)
}

// Clear ends every fault of the node's link. Where it has moved to and what its NAT
// has been rebound to stay.
func (n *Node) Clear(ctx context.Context) error {
	return errors.Join(
		n.Shape(ctx, noShape, noShape),
		n.Rate(ctx, 0),
		n.change(ctx, "clear", func(f *faults) { f.cut, f.loss, f.reset, f.noUDP, f.strict = 0, 0, false, false, false }))
}
