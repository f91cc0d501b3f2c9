// Through: dials to addresses that no node has, through nodes that reach them.

package server

import (
	"context"

	"github.com/hawser-project/hawser/tunnel"
)

// maxThrough bounds the nodes that one dial to such an address reaches.
const maxThrough = 3

// dialThrough dials an address that no node has, through one of the nodes of
// Config.Through: those with a working session here first. It tries another one if a node
// is away, busy, or does not admit the address. If none is there but one's agent is being
// restarted, it waits for that as DialContext does. none is the error if there is no such
// node.
func (h *Hub) dialThrough(ctx context.Context, d tunnel.Dial, none error) (*conn, way, error) {
	w, err := way{transport: "none"}, none
	if h.config.Through == nil {
		return nil, w, err
	}
	t, _ := parseTarget(d.Network, d.Addr) // it has been parsed
	var here, others []string
	for _, node := range h.config.Through(t.ip) {
		if m := h.registry.find(node); m != nil && !m.leaving() && m.parked().IsZero() {
			here = append(here, node)
		} else {
			others = append(others, node)
		}
	}
	if len(here)+len(others) > 0 {
		err = &tunnel.DialError{Addr: d.Addr, Code: tunnel.NoNode, Text: "no node has address " + t.ip.String() + ", and none that leads there is connected"}
	}
	d.Network, d.Addr, d.Name = "tcp", t.addr, d.Addr
	reached, soon := 0, ""
	for _, node := range append(here, others...) {
		c, tried, terr := h.dialNow(ctx, node, d, h.connect)
		code := tunnel.CodeOf(terr)
		if ctx.Err() != nil || !code.Away() && code != tunnel.Denied && code != tunnel.Busy {
			return c, tried, terr
		}
		if code == tunnel.Draining {
			soon = node
		}
		if code == tunnel.NoNode {
			continue // the error of a node that is there says more
		}
		if w, err, reached = tried, terr, reached+1; reached == maxThrough {
			break
		}
	}
	if soon != "" {
		return h.dialWaiting(ctx, soon, d, func() (*conn, way, error) { return h.dialNow(ctx, soon, d, h.connect) })
	}
	return nil, w, err
}
