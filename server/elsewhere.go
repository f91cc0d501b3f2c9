// Elsewhere: dials through other servers that have a session of the node, and dials for
// them.

package server

import (
	"context"
	"net"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// viaPeer is the transport label of dials through another server.
const viaPeer = "peer"

// dialElsewhere dials into a node through another server. The route is zero if no server is
// known to have the node.
func (h *Hub) dialElsewhere(ctx context.Context, node string, d tunnel.Dial) (*conn, way, error) {
	if h.config.Elsewhere == nil {
		return nil, way{}, nil
	}
	w, began := way{transport: viaPeer, node: node}, time.Now()
	s, ok, err := h.config.Elsewhere(ctx, node, d)
	switch {
	case !ok:
		return nil, way{}, nil
	case err != nil:
		return nil, w, err
	}
	h.dialed(ctx, w, d.Name, began, nil)
	return h.ledger.elsewhere.track(openerServer, s, tunnel.Addr(d.Name)), w, nil
}

// DialHere connects to d.Addr, as node sees it, through a session of this hub only. It
// serves dials of other servers. Errors are *tunnel.DialError, with a code that is Away if
// there is no usable session: Draining if the node is expected to reconnect. It does not
// wait for that, because the node may connect to any server. The connection is a
// tunnel.Stream; the caller owns it.
func (h *Hub) DialHere(ctx context.Context, node string, d tunnel.Dial) (net.Conn, error) {
	d.Name = d.Addr
	return h.counted(ctx, d.Addr, func() (*conn, way, error) {
		if h.stopping.Load() {
			return nil, way{transport: "none", node: node}, &tunnel.DialError{Addr: d.Addr, Code: tunnel.Draining, Text: textLeaving}
		}
		return h.dialSessions(ctx, node, d, h.connect, h.noSession)
	})
}
