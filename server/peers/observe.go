// Observing: the merged observations of all servers.

package peers

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/server"
)

// A Sight is the merged observation of a node by all servers.
type Sight struct {
	server.Observation
	// Server is the server of that session; empty if there was none.
	Server string
	// Also are the other servers with a session of the node that has a connection, sorted.
	Also []string
	// Elsewhere says that another server reports the node: the one with the session or, if
	// that cannot be heard, the first by ID of those that can.
	Elsewhere bool
	// Unheard are the configured servers that cannot be heard. They may have a session of
	// the node, and report it too.
	Unheard []string
}

// Observe returns the observation of a node that has, or had, a session with any server: of
// the newest session with a connection, else the latest one. If there is none it returns
// false, and the Sight only says which server reports the node.
func (p *Peers) Observe(node string) (Sight, bool) {
	own, known := p.cfg.Hub().Observe(node)
	s := Sight{Observation: own}
	var attached []string
	if known {
		s.Server = p.cfg.ID
		if own.State == server.Attached {
			attached = append(attached, p.cfg.ID)
		}
	}
	heard := s.Server == p.cfg.ID
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, l := range p.links {
		o, ok := l.nodes[node]
		if !ok {
			continue
		}
		if o.State == server.Attached {
			o.Heard = l.heardLocked(&o, time.Now())
			attached = append(attached, id)
		}
		if !known || later(&o, &s.Observation) {
			s.Observation, s.Server, known, heard = o, id, true, l.session != nil
		}
	}
	s.Also = slices.DeleteFunc(attached, func(id string) bool { return id == s.Server })
	slices.Sort(s.Also)
	s.Elsewhere = heard && s.Server != p.cfg.ID || !heard && !p.firstLocked()
	s.Unheard = p.unheardLocked()
	return s, known
}

// A Sample is what a node's session with a server measures.
type Sample struct {
	Node    string        `json:"node"`
	RTT     time.Duration `json:"rtt,omitempty"`     // in ns; zero if unknown, or without a connection
	Streams int           `json:"streams,omitempty"` // open ones
	// Quiet is how long ago data last arrived from the agent, in ns; zero if unknown, or
	// without a connection. Older servers do not send it.
	Quiet time.Duration `json:"quiet,omitempty"`
}

// Samples are those of all sessions: of this server's, and of those of the others that can be
// heard, at most ten seconds old. A node may have several.
func (p *Peers) Samples() []Sample {
	all := SamplesOf(p.cfg.Hub())
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		if l.session == nil {
			continue
		}
		for node, s := range l.samples {
			switch l.nodes[node].State {
			case server.Detached:
				continue
			case server.Parked:
				s.RTT = 0
			}
			all = append(all, s)
		}
	}
	return all
}

// Evictions are what a server says of evictions from nodes.
type Evictions struct {
	Server  string    `json:"-"`
	At      time.Time `json:"-"`                // when it was received
	Decides bool      `json:"decides"`          // about evictions: the leader does
	Frozen  []Freeze  `json:"frozen,omitempty"` // at most maxFrozen
}

// A Freeze says that no pod is evicted from a node, and why.
type Freeze struct {
	Node   string    `json:"node"`
	Reason string    `json:"reason"`
	Until  time.Time `json:"until,omitzero"` // zero if that is not known
}

// Evictions are what another server that can be heard, and that decides about evictions,
// said last. They are at most ten seconds old. It returns false if there is no such server.
func (p *Peers) Evictions() (Evictions, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e Evictions
	for _, l := range p.links {
		if l.session != nil && l.evictions.Decides && l.evictions.At.After(e.At) {
			e = l.evictions
		}
	}
	return e, e.Decides
}

// SamplesOf are those of one hub's sessions.
func SamplesOf(h *server.Hub) []Sample {
	sessions := h.Sessions()
	all := make([]Sample, len(sessions))
	for i := range sessions {
		s := &sessions[i]
		all[i] = Sample{Node: s.Node, Streams: s.Streams}
		if !s.Parked.IsZero() {
			continue // the rest is of before
		}
		all[i].RTT = s.RTT
		if !s.Heard.IsZero() {
			all[i].Quiet = max(time.Since(s.Heard), 0)
		}
	}
	return all
}

// firstLocked reports whether this server is the first, by ID, of those that can be heard.
func (p *Peers) firstLocked() bool {
	for id, l := range p.links {
		if l.session != nil && id < p.cfg.ID {
			return false
		}
	}
	return true
}

// unheardLocked returns the servers of Set that have not announced their sessions.
func (p *Peers) unheardLocked() []string {
	var all []string
	for _, w := range p.wanted {
		if l := p.links[w.ID]; l == nil || l.session == nil {
			all = append(all, w.ID)
		}
	}
	return all
}

// learn tells the hub the other servers' observations of changed nodes, each with the agents
// that were superseded at any of these servers.
func (p *Peers) learn(nodes []string) {
	for _, node := range nodes {
		p.cfg.Hub().Learn(node, p.others(node)...)
	}
}

// others are the other servers' observations of a node.
func (p *Peers) others(node string) []server.Observation {
	p.mu.Lock()
	defer p.mu.Unlock()
	var (
		all        []server.Observation
		superseded []uint64
	)
	for _, l := range p.links {
		if o, ok := l.nodes[node]; ok {
			all = append(all, o)
			superseded = append(superseded, o.Superseded...)
		}
	}
	for i := range all {
		all[i].Superseded = superseded
	}
	return all
}

// later reports whether a is newer than b.
func later(a, b *server.Observation) bool {
	here, there := a.State == server.Attached, b.State == server.Attached
	switch {
	case here != there:
		return here
	case here:
		return a.Connected.After(b.Connected)
	default:
		return a.At.After(b.At)
	}
}

// Changed returns a channel that is closed when another server, or a session of one, next
// appears, ends or changes. Call it before reading the state so that no change is missed.
func (p *Peers) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.news
}

// tell wakes those who wait for a change, and the followers.
func (p *Peers) tell(nodes []string) {
	p.mu.Lock()
	close(p.news)
	p.news = make(chan struct{})
	p.mu.Unlock()
	p.followers.Tell(nodes...)
}

// Follow is the hub's, with the nodes of all servers.
func (p *Peers) Follow(ctx context.Context, f func(nodes []string)) error {
	var one sync.Mutex // call of f at a time
	each := func(nodes []string) {
		one.Lock()
		defer one.Unlock()
		f(nodes)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { p.followers.Follow(ctx, p.known, each) })
	return p.cfg.Hub().Follow(ctx, each)
}

// known are the nodes that other servers have told of.
func (p *Peers) known() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]struct{})
	for _, l := range p.links {
		for node := range l.nodes {
			all[node] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(all))
}
