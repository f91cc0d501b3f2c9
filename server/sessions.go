// Sessions: the hub's list of connected nodes.

package server

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"time"
)

// A Session describes a connected node.
type Session struct {
	ID        uint64
	Node      string
	Transport string
	Addr      net.Addr // the agent's remote address
	Since     time.Time
	// Parked is since when the session has no connection; zero while it has one.
	Parked time.Time
	// Heard is when data last arrived from the agent. Zero if the transport does not report
	// it.
	Heard    time.Time
	RTT      time.Duration // the latest; zero before the first
	Streams  int           // open ones, both ways
	Version  string        // of the agent
	Draining bool          // the agent announced that it leaves
}

// Sessions describes the connected nodes, by name.
func (h *Hub) Sessions() []Session {
	var all []Session
	for _, m := range h.registry.all() {
		all = append(all, m.describe())
	}
	slices.SortFunc(all, func(a, b Session) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// Session describes one node, if it is connected.
func (h *Hub) Session(node string) (Session, bool) {
	m := h.registry.find(node)
	if m == nil {
		return Session{}, false
	}
	return m.describe(), true
}

func (m *member) describe() Session {
	l := m.session.Link()
	return Session{
		ID: m.id, Node: m.node, Transport: m.transport, Addr: cmp.Or(l.Addr, m.addr), Since: m.since, RTT: m.control.RTT(),
		Streams: m.open.Count(), Version: m.hello.Meta["version"], Draining: m.leaving(), Parked: l.Parked, Heard: l.Heard,
	}
}

// Changed returns a channel that is closed when a node next connects, disconnects or
// replaces its session. Call it before Sessions so that no change is missed.
func (h *Hub) Changed() <-chan struct{} { return h.registry.next() }

// Wait blocks until at least n nodes are connected.
func (h *Hub) Wait(ctx context.Context, n int) error {
	for {
		changed := h.Changed()
		have := len(h.registry.all())
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d nodes, %d are connected: %w", n, have, context.Cause(ctx))
		}
	}
}
