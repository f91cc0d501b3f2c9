// Package peers joins the servers of one cluster, so that any of them reaches any
// node: one that has no session of a node asks one that has.
//
// Each server keeps a session with each other server, on the port that agents use. On it
// each server announces its sessions with nodes, when they begin, park and end. The server
// to dial through is therefore known before a dial. A dial is one stream with the usual
// dial frame, whose metadata name the node; flow control and errors are those of any other
// stream. The other server dials through its own sessions only. There is one more hop, and
// never a loop.
//
// Streams outlive the loss of the session's connections, and the other server's silence, as
// those of an agent's session do: the session is kept until it is heard again or has ended. No
// dials go there meanwhile.
//
// A server is identified by its client certificate (auth.ServerID) and by its serving
// certificate, which no node can get. The hub treats a peer with a node's certificate as an
// agent.
//
// Set configures the servers; the package knows no Kubernetes.
//
// The bounds: 64 servers; MaxStreams streams from one to another at a time, of which spare dials
// leave an eighth; a server that is silent for four seconds gets no dials. A dial into a node without a known session
// waits until the other servers have announced their sessions for the first time, and no
// longer than ten seconds after the first such dial.
package peers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// MaxPeers bounds the other servers.
	MaxPeers = 64
	// MaxStreams bounds the streams from one server to another. Config.Dial must set it. At
	// worst each holds 64 KiB of unread data: 256 MiB for each other server.
	MaxStreams = 4 * tunnel.DefaultMaxStreams
	// maxServed bounds the sessions that other servers have made. A server that was killed
	// leaves its own parked.
	maxServed = 4 * MaxPeers
	// maxTries bounds the servers that one dial tries.
	maxTries = 3
	// maxNodes bounds the nodes that are kept of one server.
	maxNodes = 100_000
	// maxFrozen bounds the freezes of one server that another one knows. With the longest
	// names they are less than maxLine.
	maxFrozen = 10_000
	// dialTimeout bounds the making of a session with another server.
	dialTimeout = 3 * time.Second
	// beat is the heartbeat interval on the stream of sessions, silence the time without
	// one after which a server counts as gone, and stalled how long it may take to read.
	beat, silence, stalled = time.Second, 4 * time.Second, 10 * time.Second
	// beatsPerSample is how many heartbeats go by from one sample of all sessions to the next.
	beatsPerSample = 10
	// quietAfter is how long a node must have said nothing to another server, as of a sample,
	// to count as heard no later. It is longer than a heartbeat's period, the default
	// keepalive and the time between two samples, so that no node that goes on is taken to be
	// silent until the next sample.
	quietAfter = 2 * beatsPerSample * beat
	// startup is how long dials wait for the first announcement of other servers, from the
	// first dial that waits.
	startup = 10 * time.Second
	// lowest and highest bound the wait between two attempts at a server.
	lowest, highest = 250 * time.Millisecond, 2 * time.Second
)

// The metadata of another server's dial: the node, and that other dials matter more.
const (
	nodeKey  = "node"
	spareKey = "spare"
)

// The address of the stream on which a server announces its sessions.
const (
	sessionsNetwork = "hawser"
	sessionsAddr    = "sessions"
)

// A Peer is another server.
type Peer struct {
	ID   string
	Addr string // HOST:PORT of its tunnel
}

// Config configures Peers. ID, Dial and Hub are required.
type Config struct {
	// ID is this server's.
	ID string
	// Dial makes a session with another server. It must present this server's certificate
	// and accept only certificates of servers; see auth. The session may be resumed if
	// resumes is set, and else must end with its connection: the other server refuses to
	// resume it.
	Dial func(ctx context.Context, p Peer, resumes bool) (tunnel.Session, error)
	// Hub returns this server's hub. It is called when first needed.
	Hub func() *server.Hub
	// DrainTimeout is how long streams of other servers may go on once this one is
	// shutting down; zero means 5 s.
	DrainTimeout time.Duration
	// Evictions returns what this server says of evictions; nil means that it says nothing.
	Evictions func() Evictions

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// Peers are the other servers. Its methods are safe for concurrent use.
type Peers struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	set     chan struct{} // holds one if wanted has changed
	served  chan struct{} // holds one for each session that another server has made

	leaving   chan struct{} // closed by Leave
	leaveOnce sync.Once

	heard chan struct{} // closed once unheard is empty

	followers server.Followers // of the other servers' nodes

	refused strangers.LogLimiter // log lines about refused sessions

	mu      sync.Mutex          // guards the following
	waits   time.Time           // when a dial first waited for heard; zero if none has
	unheard map[string]struct{} // of the first Set, those at which no attempt has ended
	wanted  []Peer
	links   map[string]*link // by ID
	news    chan struct{}    // closed, and replaced, at the next change
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
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	p := &Peers{
		cfg: c, log: c.Log, set: make(chan struct{}, 1), leaving: make(chan struct{}),
		heard: make(chan struct{}), served: make(chan struct{}, maxServed),
		links: make(map[string]*link), news: make(chan struct{}),
	}
	p.metrics = newMetrics(c.Metrics, p)
	return p, nil
}

// Leave tells the other servers that this one is about to stop. They then use it last, and
// only for nodes that no other server has. It may be called again.
func (p *Peers) Leave() { p.leaveOnce.Do(func() { close(p.leaving) }) }

