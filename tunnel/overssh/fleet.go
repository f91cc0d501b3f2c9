// Fleet: all the nodes that are reached through their sshd.

package overssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	cfg   FleetConfig
	begun chan struct{} // closed by Run

	mu    sync.Mutex // guards the following
	nodes map[string]*member
	start func(*member) // gives a member its Dialer; nil unless Run runs
}

// A member is a node of a Fleet.
type member struct {
	name, addr, target string
	dialer             *Dialer // nil while the node may not be dialed
	stop               context.CancelFunc
	told               string // what was last said of why it may not
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
	c.CheckInterval = cmp.Or(c.CheckInterval, DefaultCheckInterval)
	return &Fleet{cfg: c, begun: make(chan struct{}), nodes: make(map[string]*member)}, nil
}

// Set has the fleet reach node at addr, HOST or HOST:PORT, from now on. If target
// is not empty it is dialed through the node's sshd now and then, and what comes of
// it is logged and counted. A node that is already reached at addr keeps its
// connection and its streams; one that was reached elsewhere loses them.
func (f *Fleet) Set(node, addr, target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := &member{name: node, addr: addr, target: target}
	if old := f.nodes[node]; old != nil {
		if old.addr == addr && old.target == target {
			return
		}
		now.told = old.told
		f.removeLocked(node)
	}
	f.nodes[node] = now
	_, _ = f.dialerLocked(now) // says why there is none
}

// Remove has the fleet forget node: its connection ends, and its streams with it.
func (f *Fleet) Remove(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeLocked(node)
}

func (f *Fleet) removeLocked(node string) {
	if m := f.nodes[node]; m != nil && m.dialer != nil {
		m.stop()
	}
	delete(f.nodes, node)
}

// Look has the fleet ask at once which nodes are admitted.
func (f *Fleet) Look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.nodes {
		_, _ = f.dialerLocked(m) // as in Set
	}
}

// Run keeps the connections until ctx is done, and returns nil once all have ended.
// It is called once.
func (f *Fleet) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	start := func(m *member) {
		var mctx context.Context
		mctx, m.stop = context.WithCancel(ctx)
		cfg := f.cfg.Config
		cfg.Node, cfg.Addr = m.name, m.addr
		d := newDialer(cfg)
		m.dialer = d
		wg.Go(func() { _ = d.Run(mctx) }) // returns nil
		if m.target != "" && f.cfg.CheckInterval > 0 {
			wg.Go(func() { f.check(mctx, m.name, m.target, d) })
		}
	}
	f.mu.Lock()
	f.start = start
	f.mu.Unlock()
	close(f.begun)
	for ctx.Err() == nil {
		f.Look()
		pause(ctx, lookInterval)
	}
	f.mu.Lock()
	f.start = nil
	f.mu.Unlock()
	wg.Wait()
	return nil
}

// errNotRunning is that Run has not begun, or has ended.
var errNotRunning = fmt.Errorf("%w: %w", tunnel.NoNode, tunnel.ErrSessionClosed)

// dialerLocked is m's Dialer, which is started if there is none. A node that is not
// admitted has none, nor has one without a pinned key; why is said once.
func (f *Fleet) dialerLocked(m *member) (*Dialer, error) {
	err := f.cfg.Admit(m.name)
	if err != nil && m.dialer != nil {
		m.stop()
		m.dialer = nil
	}
	switch {
	case m.dialer != nil:
		return m.dialer, nil
	case err == nil:
		if _, err = f.cfg.HostKeys.Algorithms(m.name, m.addr); err != nil {
			err = fmt.Errorf("%w: %w", tunnel.Denied, err)
		}
	}
	switch {
	case err == nil && f.start == nil:
		return nil, errNotRunning
	case err == nil:
		f.start(m)
		m.told = ""
		return m.dialer, nil
	}
	if text := err.Error(); m.told != text {
		m.told = text
		f.cfg.Log.Error("no ssh connection", "node", m.name, "addr", m.addr, "err", err)
	}
	return nil, err
}

// check dials a node's target now and then until ctx is done, and says when that
// begins to fail and when it works again. The first check waits for the first
// connection. That there is no connection is said by the Dialer.
func (f *Fleet) check(ctx context.Context, node, target string, d *Dialer) {
	failing := ""
	for ctx.Err() == nil {
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
		code := label(err)
		f.cfg.Metrics.checks.WithLabelValues(code).Inc()
		switch {
		case err == nil && failing != "":
			failing = ""
			f.cfg.Log.Info("node can be dialed through ssh again", "node", node, "target", target)
		case err != nil && connected && failing != code:
			failing = code
			f.cfg.Log.Warn("node cannot be dialed through ssh", "node", node, "target", target, "err", err)
		}
		every := f.cfg.CheckInterval
		pause(ctx, every/2+rand.N(every)) // not all nodes at once
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
		return nil, tunnel.NewDialError(addr, err)
	}
	return d.DialContext(ctx, network, addr)
}

// dialer is that of node. Before Run it waits for Run, if the node may be dialed.
func (f *Fleet) dialer(ctx context.Context, node string) (*Dialer, error) {
	for waited := false; ; waited = true {
		err := fmt.Errorf("%w: node %s is not reached by ssh", tunnel.NoNode, node)
		var d *Dialer
		f.mu.Lock()
		if m := f.nodes[node]; m != nil {
			d, err = f.dialerLocked(m)
		}
		f.mu.Unlock()
		if waited || !errors.Is(err, errNotRunning) {
			return d, err
		}
		select {
		case <-f.begun:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
