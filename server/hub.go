// Hub: the public face.

package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

// APIServer is the address at which an agent finds the API server through its
// session.
const APIServer = "apiserver:443"

const (
	defaultDrainTimeout   = 5 * time.Second
	defaultParkedPatience = 3 * time.Second
	// defaultRestartPatience covers the 5 s for which agents by default let streams end
	// before they leave, and 3 s more to be back.
	defaultRestartPatience = 8 * time.Second
	defaultMaxNodeSeries   = 1000
	// helloTimeout is how long a session may take from its handshake to its
	// hello, on a path of three seconds on which packets get lost as well.
	helloTimeout = 30 * time.Second
)

// Config configures a Hub. Listeners is required; zero fields mean a good
// default.
type Config struct {
	// Listeners make sessions. The hub serves and closes them.
	Listeners []tunnel.Listener
	// Identify returns the node at the other end; nil reads it from the certificate that
	// TLS verified.
	Identify func(tunnel.Peer) (string, error)
	// Admit may refuse an identified node by an error, which is sent to the agent: one made
	// by Refuse, or any other, which means Denied. It is called when a session begins, and
	// when one is resumed; nil refuses none.
	Admit func(ctx context.Context, node string, p tunnel.Peer) error
	// API takes the streams that agents open to apiserver:443 and owns them
	// unless it fails. Nil denies them.
	API func(ctx context.Context, c net.Conn) error
	// MaxGreeting bounds the sessions between their TLS handshake and their welcome; zero
	// means 512. Others get a retry delay.
	MaxGreeting int
	// MaxSessions is how many sessions there may be; zero means 65,536.
	MaxSessions int
	// DrainTimeout is how long Run waits for streams into nodes once its context is done;
	// zero means 5 s, negative not at all.
	DrainTimeout time.Duration
	// Beyond dials into nodes that have no session here, without a tunnel. ok reports whether
	// it can dial the node. dial connects to an address from that node. Nil means none.
	Beyond func(node string) (dial func(context.Context, tunnel.Dial) (net.Conn, error), ok bool)
	// BeyondName is the transport label of Beyond's dials; empty means "beyond".
	BeyondName string
	// Elsewhere dials through another server with a session of the node. ok reports whether
	// there is such a server. It is called when this hub has no session, or only one that is
	// parked or about to end. Errors name the address as d.Name. An error whose code is
	// Away means that no other server has a session now, Draining that one may have one
	// soon; any other is the answer of the node. Nil means none. See package peers.
	Elsewhere func(ctx context.Context, node string, d tunnel.Dial) (s tunnel.Stream, ok bool, err error)
	// Through returns the names of nodes that reach an address which no node has, such as the
	// cluster IP of a service, in the order in which they are to be tried. Nil means that
	// no node reaches such an address.
	Through func(ip netip.Addr) []string
	// Ended is called for each stream into a node when it ends, and for each failed dial,
	// except those of the server itself (Caller.Own). It must not block.
	Ended func(Ended)
	// Dialed is called for each dial once it has succeeded or failed, with the dial's context.
	// It must not block.
	Dialed func(context.Context, Dialed)
	// ParkedPatience is how long a dial waits for a node that is reconnecting;
	// zero means 3 s, negative not at all.
	ParkedPatience time.Duration
	// RestartPatience is how long a dial waits for a node whose agent announced that it
	// leaves, as it does when it is restarted, to connect to any server. Dials do not wait
	// for one that left longer ago. Zero means 8 s, negative not at all.
	RestartPatience time.Duration
	// MaxNodeSeries is how many nodes have metrics of their own; zero means
	// 1000. The others share one.
	MaxNodeSeries int
	// MaxGone bounds the nodes without a session that are kept for Observe and TakeBack;
	// zero means 20,000. The oldest are dropped first.
	MaxGone int
	// TakeBack is how long a superseded agent is refused after the session of the one with
	// its identity has ended; zero means DefaultTakeBack. If that one sent a goodbye it is a
	// minute at most.
	TakeBack time.Duration
	// Version is sent to agents.
	Version string
	// Intake is that of the listeners' sessions, for the metrics; nil means
	// tunnel.ProcessIntake.
	Intake *tunnel.Intake

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Hub connects callers to nodes. Its methods are safe for concurrent use.
type Hub struct {
	id       string // differs between hubs, and between processes
	config   Config
	log      *slog.Logger
	metrics  *metrics
	ledger   *ledger
	history  *history
	registry registry
	routes   routes
	lastID   atomic.Uint64
	stopping atomic.Bool // Run's context is done

	leaving   chan struct{} // closed by Leave
	leaveOnce sync.Once
	drainBy   atomic.Pointer[time.Time] // of DrainBy; nil if it was not called

	admission *admission
	silent    strangers.LogLimiter    // log lines about agents that sent no hello
	turned    strangers.LogLimiter    // log lines about refused agents
	lines     strangers.RepeatLimiter // other log lines about nodes
	toAPI     apiStreams
}

// New checks c and makes a Hub. It starts nothing.
func New(c Config) (*Hub, error) {
	if len(c.Listeners) == 0 {
		return nil, errors.New("hub: no listeners")
	}
	if c.Identify == nil {
		c.Identify = identify
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.DrainTimeout = bounded(c.DrainTimeout, defaultDrainTimeout)
	c.ParkedPatience = bounded(c.ParkedPatience, defaultParkedPatience)
	c.RestartPatience = bounded(c.RestartPatience, defaultRestartPatience)
	c.MaxNodeSeries = cmp.Or(max(c.MaxNodeSeries, 0), defaultMaxNodeSeries)
	c.MaxGone = cmp.Or(max(c.MaxGone, 0), defaultMaxGone)
	c.TakeBack = cmp.Or(max(c.TakeBack, 0), DefaultTakeBack)
	c.BeyondName = cmp.Or(c.BeyondName, "beyond")
	h := &Hub{id: rand.Text(), config: c, log: c.Log, ledger: newLedger(c.MaxNodeSeries, c.BeyondName), admission: newAdmission(c.MaxGreeting, c.MaxSessions), leaving: make(chan struct{})}
	h.history = newHistory(c.MaxGone)
	h.registry.takeBack, h.registry.maxGone = c.TakeBack, c.MaxGone
	h.metrics = newMetrics(c.Metrics, h.admission, h.registry.dialsAwaiting, tunnel.Options{Intake: c.Intake}.Shared())
	if c.Metrics != nil {
		c.Metrics.MustRegister(newCollector(h.ledger, c.Listeners))
	}
	return h, nil
}

// bounded is d with its default for zero, and zero for what is negative.
func bounded(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return max(d, 0)
}

// identify uses the certificate.
func identify(p tunnel.Peer) (string, error) {
	if p.TLS == nil || len(p.TLS.PeerCertificates) == 0 {
		return auth.NodeName(nil)
	}
	return auth.NodeName(p.TLS.PeerCertificates[0])
}

// Run serves until ctx is done, then drains: it notifies agents, gives streams into nodes
// DrainTimeout to end, and returns nil once all have ended. If a listener fails, Run drains
// in the same way and returns that error.
func (h *Hub) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	leave := func() {
		h.stopping.Store(true)
		h.registry.wakeAll()
		h.Leave()
	}
	stop := context.AfterFunc(ctx, leave)
	defer func() {
		if stop() && ctx.Err() != nil { // all have ended before it was called
			leave()
		}
	}()
	var group errgroup.Group
	for _, l := range h.config.Listeners {
		group.Go(func() error {
			err := l.Serve(ctx, h.session)
			if err != nil {
				err = fmt.Errorf("listen for agents on %s: %w", l.Addr(), err)
				cancel(err)
			}
			return err
		})
	}
	return group.Wait()
}

// SetRoutes replaces the prefixes of node; none removes it. A single address is a prefix of
// full length. An address within prefixes of several nodes leads to none of them, even if
// one prefix is longer.
func (h *Hub) SetRoutes(node string, prefixes ...netip.Prefix) { h.routes.set(node, prefixes) }
