// What the hub knows of sessions, in the words of the controllers, which know no
// hub.

package main

import (
	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/statuspage"
	"github.com/hawser-project/hawser/controlplane/tunnelhealth"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/peers"
)

// hubSource makes a hub a Source of evidence and of tunnelhealth.
type hubSource struct{ *server.Hub }

// peersSource makes one of the hubs of all servers.
type peersSource struct{ *peers.Peers }

// A sessionSource is what controllers and the status page read of sessions.
type sessionSource interface {
	tunnelhealth.Source
	statuspage.Source
}

// sessions are those of this server and of the others.
func (t *tunnels) sessions() sessionSource {
	if t.peers != nil {
		return peersSource{t.peers.Peers}
	}
	return hubSource{t.hub}
}

// newPage makes the status page.
func newPage(o *serverOptions, t *tunnels) *statuspage.Page {
	return statuspage.New(statuspage.Config{Source: t.sessions(), Audited: o.audit.policyFile != "" && o.audit.log.path != "", Log: t.log})
}

// evictions are what this server tells the others.
func (t *tunnels) evictions() peers.Evictions {
	frozen, decides := t.page.Frozen()
	e := peers.Evictions{Decides: decides, Frozen: make([]peers.Freeze, len(frozen))}
	for i, f := range frozen {
		e.Frozen[i] = peers.Freeze(f)
	}
	return e
}

// Evictions implements statuspage.Source: there is no other server.
func (hubSource) Evictions() (statuspage.Evictions, bool) { return statuspage.Evictions{}, false }

// Evictions implements statuspage.Source.
func (s peersSource) Evictions() (statuspage.Evictions, bool) {
	e, known := s.Peers.Evictions()
	out := statuspage.Evictions{Server: e.Server, At: e.At, Frozen: make([]statuspage.Freeze, len(e.Frozen))}
	for i, f := range e.Frozen {
		out.Frozen[i] = statuspage.Freeze(f)
	}
	return out, known
}

// Samples implements statuspage.Source.
func (s hubSource) Samples() []statuspage.Sample { return samplesOf(peers.SamplesOf(s.Hub)) }

// Samples implements statuspage.Source.
func (s peersSource) Samples() []statuspage.Sample { return samplesOf(s.Peers.Samples()) }

func samplesOf(all []peers.Sample) []statuspage.Sample {
	out := make([]statuspage.Sample, len(all))
	for i, s := range all {
		out[i] = statuspage.Sample{Node: s.Node, RTT: s.RTT, Streams: s.Streams}
	}
	return out
}

// Observe says what is known of a node.
func (s hubSource) Observe(node string) (evidence.Session, bool) {
	o, ok := s.Hub.Observe(node)
	if !ok {
		return evidence.Session{}, false
	}
	return sessionOf(&o), true
}

// Observe says what is known of a node, and who speaks of it.
func (s peersSource) Observe(node string) (evidence.Session, bool) {
	o, ok := s.Peers.Observe(node)
	var e evidence.Session
	if ok {
		e = sessionOf(&o.Observation)
	}
	e.Server, e.Also, e.Elsewhere, e.Unheard = o.Server, o.Also, o.Elsewhere, o.Unheard
	return e, ok
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
