// Package sshnodes keeps connections to nodes without a tunnel, through the sshd that runs
// on each of them. The mode is deprecated: see package overssh, which carries the streams.
//
// The mental model: a Fleet is told which nodes there are. It keeps one overssh.Session
// to each that may be dialed, makes it again when it is lost, and dials through it. A node
// may be dialed if a host key of it is known, and Config.Admit does not refuse it. None is
// trusted because its key was the first one seen.
package sshnodes

import (
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
	// Admit may refuse a node by error; nil refuses none. It is asked before a node is
	// dialed, for each stream, and every few seconds besides: a refused node's
	// connection ends, and its streams with it, and it is not dialed before it is
	// admitted again. It must not block, nor call the Fleet.
	Admit   func(node string) error
	Metrics prometheus.Registerer // nil means none
	// Log is told of connections made, lost and refused; nil means discard.
	Log *slog.Logger
}

// A Fleet keeps a connection to each node that it is told of and that may be dialed. Its
// methods may be called at the same time.
type Fleet struct {
	cfg     Config
	metrics *metrics

	mu    sync.Mutex       // guards the following
	nodes map[string]*node // by name; nil once Run has ended
	start func(*node)      // nil unless Run runs
}

// New checks c, reads the key once to see that it can be, and starts nothing.
func New(c Config) (*Fleet, error) {
	if err := c.SSH.Check(); err != nil {
		return nil, err
	}
	if c.Admit == nil {
		c.Admit = func(string) error { return nil }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("ssh: register metrics: %w", err)
	}
	c.SSH.RTT = func(d time.Duration) { m.rtt.Observe(d.Seconds()) }
	return &Fleet{cfg: c, metrics: m, nodes: make(map[string]*node)}, nil
}

// Set has the fleet reach the node of a name at addr, HOST:PORT, from now on. If target
// is not empty it is dialed through the node's sshd once a minute, and what comes of
// it is logged and counted. A node that is already reached at addr keeps its
// connection and its streams; one that was reached elsewhere loses them.
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

// Remove has the fleet forget a node: its connection ends, and its streams with it.
func (f *Fleet) Remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[name]; n != nil {
		n.stop()
	}
	delete(f.nodes, name)
}

// Look has the fleet ask at once which nodes are admitted.
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

// DialContext has the sshd of the node of a name connect to addr. A host that is the
// node's name means the node's loopback, where a kubelet in this mode listens; HOST%NODE
// is HOST. ctx bounds the dial, not the stream's life; without a deadline it takes at
// most tunnel.DefaultDialTimeout. While the node is being connected to it waits, as it
// does before Run; when that has failed it says so at once. Errors unwrap to
// *tunnel.DialError. The connection is a tunnel.Stream, which the caller owns.
func (f *Fleet) DialContext(ctx context.Context, name, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
	defer cancel()
	began := time.Now()
	st, err := f.dial(ctx, name, network, addr)
	f.metrics.dialed(err, time.Since(began))
	if err != nil {
		return nil, err
	}
	f.metrics.streams.Inc()
	return &tunnel.Tap{Conn: st, Ended: func(bool) { f.metrics.streams.Dec() }}, nil
}

func (f *Fleet) dial(ctx context.Context, name, network, addr string) (tunnel.Stream, error) {
	s, err := f.session(ctx, name)
	if err != nil {
		return nil, tunnel.NewDialError(addr, err)
	}
	return s.Dial(ctx, network, addr)
}

// Ready waits until there is a connection to the node of a name, or says why there is
// none.
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
