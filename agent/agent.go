// Agent: its configuration, its state, and dialing through it.

package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
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
	// DefaultDrainTimeout is how long a stopping agent waits for open streams.
	DefaultDrainTimeout = 5 * time.Second
	// DefaultMoveTimeout is how long a session that the agent has migrated from waits for
	// its streams.
	DefaultMoveTimeout = time.Hour
)

// A Kubelet takes connections to the node's kubelet API. On success it owns the connection;
// on error the caller still does. The dial is answered when the connection is first used,
// or closed. *memnet.Handoff (tunnel/memnet) is one.
type Kubelet interface {
	Inject(ctx context.Context, c net.Conn) error
}

// A Config configures how to reach the servers and what they may reach. Servers, NodeName
// and Transport are required; zero fields mean a good default.
type Config struct {
	// Servers are HOST:PORT addresses, tried in turn from the first. Duplicates are
	// ignored. All addresses of a name are tried.
	Servers []string
	// NodeName is this node's name, as in its certificate.
	NodeName string
	// Transport makes the sessions; only its Dial is used.
	Transport tunnel.Transport
	// Link has the options of the sessions' connections.
	Link tunnel.LinkOptions
	// TLS is called for each session; see auth.ClientTLS. Nil is for in-memory transports only.
	TLS func(ctx context.Context) (*tls.Config, error)
	// CertificateFile is what has this node's certificate, if another program renews it: errors
	// say to replace it there. Empty means that the agent requests it with a join token.
	CertificateFile string
	// Roots are the authorities of servers, asked for each connection of a session, so that it
	// goes on when they are replaced. Nil means those of TLS.
	Roots func() *x509.CertPool
	// Dial makes the connection below TLS, or to the proxy. Nil means to try all
	// addresses of a name, each with a head start of 250 ms over the next.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Proxy returns the HTTP proxy for a server, if any; see CheckProxy. Nil means none. A
	// transport over UDP cannot use a proxy.
	Proxy func(server string) (*url.URL, error)

	// Kubelet takes the streams for NodeName:10250, in process. Nil means that
	// KubeletAddr does.
	Kubelet Kubelet
	// KubeletAddr is the address of a kubelet that is another process of this machine.
	// Streams for NodeName:10250, and for its own port, are connected to it. A dial times
	// out if the kubelet does not accept within 900 ms. An invalid address means that there
	// is no such kubelet; such streams are then denied.
	KubeletAddr netip.AddrPort
	// Addresses are the node's addresses, whose port 10250 leads to the kubelet as well.
	// Nil means that only the node's name does.
	Addresses func() []netip.Addr
	// Declared reports whether a running pod of this node has the address and declares the
	// port; nil means that none does. It is called for each stream and must not block.
	Declared func(netip.AddrPort) bool
	// DialDeclared connects to a port that is a target only because Declared says so, and
	// checks whose it is. Nil means Target.
	DialDeclared func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	// Allow has further targets that servers may dial.
	Allow Targets
	// Target dials the targets that the policy allows. Nil means a net.Dialer that refuses
	// names that resolve to loopback, link-local addresses, metadata services, or
	// undeclared ports of Addresses.
	Target func(ctx context.Context, network, addr string) (net.Conn, error)

	// MinBackoff and MaxBackoff bound the wait between attempts; zero means
	// the defaults.
	MinBackoff, MaxBackoff time.Duration
	// DrainTimeout is how long Run, once its context is done, waits for streams that a
	// server opened; zero means DefaultDrainTimeout.
	DrainTimeout time.Duration
	// MoveTimeout is how long a session from which the agent has migrated waits for its
	// streams; zero means DefaultMoveTimeout.
	MoveTimeout time.Duration
	// Moved, if not nil, is called when DialContext uses a new session while connections
	// may remain on the older one. stuck says that the older session has no connection.
	// Clients with long-lived connections should open new ones. It must not block.
	Moved func(stuck bool)
	// Fenced, if not nil, is called with true when a server prefers another agent with this
	// node's identity, and with false when a session begins after that. In between this
	// agent must not act as the node: the other one does. Servers prefer the agent that was
	// started last, and refuse the earlier one while the other is connected or may still
	// run pods. The word of a server that can no longer be reached ends to count once the
	// Group has a session with another one. A node that a server no longer admits is fenced, too. It must not
	// block.
	Fenced func(fenced bool)
	// Revoked, if not nil, is called when a server says, before this agent or another of its
	// Group has had a session, that its key no longer owns the node's name: the Node was
	// deleted, the key was revoked, or another machine took the name over. The agent may then
	// join again with a join token, because an operator has started it since. began is when
	// the attempt began that was refused: the agent may have another key by now. It must not
	// block.
	Revoked func(began time.Time)
	// Rejected, if not nil, is called when the servers refuse this node's certificate itself:
	// those that answer do and the node has no session, or one does that was asked because the API
	// refuses the certificate (Group.Answered). The node then needs another certificate for its key.
	// It is not called for a certificate that has expired, nor while the node is fenced. began is as
	// with Revoked. It must not block.
	Rejected func(began time.Time)
	// MaxStreams bounds how many streams each end of a session may have open;
	// zero means tunnel.DefaultMaxStreams.
	MaxStreams int

	// Version is sent to the server, for display.
	Version string
	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A State is an agent's state.
type State struct {
	// Connected reports whether DialContext has a session with a connection.
	Connected bool
	// Parked is since when the session has no connection; zero if it has one, or if there
	// is no session.
	Parked time.Time
	// Server is the one connected to, or else the one tried last.
	Server string
	// Transport is the one that the session uses.
	Transport string
	// Session is the session's number in the server's log.
	Session uint64
	// Since is when a session last began or ended; zero if none has.
	Since time.Time
	// Fenced reports that a server prefers another agent with this node's identity, or no
	// longer admits this node.
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

// An Agent keeps a node connected to a server. All methods may be called at the same time.
type Agent struct {
	cfg     Config
	policy  policy
	target  func(ctx context.Context, network, addr string) (net.Conn, error)
	dialer  *dialer
	routing routing
	log     *slog.Logger
	metrics *metrics
	shared  *shared
	first   int // index of the server to begin with
	running atomic.Bool
	ask     atomic.Bool   // whether to ask the server about the node's certificate
	renewed chan struct{} // holds one if the node has another certificate

	mu      sync.Mutex // guards the following
	current *link      // nil while not connected
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
		routing: systemRouting(),
		log:     cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
		shared:  newShared(),
		renewed: make(chan struct{}, 1),
	}
	if a.target == nil {
		a.target = a.policy.dial
	}
	a.metrics = newMetrics(c.Metrics, a.State)
	return a, nil
}

// setTimes sets the default durations.
func (c *Config) setTimes() error {
	c.MinBackoff = cmp.Or(max(c.MinBackoff, 0), DefaultMinBackoff)
	c.MaxBackoff = cmp.Or(max(c.MaxBackoff, 0), max(DefaultMaxBackoff, c.MinBackoff))
	if c.MaxBackoff < c.MinBackoff {
		return fmt.Errorf("highest back-off %v is below the lowest, %v", c.MaxBackoff, c.MinBackoff)
	}
	c.DrainTimeout = cmp.Or(max(c.DrainTimeout, 0), DefaultDrainTimeout)
	c.MoveTimeout = cmp.Or(max(c.MoveTimeout, 0), DefaultMoveTimeout)
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

// State returns the agent's state.
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
		changed := a.shared.next()
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

// DialContext has the server join a new stream to addr, such as apiserver:443. It waits for
// a session if there is none, bounded by ctx and tunnel.DefaultDialTimeout. A dial whose
// session ends or is abandoned is retried on the next one; no byte of the caller has been
// sent by then. The caller owns the connection, which is a tunnel.Stream. Errors are
// *tunnel.DialError.
func (a *Agent) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return a.dial(ctx, tunnel.Dial{Network: network, Addr: addr})
}

func (a *Agent) dial(ctx context.Context, d tunnel.Dial) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnel.DefaultDialTimeout)
	defer cancel()
	for {
		l, err := a.session(ctx)
		if err != nil {
			code := tunnel.CodeOf(err)
			a.metrics.dial(outbound, code)
			return nil, &tunnel.DialError{Addr: d.Addr, Code: code, Text: tunnel.Reason(d.Addr, err)}
		}
		c, err := l.dial(ctx, d)
		if err == nil {
			a.metrics.dial(outbound, 0)
			return c, nil
		}
		if ctx.Err() != nil || !l.over() && l.abandoned.Err() == nil {
			a.metrics.dial(outbound, tunnel.CodeOf(err))
			return nil, err
		}
	}
}

// session waits for a usable link.
func (a *Agent) session(ctx context.Context) (*link, error) {
	for {
		changed := a.shared.next()
		a.mu.Lock()
		l, state, stopped := a.current, a.state, a.stopped
		a.mu.Unlock()
		switch {
		case stopped:
			return nil, fmt.Errorf("%w: the agent has stopped", tunnel.Draining)
		case l != nil && !l.over():
			return l, nil
		}
		select {
		case <-changed: // Run removes an ended link soon
		case <-ctx.Done():
			why := ""
			if state.Err != nil {
				why = ": " + state.Err.Error() // in the text only: the code is that of ctx
			}
			return nil, fmt.Errorf("%w while not connected to a server%s", context.Cause(ctx), why)
		}
	}
}

// update changes what mu guards and wakes the waiters of shared.next.
func (a *Agent) update(f func(*State)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(&a.state)
	a.shared.notify()
}