// Elsewhere reports whether another server, which is not about to leave, has a session of
// node with a connection.
func (p *Peers) Elsewhere(node string) bool {
	all := p.owners(node)
	return len(all) > 0 && !all[0].draining && all[0].seen.State == server.Attached && !all[0].seen.Draining
}

// Set configures the other servers; it ignores this one. The sessions of removed servers
// are kept for Observe.
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

// attempted records that a server has announced its sessions, or could not be reached.
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

// hearOthers waits until each other server has announced its sessions or could not be
// reached. Before that a node may be connected to a server that was not heard.
func (p *Peers) hearOthers(ctx context.Context) {
	p.mu.Lock()
	if p.waits.IsZero() {
		p.waits = time.Now()
	}
	until := p.waits.Add(startup)
	p.mu.Unlock()
	select {
	case <-p.heard:
	case <-time.After(time.Until(until)):
	case <-ctx.Done():
	}
}

// Run keeps a session with each server of Set until ctx is done. A session with a removed
// server continues until it ends, because the source of Set may be unreachable. Run must
// outlive the hub, whose callers may use streams through other servers while it drains.
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
			if slices.ContainsFunc(wanted, func(w Peer) bool { return w.ID == id && w.Addr != k.peer.Addr }) {
				k.replace()
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
			var holding, dialing context.Context
			holding, k.replace = context.WithCancel(ctx)
			dialing, k.release = context.WithCancel(holding)
			all[peer.ID] = k
			l := p.link(peer)
			group.Go(func() {
				l.keep(ctx, holding, dialing)
				k.replace()
				k.over.Store(true)
				p.poke()
			})
		}
		p.dropReplaced(wanted)
		p.trim(wanted)
	}
}

// A kept is a server with which Run keeps a session.
type kept struct {
	peer    Peer
	release func() // stops making sessions
	replace func() // is release that ends a session which is not heard: the server has moved
	over    atomic.Bool
}

// poke wakes Run.
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

// dropReplaced drops what removed servers said of nodes of which another observation is
// later: Observe would not use it, and each upgrade of a server leaves that of all its nodes.
func (p *Peers) dropReplaced(wanted []Peer) {
	removed := func(id string, l *link) bool {
		return l.session == nil && !slices.ContainsFunc(wanted, func(w Peer) bool { return w.ID == id })
	}
	own := make(map[string]server.Observation)
	p.mu.Lock()
	for id, l := range p.links {
		if removed(id, l) {
			for node := range l.nodes {
				own[node] = server.Observation{}
			}
		}
	}
	p.mu.Unlock()
	for node := range own {
		own[node], _ = p.cfg.Hub().Observe(node)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, l := range p.links {
		if removed(id, l) {
			maps.DeleteFunc(l.nodes, func(node string, o server.Observation) bool { return p.replacedLocked(l, &o, own[node]) })
		}
	}
}

// replacedLocked reports whether there is a later observation than o, of l: of this server or
// of another link.
func (p *Peers) replacedLocked(l *link, o *server.Observation, own server.Observation) bool {
	if own.Node != "" && later(&own, o) {
		return true
	}
	for _, other := range p.links {
		if there, ok := other.nodes[o.Node]; ok && other != l && later(&there, o) {
			return true
		}
	}
	return false
}

// trim drops removed servers above the bound.
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
	if d.Spare {
		d.Meta[spareKey] = "true"
	}
	var err, soon, busy error // soon says that the node is expected to reconnect
	owners := p.owners(node)
	if len(owners) == 0 {
		p.hearOthers(ctx)
		owners = p.owners(node)
	}
	for _, o := range owners[:min(len(owners), maxTries)] {
		var s tunnel.Stream
		s, err = o.dial(ctx, d)
		p.metrics.asked.WithLabelValues(tunnel.CodeOf(err).Name()).Inc()
		code := tunnel.CodeOf(err)
		if err == nil || ctx.Err() != nil || !code.Away() && code != tunnel.Busy {
			return s, true, err
		}
		p.log.Debug("another server has no session of the node that works", "node", node, "server", o.peer.ID, "err", err)
		switch code {
		case tunnel.Draining:
			soon = err
		case tunnel.Busy:
			busy = err
		}
	}
	if busy != nil {
		return nil, true, busy
	}
	if soon == nil && !errors.Is(err, tunnel.Parked) && p.expected(node) {
		soon = server.HasLeft(node, d)
	}
	if soon != nil {
		return nil, true, soon
	}
	return nil, len(owners) > 0, err
}

// expected reports whether the node's agent announced recently to another server that it
// leaves.
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

// An owner is a server that can dial a node.
type owner struct {
	peer     Peer
	session  tunnel.Session
	usable   context.Context // done, with the reason, once the server is not heard any more
	draining bool
	seen     server.Observation
}

// dial dials through the server for as long as that is heard.
func (o *owner) dial(ctx context.Context, d tunnel.Dial) (tunnel.Stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(o.usable, func() { cancel(context.Cause(o.usable)) })()
	s, err := d.Connect(ctx, o.session)
	if err != nil {
		return nil, err
	}
	return &tunnel.Tap{Conn: s, Failed: naming(o.peer.ID)}, nil
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
			all = append(all, owner{l.peer, l.session, l.usable, l.draining, o})
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
