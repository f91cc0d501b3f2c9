// Path: the route from this machine to a server, and notification of its changes.

package agent

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// pathPoll is the polling interval where the kernel sends no notifications.
const pathPoll = 2 * time.Second

// A routing looks up routes and watches for their changes.
type routing struct {
	// path describes the route to an address; the text changes when the route does, and is
	// empty if there is none.
	path func(to netip.Addr) string
	// watch calls changed each time a path may have changed, until ctx is done.
	watch func(ctx context.Context, changed func())
}

// sourceOf is the source address of packets to an address. It connects a UDP socket, which
// sends nothing.
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
