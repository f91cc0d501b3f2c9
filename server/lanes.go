// Further lanes: sessions that carry the bulk of another one.

package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/lanes"
)

// extend makes s a lane of the session that its greeting names, which must be the
// same agent's. On error s is of no more use, and that has been told and logged.
func (h *Hub) extend(s tunnel.Session, g *tunnel.Greeting, node string) (*tunnel.Control, error) {
	log := h.log.With("node", node, "addr", s.Peer().Addr.String())
	session, lane, _ := lanes.Joined(g.Meta)
	m := h.registry.member(node, session)
	if lane == 0 || m == nil || m.lanes == nil || m.hello.Instance != g.Instance {
		err := lanes.Refused(session, lane)
		log.Info("lane turned away", "session", session, "lane", lane, "err", err)
		h.refuse(g, err)
		return nil, err
	}
	control := g.Control(tunnel.Welcome{
		Session: m.id, Interval: h.config.PingInterval, Timeout: h.config.PingTimeout,
		Meta: tunnel.Meta{"version": h.config.Version},
	})
	err := m.lanes.Add(lane, s)
	if err == nil {
		err = control.Welcome()
	}
	if err != nil {
		log.Info("lane came to nothing", "session", session, "lane", lane, "err", err)
		_ = s.Close() // Add may have
		return nil, fmt.Errorf("extend session %d: %w", session, err)
	}
	return control, nil
}

// tend minds the control stream of a lane until the lane ends, which it does with
// the session that it is of.
func (h *Hub) tend(ctx context.Context, s tunnel.Session, control *tunnel.Control) {
	if err := control.Run(context.WithoutCancel(ctx), nil); err != nil {
		h.log.Debug("lane ended", "addr", s.Peer().Addr.String(), "reason", err)
	}
	_ = s.Close() // its end is what matters
}

// member is the node's session of that number.
func (r *registry) member(node string, id uint64) *member {
	all := r.membersOf(node)
	if i := slices.IndexFunc(all, func(m *member) bool { return m.id == id }); i >= 0 {
		return all[i]
	}
	return nil
}
