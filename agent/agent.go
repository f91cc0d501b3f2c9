// Agent: what it is told, what it says of itself, and dialing through it.

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

const (
	// KubeletPort is the port at which a node's kubelet API is found on the
	// tunnel.
	KubeletPort = 10250

	// DefaultMinBackoff is the first back-off's upper end, DefaultMaxBackoff the
	// highest.
	DefaultMinBackoff = 500 * time.Millisecond
	DefaultMaxBackoff = 30 * time.Second
	// DefaultDrainTimeout is how long an agent that was asked to stop lets open
	// streams finish.
	DefaultDrainTimeout = 5 * time.Second
	// DefaultMoveTimeout is how long a session that the agent has moved away
	// from lets its streams finish.
	DefaultMoveTimeout = time.Hour
)

// A Kubelet takes connections to the node's kubelet API. On success it owns the
// connection; on error the caller still does. Whoever opened the connection is
// answered when it is first used, or closed. *memnet.Handoff (tunnel/memnet) is one.
type Kubelet interface {
	Inject(ctx context.Context, c net.Conn) error
}

// A Config says how to reach the servers and what they may reach. Servers,
// NodeName and Transport are required; zero fields mean a good default.
type Config struct {
	// Servers are HOST:PORT addresses, tried in turn from the first.
	// Duplicates are ignored. A name stands for all its addresses.
	Servers []string
	// NodeName is this node's name, as in its certificate.
	NodeName string
	// Transport makes the sessions; only its Dial is used.
	Transport tunnel.Transport
	// Link is about the connections below the sessions.
	Link tunnel.LinkOptions
	// TLS is asked anew for each link, so that a rotated certificate or
	// authority is picked up; see auth.ClientTLS. Nil only suits a transport
	// in memory.
	TLS func(ctx context.Context) (*tls.Config, error)
	// Dial makes the connection below TLS, or to the proxy. Nil means to try all
	// addresses of a name, each with a head start of 250 ms over the next.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Proxy says through which HTTP proxy a server is reached, if any; see
	// CheckProxy. Nil means none. A transport over UDP does not reach
	// servers behind one.
	Proxy func(server string) (*url.URL, error)

	// Kubelet takes the streams for NodeName:10250, in process. Nil means that
	// KubeletAddr does.
	Kubelet Kubelet
	// KubeletAddr is where a kubelet listens that is another process of this machine.
	// Streams for NodeName:10250, and for its own port in place of 10250, are joined to
	// it as they are. One that does not accept within 900 ms is a dial that has timed
	// out. Not valid means that there is none either, and such streams are denied.
	KubeletAddr netip.AddrPort
	// Addresses are the node's own; their port 10250 is the kubelet too. Nil
	// means that the kubelet is only found by the node's name.
	Addresses func() []netip.Addr
	// Declared says whether a running pod of this node has the address and declares
	// the port; nil means that none does. It is called for each stream and must not
	// block.
	Declared func(netip.AddrPort) bool
	// Allow is what the servers may reach beside that.
	Allow Targets
	// Target dials what the policy admits; nil means a net.Dialer that refuses
	// names that resolve to what the machine keeps to itself: loopback, link-local
	// addresses, metadata services, and undeclared ports of Addresses.
	Target func(ctx context.Context, network, addr string) (net.Conn, error)

	// MinBackoff and MaxBackoff bound the wait between attempts; zero means
	// the defaults.
	MinBackoff, MaxBackoff time.Duration
	// DrainTimeout is how long Run, once its context is done, lets streams
	// that a server opened finish; zero means DefaultDrainTimeout.
	DrainTimeout time.Duration
	// MoveTimeout is how long a session from which the agent has moved to
	// another lets its streams finish; zero means DefaultMoveTimeout.
	MoveTimeout time.Duration
	// Moved, if not nil, is called when DialContext uses another session than
	// before and connections may be left on the older one: stuck says that they
	// are of no use for the time being. Who keeps connections open for long
	// should make new ones. It must not block.
	Moved func(stuck bool)
	// Fenced, if not nil, is called with true when a server prefers another agent
	// with this node's identity, and with false when a session begins after that.
	// In between this agent must not act for the node: the other one does. Servers
	// prefer the agent that has started last, and turn away the one before for as
	// long as that is connected, or may run its pods although it is not; Fenced says
	// nothing of servers that are out of reach. A node that a server does not admit
	// any more is fenced, too. It must not block.
	Fenced func(fenced bool)
	// Revoked, if not nil, is called when a server says, before this agent has had a
	// session, that its key does not hold the node's name any more: the Node has been
	// deleted, it has been revoked, or another machine has taken the name over. The
	// agent was started again since, so somebody wants the node, and another key may
	// be had with a join token. It must not block.
	Revoked func()
	// MaxStreams bounds how many streams each end of a session may have open;
	// zero means tunnel.DefaultMaxStreams.
	MaxStreams int

	// Version is told to the server; it is for people.
	Version string
	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A State is how an agent fares.
type State struct {
	// Connected says whether there is a session that DialContext can use at
	// once.
	Connected bool
	// Parked is since when the session has been waiting for a connection; zero
	// if it has one, or if there is no session.
	Parked time.Time
	// Server is the one connected to, or else the one tried last.
	Server string
	// Transport is the one that the session uses.
	Transport string
	// Session is the number by which the server's log calls the session.
	Session uint64
	// Since is when a session last began or ended; zero if none has.
	Since time.Time
	// Fenced says that a server prefers another agent with this node's identity, or
	// does not admit this node any more.
	Fenced bool
	// Failures counts the attempts that have failed since the last session
	// began.
	Failures int
	// RTT is the latest round trip to the server; zero if not known.
	RTT time.Duration
	// Err is why the latest attempt failed or the latest session ended; nil
	// while connected. It is a *Refusal if trying again will not help.
	Err error
}

// An Agent keeps a node linked to a server. All methods may be called at the
// same time.
type Agent struct {
	cfg     Config
	policy  policy
	target  func(ctx context.Context, network, addr string) (net.Conn, error)
	dialer  *dialer
	terrain terrain
	log     *slog.Logger
	metrics *metrics
	shared  *shared
	first   int // index of the server to begin with
	running atomic.Bool

	mu      sync.Mutex    // guards the following
	changed chan struct{} // closed, and replaced, when anything below changes
	current *link         // nil while not connected
	state   State
	stopped bool
}

// New checks c and makes an Agent. It starts nothing.
func New(c Config) (*Agent, error) {
	servers, err := checkServers(c.Servers)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	c.Servers = servers
	if err := auth.CheckNodeName(c.NodeName); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if c.Transport.Dial == nil {
		return nil, fmt.Errorf("agent: transport %q cannot dial", c.Transport.Name)
	}
	if err := c.setTimes(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{
		cfg: c,
		policy: policy{
			node: c.NodeName, kubelet: c.Kubelet != nil, outside: c.KubeletAddr,
			own: c.Addresses, pods: c.Declared, allow: c.Allow,
		},
		target:  c.Target,
		dialer:  newDialer(&c),
		terrain: systemTerrain(),
		log:     c.Log,
		shared:  newShared(),
		changed: make(chan struct{}),
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.target == nil {
		a.target = a.policy.dial
	}
	a.metrics = newMetrics(c.Metrics, a.State)
	return a, nil
}

// setTimes puts defaults in place.
func (c *Config) setTimes() error {
	if c.MinBackoff <= 0 {
		c.MinBackoff = DefaultMinBackoff
	}
	if c.MaxBackoff <= 0 {
		c.MaxBackoff = max(DefaultMaxBackoff, c.MinBackoff)
	}
	if c.MaxBackoff < c.MinBackoff {
		return fmt.Errorf("highest back-off %v is below the lowest, %v", c.MaxBackoff, c.MinBackoff)
	}
	if c.DrainTimeout <= 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.MoveTimeout <= 0 {
		c.MoveTimeout = DefaultMoveTimeout
	}
	return nil
}

func checkServers(in []string) ([]string, error) {
	if len(in) == 0 {
		return nil, errors.New("no server to connect to")
	}
	var out []string
	for _, s := range in {
		if _, _, err := splitPort(s); err != nil {
			return nil, fmt.Errorf("server %q: %w", s, err)
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out, nil
}

// State is how the agent fares now.
func (a *Agent) State() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.state
	if a.current != nil {
		s.RTT = a.current.control.RTT()
		s.Parked = a.current.parked()
		s.Connected = s.Parked.IsZero()
	}
	return s
}

// Wait waits until the agent is connected. If ctx ends first, the error says
// why it is not.
func (a *Agent) Wait(ctx context.Context) error {
	for {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		l, err := a.session(ctx)
		if err != nil {
			return err
		}
		since := l.parked()
		if since.IsZero() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w while the session with %s waits for a connection, since %s", context.Cause(ctx), l.server, since.Format(time.TimeOnly))
		}
	}
}

// DialContext has the server join a new stream to addr, such as apiserver:443.
// It waits for a session if there is none, within the bounds of ctx and
// tunnel.DefaultDialTimeout. A dial that a dying session takes along, or that
// waits on one the agent has given up, is tried again on the next one; nothing of
// the caller's has been sent by then. The
// caller owns the connection, which is a tunnel.Stream. Errors are
// *tunnel.DialError.
func (a *Agent) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
	defer cancel()
	for {
		l, err := a.session(ctx)
		if err != nil {
			code := tunnel.CodeOf(err)
			a.metrics.dial(outbound, code)
			return nil, &tunnel.DialError{Addr: addr, Code: code, Text: tunnel.Reason(addr, err)}
		}
		c, err := l.dial(ctx, network, addr)
		if err == nil {
			a.metrics.dial(outbound, 0)
			return c, nil
		}
		if ctx.Err() != nil || !l.over() && l.given.Err() == nil {
			a.metrics.dial(outbound, tunnel.CodeOf(err))
			return nil, err
		}
	}
}

// session waits for a link that can be used.
func (a *Agent) session(ctx context.Context) (*link, error) {
	for {
		a.mu.Lock()
		l, changed, state, stopped := a.current, a.changed, a.state, a.stopped
		a.mu.Unlock()
		switch {
		case stopped:
			return nil, fmt.Errorf("%w: the agent has stopped", tunnel.Draining)
		case l != nil && !l.over():
			return l, nil
		}
		select {
		case <-changed: // a link that is over is taken away soon
		case <-ctx.Done():
			why := ""
			if state.Err != nil {
				why = ": " + state.Err.Error() // said, not wrapped: the code is ctx's
			}
			return nil, fmt.Errorf("%w while not connected to a server%s", context.Cause(ctx), why)
		}
	}
}

// update changes what mu guards and tells those who wait.
func (a *Agent) update(f func(*State)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(&a.state)
	close(a.changed)
	a.changed = make(chan struct{})
	a.shared.notify()
}
