// Group: sessions with several servers at a time, so that a node stays connected when one
// of them is lost.

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// suspectFor is how long dials avoid a server whose API did not answer.
	suspectFor = 5 * time.Minute
	// suspectEvery is the shortest time between two servers that are suspected: requests
	// through the first one fail together when its connections are closed.
	suspectEvery = 5 * time.Second
	// otherAfter is how long a dial may take before it is made through another server that
	// is connected: less than the ten seconds after which kubelets and client-go give up a TLS
	// handshake.
	otherAfter = 4 * time.Second
)

// shared is the state that the agents of one node in one process share. To each server they
// are one agent, whose newest session counts.
type shared struct {
	instance   uint64        // differs between this process and a clone of the machine
	sequence   atomic.Uint64 // of the latest greeting
	hadSession atomic.Bool   // one of the agents had one
	fences     atomic.Int32  // how many of the agents are fenced

	unauthorized unauthorized

	mu sync.Mutex // guards the following
	// answers are, by server, what it last said of the node's certificate. refused is since when the
	// node has had no session and servers refuse the certificate.
	answers map[string]answer
	refused time.Time
	taken   map[string]*Agent  // by server: the agent that has, or tries, a session with it
	changed chan struct{}      // closed, and replaced, when an agent's state changes
	live    map[*link]struct{} // the sessions that have not ended, with servers that say who they are
	latest  map[string]uint64  // by serverKey: the sequence number of the latest session
}

func newShared() *shared {
	return &shared{
		instance: rand.Uint64(), //nolint:gosec // must differ, not be secret
		answers:  make(map[string]answer),
		taken:    make(map[string]*Agent), changed: make(chan struct{}),
		live: make(map[*link]struct{}), latest: make(map[string]uint64),
	}
}

// fence records that one more agent is fenced, or one less.
func (s *shared) fence(up bool) {
	if up {
		s.fences.Add(1)
	} else {
		s.fences.Add(-1)
	}
}

// isFenced reports whether the node is: one of the agents is.
func (s *shared) isFenced() bool { return s.fences.Load() > 0 }

// take reserves the server for a, unless another agent has it.
func (s *shared) take(a *Agent, server string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by := s.taken[server]; by != nil && by != a {
		return false
	}
	s.taken[server] = a
	return true
}

// keep releases a's reservations, except for one server.
func (s *shared) keep(a *Agent, server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, by := range s.taken {
		if by == a && name != server {
			delete(s.taken, name)
		}
	}
}

func (s *shared) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// next is closed at the next change.
func (s *shared) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// A Group is several agents of one node, each connected to another server. All methods may
// be called at the same time.
type Group struct {
	agents []*Agent
	shared *shared
	moved  func(stuck bool)

	mu        sync.Mutex // guards the following
	preferred *Agent     // which DialContext uses while it is connected
	fenced    bool       // as Config.Fenced was told last
	// suspects has, by server, until when dials avoid it. suspected is when the latest was
	// added.
	suspects  map[string]time.Time
	suspected time.Time
}

// NewGroup makes n agents of c, or one for each server if there are fewer. They begin with the
// first n servers. Which of these DialContext prefers is random, so that nodes with equal lists
// do not all use the first server. The node is fenced while one of the agents is. NewGroup
// starts nothing.
func NewGroup(c Config, n int) (*Group, error) {
	servers, err := checkServers(c.Servers)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	n = max(1, min(n, len(servers)))
	g := &Group{shared: newShared(), moved: c.Moved, suspects: make(map[string]time.Time)}
	fenced, registerer := c.Fenced, c.Metrics
	if g.moved == nil {
		g.moved = func(bool) {}
	}
	c.Metrics, c.Servers = nil, servers
	for i, first := range rand.Perm(n) {
		c.Fenced = func(bool) { g.fence(fenced) }
		c.Moved = func(stuck bool) {
			if g.use(nil) == g.agents[i] {
				g.moved(stuck)
			}
		}
		a, err := New(c)
		if err != nil {
			return nil, err
		}
		a.shared, a.first = g.shared, first
		g.shared.taken[servers[first]] = a // each always has one
		g.agents = append(g.agents, a)
	}
	g.preferred = g.agents[0]
	m := newMetrics(registerer, g.State)
	for _, a := range g.agents {
		a.metrics = m
	}
	return g, nil
}

// fence calls Config.Fenced, which is notify, if an agent has changed whether the node is fenced.
func (g *Group) fence(notify func(bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.shared.isFenced(); now != g.fenced {
		if g.fenced = now; notify != nil {
			notify(now)
		}
	}
}

// Run runs the agents until ctx is done, and returns once all have ended.
func (g *Group) Run(ctx context.Context) error {
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(g.agents))
	)
	for i, a := range g.agents {
		wg.Go(func() { errs[i] = a.Run(ctx) })
	}
	g.watch(ctx)
	wg.Wait()
	return errors.Join(errs...)
}

