// Elsewhere: nodes of which other servers have a session, and what those ask of
// this hub.

package server

import (
	"context"
	"net"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// viaPeer is what metrics call the way through another server.
const viaPeer = "peer"

// elsewhere dials into a node through another server. The way is zero if none is known
// to have the node.
func (h *Hub) elsewhere(ctx context.Context, node string, d tunnel.Dial) (*conn, way, error) {
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
	return h.around(&h.ledger.elsewhere, s, d), w, nil
}

// DialHere connects to an address, as node sees it, through a session that this hub
// has: it is for what another server asks for, and asks nobody else. Errors are
// *tunnel.DialError, with a code that is Away if there is no session that works: Draining
// if the node is expected back. It never waits for that: the session may come to any server.
// The connection is a tunnel.Stream; the caller owns it.
func (h *Hub) DialHere(ctx context.Context, node, network, addr string) (net.Conn, error) {
	d := tunnel.Dial{Network: network, Addr: addr, Name: addr}
	return h.counted(ctx, addr, func() (*conn, way, error) {
		if h.stopping.Load() {
			return nil, way{transport: "none", node: node}, &tunnel.DialError{Addr: addr, Code: tunnel.Draining, Text: textLeaving}
		}
		return h.into(ctx, node, d, h.connect, h.absent)
	})
}
