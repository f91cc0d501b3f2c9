// Package agent is a node's end of the tunnel.
//
// The mental model: an Agent is a loop that keeps one session with one of its
// servers, and two dialers on it. Inwards, streams that the server opens lead to
// what a policy allows: by default this node's kubelet, which is handed its
// connections in process, and this node's pods. Outwards, DialContext opens
// streams to the API server, which is how the node's own client gets there. The
// agent listens on nothing.
//
// What it is not: it knows no transport (package cmd chooses one), no
// Kubernetes, and it makes no certificate; it asks for a tls.Config before each
// link and shows what it is given.
package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// KubeletPort is the port at which a node's kubelet API is found on the tunnel.
const KubeletPort = 10250

const (
	defaultMaxBackoff   = 30 * time.Second
	defaultDialTimeout  = 15 * time.Second
	defaultDrainTimeout = 5 * time.Second
)

// Config configures an Agent. Node, Servers and Transport are required; zero
// fields mean a good default.
type Config struct {
	// Node is this node's name, the one in its certificate.
	Node string
	// Servers are HOST:PORT, tried in turn.
	Servers []string
	// Transport makes the sessions; only its Dial is used.
	Transport tunnel.Transport
	// TLS is asked anew for each link, so that a rotated certificate is picked
	// up. Nil only suits a transport in memory.
	TLS func(ctx context.Context) (*tls.Config, error)

	// Kubelet takes the streams to this node's port 10250 and owns them unless
	// it fails.
	Kubelet func(ctx context.Context, c net.Conn) error
	// KubeletAddr is dialed for them if Kubelet is nil; empty refuses them.
	KubeletAddr string
	// Addresses are this node's own; their port 10250 is the kubelet too.
	Addresses func() []netip.Addr
	// Pod says whether an address is a pod's of this node; nil knows none.
	Pod func(netip.AddrPort) bool
	// Allow are further targets that may be dialed.
	Allow Rules
	// Dial connects to targets; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// MaxBackoff bounds the pause between two attempts; zero means 30 s.
	MaxBackoff time.Duration
	// DialTimeout bounds connecting to a server, handshake and greeting
	// included; zero means 15 s.
	DialTimeout time.Duration
	// DrainTimeout is how long Run waits, once asked to stop, for streams that
	// the server opened; zero means 5 s, negative not at all.
	DrainTimeout time.Duration
	// OnState, if set, is told of each change, in order, and must not block.
	OnState func(State)
	// Version is told to the server.
	Version string

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A State is how the agent stands with its servers.
type State struct {
	Connected bool
	Server    string    // connected to, or tried last
	Session   uint64    // the server's number for it
	Since     time.Time // when Connected last changed
	Err       error     // why the last session ended, or the last attempt failed
}

// An Agent keeps a session and dials targets for its server. All methods may be
// called at the same time.
type Agent struct {
	config   Config
	log      *slog.Logger
	metrics  *metrics
	instance uint64
	sequence uint64 // of the latest session; owned by Run

	mu      sync.Mutex // guards the following
	state   State
	session tunnel.Session // nil while not connected
	changed chan struct{}  // closed when session next changes
}

// New checks c and makes an Agent. It starts nothing.
func New(c Config) (*Agent, error) {
	if err := auth.CheckNodeName(c.Node); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if len(c.Servers) == 0 {
		return nil, errors.New("agent: no server to connect to")
	}
	for _, s := range c.Servers {
		if _, _, err := splitPort(s); err != nil {
			return nil, fmt.Errorf("agent: server %q: %w", s, err)
		}
	}
	if c.Transport.Dial == nil {
		return nil, errors.New("agent: no transport")
	}
	if c.TLS == nil {
		c.TLS = func(context.Context) (*tls.Config, error) { return nil, nil } //nolint:nilnil // in memory
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.MaxBackoff = cmp.Or(c.MaxBackoff, defaultMaxBackoff)
	c.DialTimeout = cmp.Or(c.DialTimeout, defaultDialTimeout)
	c.DrainTimeout = max(cmp.Or(c.DrainTimeout, defaultDrainTimeout), 0)
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("agent: register metrics: %w", err)
	}
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	return &Agent{
		config: c, log: c.Log.With("node", c.Node), metrics: m, instance: binary.BigEndian.Uint64(seed[:]),
	}, nil
}

// Run keeps a session up until ctx is done, then drains it and returns nil.
func (a *Agent) Run(ctx context.Context) error {
	pace := backoff{servers: len(a.config.Servers), most: a.config.MaxBackoff}
	var said chronicle
	for i := 0; ; i++ {
		server := a.config.Servers[i%len(a.config.Servers)]
		lived, err := a.link(ctx, server)
		if ctx.Err() != nil {
			return nil
		}
		wait := pace.next(tunnel.CodeOf(err), lived)
		a.metrics.failures.WithLabelValues(tunnel.CodeOf(err).String()).Inc()
		if n, ok := said.worth(time.Now(), server, err); ok {
			a.report(server, lived, err, wait, n)
		}
		if wait <= 0 {
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

// report says why there is no session.
func (a *Agent) report(server string, lived time.Duration, err error, wait time.Duration, silent int) {
	args := []any{"server", server, "err", explain(err), "retry", wait.Round(time.Millisecond)}
	if silent > 0 {
		args = append(args, "unreported", silent)
	}
	switch {
	case tunnel.CodeOf(err) == tunnel.Replaced:
		a.log.Error("another agent uses this node's identity", args...)
	case lived > 0:
		a.log.Warn("connection lost", append(args, "after", lived.Round(time.Millisecond))...)
	default:
		a.log.Warn("cannot connect", args...)
	}
}

// State says how the agent stands with its servers.
func (a *Agent) State() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// DialContext opens a stream to addr, such as apiserver:443, as the server sees
// it. It waits for a session as long as ctx lets it. It has the shape of
// net.Dialer's method. The connection is a tunnel.Stream; the caller owns it.
func (a *Agent) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	var tried tunnel.Session
	for {
		s, err := a.wait(ctx, addr, tried)
		if err != nil {
			return nil, err
		}
		c, err := tunnel.Connect(ctx, s, network, addr)
		if err == nil {
			return c, nil
		}
		// A session that died under the dial carried no byte of the caller's:
		// the next one may be tried, once.
		if tried != nil || ctx.Err() != nil || !errors.Is(err, tunnel.Lost) {
			return nil, err
		}
		tried = s
	}
}

// wait returns the current session, or the next, other than not.
func (a *Agent) wait(ctx context.Context, addr string, not tunnel.Session) (tunnel.Session, error) {
	for {
		a.mu.Lock()
		s, last := a.session, a.state.Err
		if a.changed == nil {
			a.changed = make(chan struct{})
		}
		changed := a.changed
		a.mu.Unlock()
		if s != nil && s != not {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			text := "not connected to a server"
			if last != nil {
				text += ": " + explain(last)
			}
			return nil, &tunnel.DialError{Addr: addr, Code: tunnel.CodeOf(context.Cause(ctx)), Text: text}
		}
	}
}

// become notes a change of state. s is nil while there is no session.
func (a *Agent) become(s tunnel.Session, st State) {
	a.mu.Lock()
	st.Since = a.state.Since
	if st.Connected != a.state.Connected || st.Since.IsZero() {
		st.Since = time.Now()
	}
	a.state, a.session = st, s
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
	a.mu.Unlock()
	if a.config.OnState != nil {
		a.config.OnState(st)
	}
}
