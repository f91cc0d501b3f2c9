// Fleet: all the nodes that are reached through their sshd.

package overssh

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// DefaultCheckInterval is how often a node's target is dialed to see whether it
// can be.
const DefaultCheckInterval = time.Minute

const (
	// lookInterval is how often it is looked whether a key has been pinned for a
	// node that had none, and which nodes are admitted. A dial looks at once.
	lookInterval = 5 * time.Second
	// checkTimeout bounds a check of a node.
	checkTimeout = 15 * time.Second
)

// FleetConfig configures a Fleet.
type FleetConfig struct {
	// Config is that of every node's Dialer. Node and Addr are not used.
	Config
	// CheckInterval is the mean time between two checks of a node, zero means
	// DefaultCheckInterval, negative none.
	CheckInterval time.Duration
	// Admit may refuse a node by error; nil refuses none. It is asked before a node is
	// dialed, for each stream, and every few seconds besides: a refused node's
	// connection ends, and its streams with it, and it is not dialed before it is
	// admitted again. It must not block, nor call the Fleet.
	Admit func(node string) error
}

// A Fleet keeps a connection to each node that it is told of and for which a host
// key is pinned. A node without one is not dialed at all, until there is one. Its
// methods may be called at the same time.
type Fleet struct {
	cfg  FleetConfig
	log  *slog.Logger
	look chan struct{} // asks Run to look at nodes; holds one

	mu      sync.Mutex // guards the following
	nodes   map[string]*member
	over    bool          // Run has ended
	changed chan struct{} // closed and replaced when a Dialer has been added, or Run has ended
}

// A member is a node of a Fleet. It is replaced, not changed, but for its Dialer.
type member struct {
	name, addr, target string
	dialer             *Dialer // nil while no key is pinned
	stop               context.CancelFunc
}

// NewFleet checks c, reads the key once to see that it can be, and starts nothing.
func NewFleet(c FleetConfig) (*Fleet, error) {
	c.Node, c.Addr = "any", "any" // for the checks
	if err := c.complete(); err != nil {
		return nil, err
	}
	if c.Admit == nil {
		c.Admit = func(string) error { return nil }
	}
	if c.CheckInterval == 0 {
		c.CheckInterval = DefaultCheckInterval
	}
	return &Fleet{
		cfg: c, log: c.Log, look: make(chan struct{}, 1),
		nodes: make(map[string]*member), changed: make(chan struct{}),
	}, nil
}

// Set has the fleet reach node at addr, HOST or HOST:PORT, from now on. If target
// is not empty it is dialed through the node's sshd now and then, and what comes of
// it is logged and counted. A node that is already reached at addr keeps its
// connection and its streams; one that was reached elsewhere loses them.
func (f *Fleet) Set(node, addr, target string) {
	f.replace(node, &member{name: node, addr: addr, target: target})
}

// Remove has the fleet forget node: its connection ends, and its streams with it.
func (f *Fleet) Remove(node string) { f.replace(node, nil) }

func (f *Fleet) replace(node string, now *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.nodes[node]
	switch {
	case f.over:
		return
	case old != nil && now != nil && old.addr == now.addr && old.target == now.target:
		return
	case old != nil && old.stop != nil:
		old.stop()
	}
	if now == nil {
		delete(f.nodes, node)
		return
	}
	f.nodes[node] = now
	f.wake()
}

// Look has the fleet ask at once which nodes are admitted.
func (f *Fleet) Look() { f.wake() }

// wake has Run look at the nodes.
func (f *Fleet) wake() {
	select {
	case f.look <- struct{}{}:
	default: // it is about to
	}
}

// Run keeps the connections until ctx is done, and returns nil once all have ended.
// It is called once.
func (f *Fleet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() {
		cancel()
		wg.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.over = true
		f.tellLocked()
	}()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	told := make(map[string]string) // what was last said of nodes that are not dialed
	for {
		f.launch(ctx, &wg, told)
		select {
		case <-ctx.Done():
			return nil
		case <-f.look:
		case <-tick.C:
		}
	}
}

