// What the hub knows of sessions, in the words of the controllers, which know no
// hub.

package main

import (
	"context"

	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/server"
)

// hubSource makes a hub, or the hubs of all servers, a Source of evidence and of
// tunnelhealth.
type hubSource struct {
	hub interface {
		Observe(node string) (server.Observation, bool)
		Follow(ctx context.Context, f func(nodes []string)) error
	}
}

// sessions are those of this server and of the others.
func (t *tunnels) sessions() hubSource {
	if t.peers != nil {
		return hubSource{t.peers}
	}
	return hubSource{t.hub}
}

// Observe says what is known of a node.
func (s hubSource) Observe(node string) (evidence.Session, bool) {
	o, ok := s.hub.Observe(node)
	if !ok {
		return evidence.Session{}, false
	}
	return sessionOf(&o), true
}

// Follow tells f of nodes that Observe may say something new of.
func (s hubSource) Follow(ctx context.Context, f func(nodes []string)) error {
	return s.hub.Follow(ctx, f)
}

func sessionOf(o *server.Observation) evidence.Session {
	s := evidence.Session{Node: o.Node, Change: changeOf(&o.Change), Window: o.Window, RTT: o.RTT}
	s.Changes = make([]evidence.Change, len(o.Changes))
	for i := range o.Changes {
		s.Changes[i] = changeOf(&o.Changes[i])
	}
	return s
}

func changeOf(c *server.Change) evidence.Change {
	out := evidence.Change{
		Number: c.Number, At: c.At, State: evidence.State(c.State.String()), Err: c.Err,
		Heard: c.Heard, Session: c.Session, Transport: c.Transport, Addr: c.Addr,
	}
	if c.Cause != server.Unknown {
		out.Cause = evidence.Cause(c.Cause.String())
	}
	return out
}
