// Path: how packets to a server leave this machine, and when that changes.

package agent

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// pathPoll is how often the path is looked at where the kernel does not tell.
const pathPoll = 2 * time.Second

// A terrain is what an agent can know of the ways out of its machine.
type terrain struct {
	// path describes how packets to an address leave; it is another text when
	// they leave in another way, and empty if there is none.
	path func(to netip.Addr) string
	// watch calls changed each time a path may have changed, until ctx is done.
	watch func(ctx context.Context, changed func())
}

// sourceOf is the address that packets to an address would have as their source.
// To connect a UDP socket sends nothing.
func sourceOf(to netip.Addr) string {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }() // nothing was sent
	return addrOf(c.LocalAddr()).String()
}

// poll calls f every so often until ctx is done.
func poll(ctx context.Context, every time.Duration, f func()) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}
