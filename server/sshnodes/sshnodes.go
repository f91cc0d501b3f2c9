// Package sshnodes keeps connections to nodes without a tunnel, through the sshd that runs
// on each of them. The mode is deprecated: see package overssh, which carries the streams.
//
// The mental model: callers name the nodes by Set and Remove. A Fleet keeps one
// overssh.Session to each node that may be dialed, connects again when it is lost, and
// dials through it. A node may be dialed if its host key is pinned and Config.Admit does
// not refuse it. There is no trust on first use.
package sshnodes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overssh"
)

// Config configures a Fleet. SSH is required.
type Config struct {
	SSH overssh.Config // without RTT, which is the Fleet's
	// Admit may refuse a node by an error; nil refuses none. It is called before a node is
	// dialed, for each stream, and every few seconds. The connection of a refused node is
	// closed with its streams, and the node is not dialed until it is admitted again.
	// Admit must not block or call the Fleet.
	Admit   func(node string) error
	Metrics prometheus.Registerer // nil means none
	// Log gets a line for each connection made, lost and refused; nil means discard.
	Log *slog.Logger
}

// A Fleet keeps a connection to each of its nodes that may be dialed. Its methods may be
// called at the same time.
type Fleet struct {
	cfg     Config
	metrics *metrics

	mu    sync.Mutex       // guards the following
	nodes map[string]*node // by name; nil once Run has ended
	start func(*node)      // nil unless Run runs
}

// New checks c and that the key can be read. It starts nothing.
func New(c Config) (*Fleet, error) {
	if err := c.SSH.Check(); err != nil {
		return nil, err
	}
	if c.Admit == nil {
		c.Admit = func(string) error { return nil }
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	m := newMetrics(c.Metrics)
	c.SSH.RTT = func(d time.Duration) { m.rtt.Observe(d.Seconds()) }
	return &Fleet{cfg: c, metrics: m, nodes: make(map[string]*node)}, nil
}

// Set adds a node, or changes its address to addr, HOST:PORT. If target is not empty it is
// dialed through the node's sshd once a minute, and the result is logged and counted. A
// node whose address stays keeps its connection and its streams; after a change it loses
// them.
func (f *Fleet) Set(name, addr, target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes == nil {
		return
	}
	n := newNode(f, name, addr, target)
	if old := f.nodes[name]; old != nil {
		if old.addr == addr && old.target == target {
			return
		}
		n.told = old.lastTold()
		old.stop()
	}
	f.nodes[name] = n
	if f.start != nil {
		f.start(n)
	}
}

// Remove removes a node. Its connection is closed with its streams.
func (f *Fleet) Remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[name]; n != nil {
		n.stop()
	}
	delete(f.nodes, name)
}

// Look calls Admit for all nodes at once.
func (f *Fleet) Look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		n.wake()
	}
}

// Run keeps the connections until ctx is done, and returns nil once all have ended.
// It is called once.
func (f *Fleet) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	f.mu.Lock()
	f.start = func(n *node) {
		var nctx context.Context
		nctx, n.stop = context.WithCancel(ctx)
		wg.Go(func() { n.run(nctx) })
		if n.target != "" {
			wg.Go(func() { n.check(nctx) })
		}
	}
	for _, n := range f.nodes {
		f.start(n)
	}
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	f.nodes = nil
	f.mu.Unlock()
	wg.Wait()
	return nil
}

// Dial has the node's sshd connect to d.Addr; d.Meta is not sent. A host that is the node's name means
// the node's loopback, where a kubelet in this mode listens. ctx bounds the dial, not the
// stream; without a deadline the dial takes at most tunnel.DefaultDialTimeout. It waits
// before Run and while an attempt to connect to the node is under way; after a failed
// attempt it returns the error at once. Errors unwrap to *tunnel.DialError. The connection
// is a tunnel.Stream, which the caller owns.
func (f *Fleet) Dial(ctx context.Context, name string, d tunnel.Dial) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
	defer cancel()
	began := time.Now()
	st, err := f.dial(ctx, name, d)
	f.metrics.dialed(err, time.Since(began))
	if err != nil {
		return nil, err
	}
	f.metrics.streams.Inc()
	return &tunnel.Tap{Conn: st, Ended: func(bool) { f.metrics.streams.Dec() }}, nil
}

func (f *Fleet) dial(ctx context.Context, name string, d tunnel.Dial) (tunnel.Stream, error) {
	s, err := f.session(ctx, name)
	if err == nil {
		err = d.Fits(s.Link())
	}
	if err != nil {
		return nil, tunnel.NewDialError(d.Addr, err)
	}
	return s.Dial(ctx, d.Network, d.Addr)
}

// Ready waits for a connection to the node, and returns the error of a failed attempt.
func (f *Fleet) Ready(ctx context.Context, name string) error {
	_, err := f.session(ctx, name)
	return err
}

func (f *Fleet) session(ctx context.Context, name string) (*overssh.Session, error) {
	f.mu.Lock()
	n := f.nodes[name]
	f.mu.Unlock()
	if n == nil {
		return nil, fmt.Errorf("%w: node %s is not reached by ssh", tunnel.NoNode, name)
	}
	return n.current(ctx)
}
