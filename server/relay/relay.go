// Package relay forwards TCP connections to an API server in another process. TLS is end to
// end, so the relay sees addresses and no content.
//
// The mental model: two sources, one target. Connections from the listener are
// unauthenticated and bounded in number for as long as they last, because the relay cannot
// tell which of them the API server has authenticated. Above the bound a new one closes the
// oldest connection of the address that has most of them (strangers.Pending). Connections
// that agents open through their sessions, whose certificates have been verified, are
// injected and bounded by the hub.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// DefaultLimit is the default of Config.Limit.
	DefaultLimit = 2048
	// DefaultDialTimeout is how long the API server may take to accept one.
	DefaultDialTimeout = 10 * time.Second
	// backlog bounds the injected connections that wait for Accept.
	backlog = 64
)

// Config configures a Relay. Addr is required.
type Config struct {
	// Addr is the API server's HOST:PORT.
	Addr string
	// Dial reaches it; nil dials TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Limit bounds the connections from the listener; zero means DefaultLimit.
	Limit int
	// DialTimeout bounds Dial; zero means DefaultDialTimeout.
	DialTimeout time.Duration

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Relay forwards connections to one API server.
type Relay struct {
	cfg     Config
	agents  *memnet.Handoff
	pending *strangers.Pending
	sparse  strangers.LogLimiter
	metrics *metrics
}

// New checks c. It starts nothing.
func New(c Config) (*Relay, error) {
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return nil, fmt.Errorf("relay: address of the API server: %w", err)
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	c.Limit = cmp.Or(max(c.Limit, 0), DefaultLimit)
	c.DialTimeout = cmp.Or(max(c.DialTimeout, 0), DefaultDialTimeout)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	pending := strangers.NewPending(c.Limit)
	// The listener of agents' connections has no port.
	agents := memnet.NewHandoff(tunnel.Addr("agents"), backlog)
	return &Relay{cfg: c, agents: agents, pending: pending, metrics: newMetrics(c.Metrics, pending)}, nil
}

// Inject takes a connection that an agent opened through its session, and owns it unless it
// fails. It has the signature of server.Config.API.
func (r *Relay) Inject(ctx context.Context, c net.Conn) error { return r.agents.Inject(ctx, c) }

// Run forwards the connections of l and the injected ones to the API server until ctx is
// done, and returns once all of them have ended. The caller owns l and must close it, or Run
// does not return. That does not end accepted connections.
func (r *Relay) Run(ctx context.Context, l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		<-ctx.Done()
		_ = r.agents.Close() // Accept below ends
		r.pending.Close()
	})
	wg.Go(func() {
		for c, err := r.agents.Accept(); err == nil; c, err = r.agents.Accept() {
			wg.Go(func() { r.join(ctx, c) })
		}
	})
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		held, leave := r.pending.Hold(ctx, strangers.SourceOf(c.RemoteAddr()), c)
		wg.Go(func() {
			defer leave()
			r.join(held, c)
		})
	}
	<-ctx.Done()
	return nil
}

// join dials the API server and copies bytes until both directions have ended.
func (r *Relay) join(ctx context.Context, c net.Conn) {
	dctx, cancel := context.WithTimeout(ctx, r.cfg.DialTimeout)
	api, err := r.cfg.Dial(dctx, "tcp", r.cfg.Addr)
	cancel()
	if err != nil {
		_ = tunnel.Abort(c) // a reset is all that the client sees
		if ctx.Err() != nil {
			return // it was replaced, or the relay ends
		}
		r.metrics.failed.Inc()
		if more, ok := r.sparse.Allow(r.cfg.Addr); ok {
			r.cfg.Log.Warn("the API server cannot be reached for those who connect through the tunnel's port", "address", r.cfg.Addr, "err", err, "others", more)
		}
		return
	}
	if _, err = tunnel.Splice(ctx, c, api); err != nil {
		r.cfg.Log.Debug("a connection to the API server was cut", "client", c.RemoteAddr().String(), "err", err)
	}
}
