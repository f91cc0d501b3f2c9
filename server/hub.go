// Hub: the public face.

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// APIServer is the address at which an agent finds the API server through its
// session.
const APIServer = "apiserver:443"

const (
	defaultDrainTimeout = 5 * time.Second
	// helloTimeout is how long a session may take from its handshake to its
	// hello.
	helloTimeout = 10 * time.Second
)

// Config configures a Hub. Listeners is required; zero fields mean a good
// default.
type Config struct {
	// Listeners make sessions. The hub serves and closes them.
	Listeners []tunnel.Listener
	// Identify names the node at the other end; nil reads it from the
	// certificate that TLS verified.
	Identify func(tunnel.Peer) (string, error)
	// Admit may refuse an identified node by error, which the agent is told;
	// nil refuses none.
	Admit func(ctx context.Context, node string, p tunnel.Peer) error
	// API takes the streams that agents open to apiserver:443 and owns them
	// unless it fails. Nil denies them.
	API func(ctx context.Context, c net.Conn) error
	// PingInterval and PingTimeout watch over silent sessions, at both ends;
	// zero means 10 s and 30 s.
	PingInterval, PingTimeout time.Duration
	// DrainTimeout is how long Run waits, once asked to stop, for streams into
	// nodes to end; zero means 5 s, negative not at all.
	DrainTimeout time.Duration
	// Version is told to agents.
	Version string

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Hub joins callers to nodes. All methods may be called at the same time.
type Hub struct {
	config   Config
	log      *slog.Logger
	metrics  *metrics
	registry registry
	routes   routes
	lastID   atomic.Uint64
	draining atomic.Bool
}

// New checks c and makes a Hub. It starts nothing.
func New(c Config) (*Hub, error) {
	if len(c.Listeners) == 0 {
		return nil, errors.New("hub: no listeners")
	}
	if c.Identify == nil {
		c.Identify = identify
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.DrainTimeout == 0:
		c.DrainTimeout = defaultDrainTimeout
	case c.DrainTimeout < 0:
		c.DrainTimeout = 0
	}
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("hub: register metrics: %w", err)
	}
	return &Hub{config: c, log: c.Log, metrics: m}, nil
}

// identify goes by the certificate.
func identify(p tunnel.Peer) (string, error) {
	if p.TLS == nil || len(p.TLS.PeerCertificates) == 0 {
		return auth.NodeName(nil)
	}
	return auth.NodeName(p.TLS.PeerCertificates[0])
}

// Run serves until ctx is done, then drains: agents are told, streams into
// nodes get DrainTimeout to end, and nil is returned once all are gone. If a
// listener fails, Run drains the same way and returns that error.
func (h *Hub) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { h.draining.Store(true) })
	defer stop()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex // guards first
		first error
	)
	for _, l := range h.config.Listeners {
		wg.Go(func() {
			if err := l.Serve(ctx, h.session); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if first == nil {
					first = fmt.Errorf("listen for agents on %s: %w", l.Addr(), err)
				}
				cancel(first)
			}
		})
	}
	wg.Wait()
	return first
}

// DialContext connects to addr through the node that has it. It has the shape
// of net.Dialer's method. Errors are *tunnel.DialError. The connection is a
// tunnel.Stream; the caller owns it.
func (h *Hub) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	start := time.Now()
	c, err := h.dial(ctx, network, addr)
	h.metrics.dialed(err, time.Since(start))
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (h *Hub) dial(ctx context.Context, network, addr string) (*conn, error) {
	node, target, err := h.routes.resolve(network, addr)
	if err != nil {
		return nil, err
	}
	if h.draining.Load() {
		return nil, &tunnel.DialError{Addr: addr, Code: tunnel.Draining, Text: "server is shutting down"}
	}
	var tried *member
	for {
		m := h.registry.find(node)
		switch {
		case m == nil && err != nil:
			return nil, err // lost under the dial, and nothing has come since
		case m == nil:
			return nil, &tunnel.DialError{Addr: addr, Code: tunnel.NoNode, Text: "node " + node + " is not connected"}
		case m == tried:
			return nil, err
		case m.leaving():
			return nil, &tunnel.DialError{Addr: addr, Code: tunnel.Draining, Text: "node " + node + " is leaving"}
		}
		var c *conn
		if c, err = h.connect(ctx, m, addr, target); err == nil {
			return c, nil
		}
		// A session that was replaced under the dial carried no byte of the
		// caller's: the new one may be tried, once.
		if tried != nil || ctx.Err() != nil || !errors.Is(err, tunnel.Lost) {
			return nil, err
		}
		tried = m
	}
}

func (h *Hub) connect(ctx context.Context, m *member, addr, target string) (*conn, error) {
	s, err := tunnel.Connect(ctx, m.session, "tcp", target)
	if err == nil {
		return h.track(&m.dialed, "server", s, tunnel.Addr(addr)), nil
	}
	var de *tunnel.DialError
	if errors.As(err, &de) {
		de.Addr = addr // as the caller knows it
	}
	return nil, err
}

// SetRoutes replaces the addresses that lead to node; none removes it. A single
// address is a prefix of its full length. The longest prefix wins; an address
// that several nodes claim equally leads nowhere.
func (h *Hub) SetRoutes(node string, prefixes ...netip.Prefix) { h.routes.set(node, prefixes) }

// A Session describes a connected node.
type Session struct {
	ID       uint64
	Node     string
	Addr     net.Addr // where the agent's packets come from
	Since    time.Time
	RTT      time.Duration // of the latest ping; zero before the first
	Streams  int           // open ones, both ways
	Version  string        // of the agent
	Draining bool          // the agent is about to leave
}

// Sessions describes the connected nodes, by name.
func (h *Hub) Sessions() []Session {
	var all []Session
	for _, m := range h.registry.all() {
		all = append(all, m.describe())
	}
	slices.SortFunc(all, func(a, b Session) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// Session describes one node, if it is connected.
func (h *Hub) Session(node string) (Session, bool) {
	m := h.registry.find(node)
	if m == nil {
		return Session{}, false
	}
	return m.describe(), true
}

func (m *member) describe() Session {
	return Session{
		ID: m.id, Node: m.node, Addr: m.addr, Since: m.since, RTT: m.control.RTT(),
		Streams: m.dialed.count() + m.opened.count(), Version: m.hello.Meta["version"], Draining: m.leaving(),
	}
}

// Changed is closed when a node next connects, disconnects or replaces its
// session. Take it before looking at Sessions and no change is missed.
func (h *Hub) Changed() <-chan struct{} { return h.registry.next() }

// Wait blocks until at least n nodes are connected.
func (h *Hub) Wait(ctx context.Context, n int) error {
	for {
		changed := h.Changed()
		have := len(h.registry.all())
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d nodes, %d are connected: %w", n, have, context.Cause(ctx))
		}
	}
}
