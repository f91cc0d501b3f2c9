// Hub: the public face.

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	// Identify names the node at the other end; nil reads it from the
	// certificate that TLS verified.
	Identify func(tunnel.Peer) (string, error)
	// Admit may refuse an identified node by error, which the agent is told: one
	// that Refuse made, or any other, which means Denied. It is asked when a session
	// begins, and when one is resumed; nil refuses none.
	Admit func(ctx context.Context, node string, p tunnel.Peer) error
	// API takes the streams that agents open to apiserver:443 and owns them
	// unless it fails. Nil denies them.
	API func(ctx context.Context, c net.Conn) error
	// MaxGreeting is how many sessions may be between their handshake and their
	// welcome; zero means 512. Others are told when to come back.
	MaxGreeting int
	// MaxSessions is how many sessions there may be; zero means 65,536.
	MaxSessions int
	// DrainTimeout is how long Run waits, once asked to stop, for streams into
	// nodes to end; zero means 5 s, negative not at all.
	DrainTimeout time.Duration
	// Beyond reaches nodes that have no session here, by another way than the
	// tunnel: ok says whether it knows node, and dial reaches an address as that
	// node sees it. Nil knows none.
	Beyond func(node string) (dial func(ctx context.Context, network, addr string) (net.Conn, error), ok bool)
	// BeyondName is what metrics call the way that Beyond takes; empty means
	// "beyond".
	BeyondName string
	// Elsewhere reaches nodes of which other servers have a session; ok says whether it
	// knows such a server. It is asked when this hub has none, or only one that is parked
	// or about to end. D's Name is what errors call the address. An error whose code is
	// Away means that no other server has a session by now, Draining that one may
	// soon have; any other is the answer of the node. Nil knows none. See package peers.
	Elsewhere func(ctx context.Context, node string, d tunnel.Dial) (s tunnel.Stream, ok bool, err error)
	// Ended is told of each stream into a node once it is over, and of each dial that
	// failed, but for those of the server itself (Caller.Own). It must not wait.
	// Nil costs nothing.
	Ended func(Ended)
	// Dialed is told of each dial once its outcome is known, with the context that it was
	// made with. It must not wait. Nil costs nothing.
	Dialed func(context.Context, Dialed)
	// ParkedPatience is how long a dial waits for a node that is reconnecting;
	// zero means 3 s, negative not at all.
	ParkedPatience time.Duration
	// RestartPatience is how long a dial waits for a node whose agent has said that it
	// leaves, as it does when it is restarted, to have a session with any server. One that
	// left longer ago is not waited for. Zero means 8 s, negative not at all.
	RestartPatience time.Duration
	// MaxNodeSeries is how many nodes have metrics of their own; zero means
	// 1000. The others share one.
	MaxNodeSeries int
	// MaxGone is how many nodes are remembered that have no session any more, for
	// Observe and for TakeBack; zero means 20,000. The longest gone are forgotten
	// first.
	MaxGone int
	// TakeBack is for how long an agent that another one with its identity has
	// superseded is turned away after the other's session has ended; zero means
	// DefaultTakeBack. If the other one has said goodbye it is a minute at most.
	TakeBack time.Duration
	// Version is told to agents.
	Version string
	// Intake is that of the listeners' sessions, for the metrics; nil means
	// tunnel.ProcessIntake.
	Intake *tunnel.Intake

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Hub joins callers to nodes. All methods may be called at the same time.
type Hub struct {
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
	silent    strangers.LogLimiter // lines about agents that did not say hello
	turned    strangers.LogLimiter // lines about agents that were turned away
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
	c.DrainTimeout = bounded(c.DrainTimeout, defaultDrainTimeout)
	c.ParkedPatience = bounded(c.ParkedPatience, defaultParkedPatience)
	c.RestartPatience = bounded(c.RestartPatience, defaultRestartPatience)
	if c.MaxNodeSeries <= 0 {
		c.MaxNodeSeries = defaultMaxNodeSeries
	}
	if c.MaxGone <= 0 {
		c.MaxGone = defaultMaxGone
	}
	if c.TakeBack <= 0 {
		c.TakeBack = DefaultTakeBack
	}
	if c.BeyondName == "" {
		c.BeyondName = "beyond"
	}
	h := &Hub{config: c, log: c.Log, ledger: newLedger(c.MaxNodeSeries, c.BeyondName), admission: newAdmission(c.MaxGreeting, c.MaxSessions), leaving: make(chan struct{})}
	h.history = newHistory(c.MaxGone)
	h.registry.takeBack, h.registry.maxGone = c.TakeBack, c.MaxGone
	var err error
	if h.metrics, err = newMetrics(c.Metrics, h.admission, h.registry.dialsAwaiting, tunnel.Options{Intake: c.Intake}.Shared()); err != nil {
		return nil, fmt.Errorf("hub: register metrics: %w", err)
	}
	if c.Metrics != nil {
		if err := c.Metrics.Register(newCollector(h.ledger, c.Listeners)); err != nil {
			return nil, fmt.Errorf("hub: register metrics: %w", err)
		}
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

// SetRoutes replaces the addresses that lead to node; none removes it. A single
// address is a prefix of its full length. An address that is in prefixes of
// several nodes leads nowhere, whichever is longer.
func (h *Hub) SetRoutes(node string, prefixes ...netip.Prefix) { h.routes.set(node, prefixes) }
