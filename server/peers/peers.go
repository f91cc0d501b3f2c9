// Package peers joins the servers of one cluster, so that any of them reaches any
// node: one that has no session of a node asks one that has.
//
// Each server keeps a session with each other server, on the port that agents use,
// and is told there of every session that the other one has, as it begins, parks and
// ends. So who is to be asked for a node is known before anybody wants to know. A
// dial is one stream with the usual dial frame, whose metadata name the node: flow
// control and errors are those of any other stream. The server that is asked dials into
// its own sessions only and asks nobody else: there is one hop more, and never a loop.
//
// A server is known by its client certificate (auth.ServerID), and by its serving
// certificate, which no node can get. Who shows a node's certificate is an agent to the
// hub, whatever it says.
//
// Which servers there are is told by Set; the package knows no Kubernetes.
//
// The bounds: 64 servers; 1,024 streams from one to another at a time, more wait; a
// server that says nothing for four seconds is not asked any more. A dial into a node that
// nobody is known to have waits until the others have told for the first time what they
// have, and no longer than ten seconds after the first such dial.
package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

const (
	// MaxPeers is how many other servers there may be.
	MaxPeers = 64
	// maxTries is how many servers are asked for one dial.
	maxTries = 3
	// maxNodes is how many nodes of one server are remembered.
	maxNodes = 100_000
	// dialTimeout bounds the making of a session with another server.
	dialTimeout = 3 * time.Second
	// beat is how often a server says something on the stream of its sessions, silence
	// after how long it counts as gone, and stalled how long it may take to read.
	beat, silence, stalled = time.Second, 4 * time.Second, 10 * time.Second
	// startup is how long dials wait for the first word of other servers, counted from the
	// first dial that has to. The time that this server took to start does not count.
	startup = 10 * time.Second
	// lowest and highest bound the wait between two attempts at a server.
	lowest, highest = 250 * time.Millisecond, 2 * time.Second
)

// nodeKey is the metadata that says into which node a dial of another server leads.
const nodeKey = "node"

// The address of the stream on which a server tells of its sessions.
const (
	toldNetwork = "hawser"
	toldAddr    = "sessions"
)

// A Peer is another server.
type Peer struct {
	ID   string
	Addr string // HOST:PORT of its tunnel
}

// Config configures Peers. All but DrainTimeout, Log and Metrics are required.
type Config struct {
	// ID is this server's.
	ID string
	// Dial makes a session with another server. It must show the certificate of this
	// one and believe servers only; see auth.
	Dial func(ctx context.Context, p Peer) (tunnel.Session, error)
	// Hub is this server's. It is asked for when first needed.
	Hub func() *server.Hub
	// DrainTimeout is how long streams of other servers may go on once this one is
	// shutting down; zero means 5 s.
	DrainTimeout time.Duration

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// Peers are the other servers. All methods may be called at the same time.
type Peers struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	set     chan struct{} // holds one if wanted has changed

	leaving   chan struct{} // closed by Leave
	leaveOnce sync.Once

	heard chan struct{} // closed once unheard is empty

	mu        sync.Mutex          // guards the following
	waits     time.Time           // when a dial first waited for heard; zero if none has
	unheard   map[string]struct{} // of the first Set, those at which no attempt has ended
	wanted    []Peer
	links     map[string]*link // by ID
	served    int              // sessions that other servers have made
	followers map[*follower]struct{}
	news      chan struct{} // closed, and replaced, at the next change
}

// New checks c. It starts nothing.
func New(c Config) (*Peers, error) {
	if err := auth.CheckServerID(c.ID); err != nil {
		return nil, err
	}
	if c.Dial == nil || c.Hub == nil {
		return nil, errors.New("peers: no way to other servers, or no hub")
	}
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 5*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	p := &Peers{
		cfg: c, log: c.Log, set: make(chan struct{}, 1), leaving: make(chan struct{}),
		heard: make(chan struct{}),
		links: make(map[string]*link), followers: make(map[*follower]struct{}), news: make(chan struct{}),
	}
	var err error
	if p.metrics, err = newMetrics(c.Metrics, p); err != nil {
		return nil, fmt.Errorf("peers: register metrics: %w", err)
	}
	return p, nil
}

// Leave tells the other servers that this one is about to stop: they ask it last, and only
// for nodes that no other has. It may be called again.
func (p *Peers) Leave() { p.leaveOnce.Do(func() { close(p.leaving) }) }

// Elsewhere says whether another server, which is not about to leave, has a session of
// node that has a connection.
func (p *Peers) Elsewhere(node string) bool {
	all := p.owners(node)
	return len(all) > 0 && !all[0].draining && all[0].seen.State == server.Attached && !all[0].seen.Draining
}

// Set says which other servers there are; this one is left out. What is known of the
// sessions of a server that is no more is kept for Observe.
func (p *Peers) Set(all []Peer) {
	all = slices.DeleteFunc(slices.Clone(all), func(other Peer) bool { return other.ID == p.cfg.ID })
	slices.SortFunc(all, func(a, b Peer) int { return cmp.Compare(a.ID, b.ID) })
	if len(all) > MaxPeers {
		p.log.Warn("too many servers; the last are left out", "servers", len(all)+1, "limit", MaxPeers+1)
		all = all[:MaxPeers]
	}
	p.mu.Lock()
	p.wanted = all
	if p.unheard == nil {
		p.unheard = make(map[string]struct{}, len(all))
		for _, peer := range all {
			p.unheard[peer.ID] = struct{}{}
		}
		if len(all) == 0 {
			close(p.heard)
		}
	}
	p.mu.Unlock()
	p.poke()
}