// launch starts what nodes still lack, and says once why it does not. It ends what is
// not admitted any more.
func (f *Fleet) launch(ctx context.Context, wg *sync.WaitGroup, told map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range told {
		if m := f.nodes[name]; m == nil || m.dialer != nil {
			delete(told, name)
		}
	}
	for name, m := range f.nodes {
		err := f.cfg.Admit(name)
		if m.dialer != nil && err == nil {
			continue
		}
		if m.dialer != nil {
			m.stop()
			m = &member{name: m.name, addr: m.addr, target: m.target}
			f.nodes[name] = m
		}
		if err == nil {
			err = f.cfg.HostKeys.known(m.name, m.addr)
		}
		if err != nil {
			if text := err.Error(); told[m.name] != text {
				told[m.name] = text
				f.log.Error("no ssh connection", "node", m.name, "addr", m.addr, "err", err)
			}
			continue
		}
		f.startLocked(ctx, wg, m)
	}
}

func (f *Fleet) startLocked(ctx context.Context, wg *sync.WaitGroup, m *member) {
	ctx, m.stop = context.WithCancel(ctx)
	cfg := f.cfg.Config
	cfg.Node, cfg.Addr = m.name, m.addr
	d := newDialer(cfg)
	m.dialer = d
	wg.Go(func() { _ = d.Run(ctx) }) // returns nil
	if m.target != "" && f.cfg.CheckInterval > 0 {
		wg.Go(func() { f.check(ctx, m.name, m.target, d) })
	}
	f.tellLocked()
}

// tellLocked wakes dials that wait.
func (f *Fleet) tellLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// check dials a node's target now and then until ctx is done, and says when that
// begins to fail and when it works again. The first check waits for the first
// connection. That there is no connection is said by the Dialer.
func (f *Fleet) check(ctx context.Context, node, target string, d *Dialer) {
	failing := ""
	for {
		cctx, cancel := context.WithTimeout(ctx, checkTimeout)
		err := d.Check(cctx, "")
		connected := err == nil
		if connected {
			err = d.Check(cctx, target)
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		f.cfg.Metrics.checked(err)
		switch code := label(err); {
		case err == nil && failing != "":
			failing = ""
			f.log.Info("node can be dialed through ssh again", "node", node, "target", target)
		case err != nil && connected && failing != code:
			failing = code
			f.log.Warn("node cannot be dialed through ssh", "node", node, "target", target, "err", err)
		}
		every := f.cfg.CheckInterval
		t := time.NewTimer(every/2 + rand.N(every)) // not all nodes at once
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// DialContext has node's sshd connect to addr; see Dialer.Connect. Errors unwrap to
// *tunnel.DialError. The connection is a tunnel.Stream, which the caller owns.
func (f *Fleet) DialContext(ctx context.Context, node, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
	defer cancel()
	began := time.Now()
	d, err := f.dialer(ctx, node)
	if err != nil {
		f.cfg.Metrics.dialed(err, time.Since(began))
		return nil, dialFailed(addr, err)
	}
	return d.DialContext(ctx, network, addr)
}

// dialer is that of node, which has one as soon as a key is pinned.
func (f *Fleet) dialer(ctx context.Context, node string) (*Dialer, error) {
	for {
		f.mu.Lock()
		m, over, changed := f.nodes[node], f.over, f.changed
		var d *Dialer
		if m != nil {
			d = m.dialer
		}
		f.mu.Unlock()
		if m == nil {
			return nil, fmt.Errorf("%w: node %s is not reached by ssh", tunnel.NoNode, node)
		}
		if err := f.cfg.Admit(node); err != nil {
			return nil, err
		}
		switch {
		case d != nil:
			return d, nil
		case over:
			return nil, fmt.Errorf("%w: %w", tunnel.NoNode, tunnel.ErrSessionClosed)
		}
		if err := f.cfg.HostKeys.known(m.name, m.addr); err != nil {
			return nil, err
		}
		f.wake() // a key has been pinned just now
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
