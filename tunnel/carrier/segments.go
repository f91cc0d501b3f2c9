// Small packets: connections over paths that lose large ones and say nothing.

package carrier

import (
	"context"
	"strings"
	"syscall"
)

// smallSegment is the TCP segment for which there is room on every path that IPv6
// may take: 1280 bytes (RFC 8200, 5) without the headers of IP and of TCP.
const smallSegment = 1280 - 40 - 20

// smallKey is the key of a context that asks for small packets.
type smallKey struct{}

// SmallPackets asks whoever dials with the context for a connection on which
// neither end sends a packet above 1280 bytes.
func SmallPackets(ctx context.Context) context.Context {
	return context.WithValue(ctx, smallKey{}, true)
}

// WantsSmallPackets says whether ctx asks for that.
func WantsSmallPackets(ctx context.Context) bool {
	small, _ := ctx.Value(smallKey{}).(bool)
	return small
}

// DialControl is a net.Dialer's ControlContext that heeds SmallPackets, as far as the
// system lets it.
func DialControl(ctx context.Context, network, _ string, c syscall.RawConn) error {
	if !WantsSmallPackets(ctx) || !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return c.Control(func(fd uintptr) { limitSegments(fd, smallSegment) })
}