// attempted notes that a server has told of its sessions, or could not be reached.
func (p *Peers) attempted(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, first := p.unheard[id]; !first {
		return
	}
	if delete(p.unheard, id); len(p.unheard) == 0 {
		close(p.heard)
	}
}

// hearOthers waits until each other server has told of its sessions or could not be
// reached: until then nothing says that a node is connected nowhere.
func (p *Peers) hearOthers(ctx context.Context) {
	p.mu.Lock()
	if p.waits.IsZero() {
		p.waits = time.Now()
	}
	t := time.NewTimer(time.Until(p.waits.Add(startup)))
	p.mu.Unlock()
	defer t.Stop()
	select {
	case <-p.heard:
	case <-t.C:
	case <-ctx.Done():
	}
}

// Run keeps a session with each server of Set until ctx is done. A session with a server
// that is no more goes on until it ends: who tells of servers may be out of reach. Run
// should outlive the hub, whose callers may use streams through other servers while it
// drains.
func (p *Peers) Run(ctx context.Context) error {
	all := make(map[string]*kept)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { _ = p.cfg.Hub().Follow(ctx, p.learn) }) // it ends with ctx only
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.set:
		}
		p.mu.Lock()
		wanted := p.wanted
		p.mu.Unlock()
		for id, k := range all {
			if !slices.Contains(wanted, k.peer) {
				k.release()
			}
			if k.over.Load() {
				delete(all, id)
			}
		}
		for _, peer := range wanted {
			if all[peer.ID] != nil {
				continue
			}
			k := &kept{peer: peer}
			var dialing context.Context
			dialing, k.release = context.WithCancel(ctx)
			all[peer.ID] = k
			l := p.link(peer)
			group.Go(func() {
				l.keep(ctx, dialing)
				k.release()
				k.over.Store(true)
				p.poke()
			})
		}
		p.trim(wanted)
	}
}

// A kept server is one with which Run keeps a session.
type kept struct {
	peer    Peer
	release func() // has no more sessions made
	over    atomic.Bool
}

// poke has Run look again.
func (p *Peers) poke() {
	select {
	case p.set <- struct{}{}:
	default: // one is enough
	}
}

// link is that of a peer, with what was known of its sessions before.
func (p *Peers) link(peer Peer) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &link{peers: p, peer: peer, nodes: make(map[string]server.Observation)}
	if before := p.links[peer.ID]; before != nil {
		l.nodes = before.nodes
	}
	p.links[peer.ID] = l
	return l
}

// trim forgets servers that are no more beyond as many as there may be.
func (p *Peers) trim(wanted []Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.links {
		if len(p.links) <= MaxPeers {
			return
		}
		if !slices.ContainsFunc(wanted, func(w Peer) bool { return w.ID == id }) {
			delete(p.links, id)
		}
	}
}

// Dial implements server.Config.Elsewhere.
func (p *Peers) Dial(ctx context.Context, node string, d tunnel.Dial) (tunnel.Stream, bool, error) {
	d.Meta = tunnel.Meta{nodeKey: node}
	var err, soon error // soon says that the node is expected back
	owners := p.owners(node)
	if len(owners) == 0 {
		p.hearOthers(ctx)
		owners = p.owners(node)
	}
	for _, o := range owners[:min(len(owners), maxTries)] {
		var s tunnel.Stream
		s, err = d.Connect(ctx, o.session)
		p.metrics.asked.WithLabelValues(label(err)).Inc()
		if err == nil || ctx.Err() != nil || !tunnel.CodeOf(err).Away() {
			return s, true, err
		}
		p.log.Debug("another server has no session of the node that works", "node", node, "server", o.peer.ID, "err", err)
		if tunnel.CodeOf(err) == tunnel.Draining {
			soon = err
		}
	}
	if soon == nil && !errors.Is(err, tunnel.Parked) && p.expected(node) {
		soon = server.HasLeft(node, d)
	}
	if soon != nil {
		return nil, true, soon
	}
	return nil, len(owners) > 0, err
}

// expected says whether the node's agent has lately said to another server that it leaves.
func (p *Peers) expected(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		if o, ok := l.nodes[node]; ok && p.cfg.Hub().Expected(&o) {
			return true
		}
	}
	return false
}

// An owner is a server that can be asked for a node.
type owner struct {
	peer     Peer
	session  tunnel.Session
	draining bool
	seen     server.Observation
}

// owners are the servers that have a session of node, the best first: one that is not
// about to leave, whose session has a connection, and is the newest.
func (p *Peers) owners(node string) []owner {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []owner
	for _, l := range p.links {
		if l.session == nil {
			continue
		}
		if o, ok := l.nodes[node]; ok && o.State != server.Detached {
			all = append(all, owner{l.peer, l.session, l.draining, o})
		}
	}
	slices.SortFunc(all, func(a, b owner) int {
		return cmp.Or(
			order(a.draining, b.draining),
			order(a.seen.State != server.Attached, b.seen.State != server.Attached),
			order(a.seen.Draining, b.seen.Draining),
			b.seen.Connected.Compare(a.seen.Connected),
			cmp.Compare(a.peer.ID, b.peer.ID),
		)
	})
	return all
}

// order puts false before true.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// Connected are the IDs of the servers with which there is a session now, sorted.
func (p *Peers) Connected() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for id, l := range p.links {
		if l.session != nil {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}