// watch prefers another agent when the preferred one is no longer connected.
func (g *Group) watch(ctx context.Context) {
	for {
		changed := g.shared.next()
		g.mu.Lock()
		before := g.preferred
		s := before.State()
		if !s.Since.IsZero() { // it has had a session
			g.preferred = g.useLocked(nil)
		}
		now := g.preferred
		g.mu.Unlock()
		if before != now {
			// A session whose server is about to stop has not failed: its streams continue.
			g.moved(s.Err != nil || !s.Parked.IsZero())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Suspect has dials avoid the server in use for five minutes, for when requests through it
// fail although its session works. If others are connected dials use one of them from now on;
// of servers that are all suspected, the one that was suspected first. The caller closes its
// connections after that. Calls within five seconds of another count as one.
func (g *Group) Suspect() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if !g.suspected.IsZero() && now.Sub(g.suspected) < suspectEvery {
		return
	}
	before := g.useLocked(nil)
	server := before.State().Server
	g.suspected, g.suspects[server] = now, now.Add(suspectFor)
	g.preferred = g.useLocked(nil)
	if g.preferred != before {
		before.log.Warn("requests to the API fail through this server, using another", slog.String("server", server), slog.String("other", g.preferred.State().Server))
	}
}

// use returns the agent for a dial that was tried through some already: the preferred one
// unless only others are connected, not tried yet, or not suspected.
func (g *Group) use(tried map[*Agent]bool) *Agent {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.useLocked(tried)
}

func (g *Group) useLocked(tried map[*Agent]bool) *Agent {
	now := time.Now()
	penalty := func(a *Agent) time.Duration {
		s := a.State()
		p := max(0, g.suspects[s.Server].Sub(now))
		if a != g.preferred {
			p++
		}
		if tried[a] {
			p += 2 * suspectFor
		}
		if !s.Connected {
			p += 4 * suspectFor
		}
		return p
	}
	return slices.MinFunc(g.agents, func(a, b *Agent) int { return cmp.Compare(penalty(a), penalty(b)) })
}

// State is that of the agent that DialContext uses; Fenced is the node's.
func (g *Group) State() State {
	g.mu.Lock()
	a := g.useLocked(nil)
	g.mu.Unlock()
	s := a.State()
	s.Fenced = g.shared.isFenced()
	return s
}

// Untrusted reports whether any of the servers that are tried has a certificate that cannot
// be trusted, though others may be connected.
func (g *Group) Untrusted() bool {
	return slices.ContainsFunc(g.agents, func(a *Agent) bool { return errors.Is(a.State().Err, ErrServerUntrusted) })
}

// errOther ends a dial when another agent is connected, and the one that dials is not or
// takes too long.
var errOther = errors.New("another server is connected")

// DialContext is Agent's, through any of the servers. If one does not answer within four seconds
// another one is tried.
func (g *Group) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return g.dial(ctx, tunnel.Dial{Network: network, Addr: addr})
}

// DialSpare is DialContext for clients who are not the node's: it fails with Busy if the
// session has an eighth of its streams left, or less. The node's own dials find a place then.
func (g *Group) DialSpare(ctx context.Context, network, addr string) (net.Conn, error) {
	return g.dial(ctx, tunnel.Dial{Network: network, Addr: addr, Spare: true})
}

func (g *Group) dial(ctx context.Context, d tunnel.Dial) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
	defer cancel()
	for tried := map[*Agent]bool{}; ; {
		a := g.use(tried)
		tried[a] = true
		one, stop := context.WithCancelCause(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { g.await(one, a, tried, stop) })
		c, err := a.dial(one, d)
		other := errors.Is(context.Cause(one), errOther)
		stop(nil)
		wg.Wait()
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		if code := tunnel.CodeOf(err); !other && (tried[g.use(tried)] || !code.Away() && code != tunnel.Timeout) {
			return nil, err
		}
	}
}

// await cancels a dial of a when another agent is connected and a is not. After otherAfter it
// does so if another one that was not tried is connected.
func (g *Group) await(ctx context.Context, a *Agent, tried map[*Agent]bool, cancel context.CancelCauseFunc) {
	slow := time.After(otherAfter)
	for late := false; ; {
		changed := g.shared.next()
		other := g.use(tried)
		if other != a && other.State().Connected && (!a.State().Connected || late && !tried[other]) {
			cancel(errOther)
			return
		}
		select {
		case <-changed:
		case <-slow:
			late = true
		case <-ctx.Done():
			return
		}
	}
}
