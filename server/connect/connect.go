// Package connect is the hub's front end for others: HTTP CONNECT, as the
// HTTPConnect mode of kube-apiserver's EgressSelectorConfiguration expects it
// (KEP-1281).
//
// A client sends CONNECT host:port, where a '%' is written %25 as in a URL
// (RFC 6874). When the target has been reached it gets
// 200, and from then on the connection is the target's. Otherwise it gets a
// status that says whose fault it is, with Proxy-Status (RFC 9209) for machines
// and one line of text for people.
//
// When the process runs out of file descriptors, the last few are for saying so:
// new requests get 503 and tunnels that are open go on.
//
// A tunnel that is cut off, at either end, is reset at the other: over TLS by a TCP
// reset without close_notify. A unix socket has no reset, so that a client there
// cannot tell a cut from an end, unless what it speaks through the tunnel can.
//
// A target that speaks first is held back for 100 ms, or until the client has sent
// something, because the egress selector takes a byte that comes with the 200 for an
// error. A client that can do with that asks by "Hawser-Early: yes".
//
// The package authenticates and authorizes only by Config.Authorize; the listener
// it is given does TLS (ListenTLS). A unix socket's file mode is its lock
// (ListenUnix).
package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/server/internal/fronts"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// DefaultDialTimeout bounds a dial when Config does not say.
	DefaultDialTimeout = 30 * time.Second
	// headerTimeout is how long a client may take to shake hands, and to send its
	// request.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection may be kept open between two requests. A
	// tunnel may be idle for ever.
	idleTimeout = time.Minute
	// maxIdlers is how many connections of a Server may be without a request: in
	// their handshake, in their header, or kept open after an answer that was no
	// tunnel.
	maxIdlers = 512
	// earlyHeader is the field by which a client that is ready for it asks not to have
	// a target held back that speaks first: "Hawser-Early: yes".
	earlyHeader = "Hawser-Early"
	// maxHeader bounds the request in bytes; a host name has 255 at most.
	maxHeader = 8 << 10
	// drainTimeout is how long Serve waits for tunnels to end by themselves unless
	// Config.DrainTimeout says otherwise.
	drainTimeout = 5 * time.Second
	// answerTime is how long a target that speaks first is held back, so that
	// the client has read the 200 by itself.
	answerTime = 100 * time.Millisecond
	// lowestPause and highestPause bound the pause after an Accept that failed for a
	// reason that will pass.
	lowestPause  = 5 * time.Millisecond
	highestPause = time.Second
	// maxTargetText bounds a target in logs and answers.
	maxTargetText = 300
)

// Config configures a Server. Dial is required.
type Config struct {
	// Dial reaches targets: the hub's DialContext.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Authorize may refuse a request by error, which the client reads. Nil allows
	// whoever could connect, which suits a unix socket.
	Authorize func(*http.Request) error
	// Caller names who makes a request, for auth.CallerOf of the dial's context. Nil
	// names nobody.
	Caller func(*http.Request) string
	// Trace puts what a request's headers say of a trace into the context of its dial. Nil
	// means that nobody wants to know.
	Trace func(context.Context, http.Header) context.Context
	// DialTimeout bounds a dial; zero means DefaultDialTimeout.
	DialTimeout time.Duration
	// DrainTimeout is how long tunnels may go on once Serve's context is done; zero means 5 s.
	DrainTimeout time.Duration

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Server is a front end. Serve may be called for several listeners.
type Server struct {
	cfg     Config
	metrics *fronts.Metrics
	idlers  *strangers.Pending   // connections without a request
	silent  strangers.LogLimiter // lines about those that were closed
	denied  strangers.LogLimiter // lines about who may not
	hold    time.Duration        // answerTime
}

// New checks c. It starts nothing.
func New(c Config) (*Server, error) {
	if c.Dial == nil {
		return nil, errors.New("connect: Config.Dial is required")
	}
	if c.DialTimeout <= 0 {
		c.DialTimeout = DefaultDialTimeout
	}
	c.DrainTimeout = cmp.Or(c.DrainTimeout, drainTimeout)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	m, err := fronts.NewMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &Server{cfg: c, metrics: m, idlers: strangers.NewPending(maxIdlers), hold: answerTime}, nil
}

// Serve serves l, which it owns, until ctx is done, and returns nil then: no new
// requests are taken, and tunnels get DrainTimeout to end before they are cut.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	tunnels, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shut := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept ends
	f := &front{Server: s, ctx: tunnels}
	var clients sync.WaitGroup
	err := f.accept(ctx, l, &clients)
	if shut() {
		err = errors.Join(err, l.Close())
	}
	cancel()
	timer := time.AfterFunc(s.cfg.DrainTimeout, func() { cut(errors.New("server is shutting down")) })
	defer timer.Stop()
	clients.Wait()
	return err
}

// A front is a Server on one listener.
type front struct {
	*Server
	ctx context.Context // of the tunnels: ends when they are cut, not when no more is asked
}

// accept serves what l accepts until ctx is done.
func (f *front) accept(ctx context.Context, l net.Listener, clients *sync.WaitGroup) error {
	pause := time.Duration(0)
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			clients.Go(func() { f.serve(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case tunnel.CodeOf(err) == tunnel.Busy, tunnel.CodeOf(err) == tunnel.Lost && !errors.Is(err, net.ErrClosed):
			// Out of file descriptors, or a client that left before it was accepted.
			pause = min(max(2*pause, lowestPause), highestPause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		default:
			return fmt.Errorf("serve CONNECT: %w", err)
		}
	}
}

// join splices the connection of r and its target. It owns both.
func (f *front) join(conn, target net.Conn, r *http.Request, ahead int) {
	f.metrics.Open.Inc()
	defer f.metrics.Open.Dec()
	n, err := tunnel.Splice(f.ctx, conn, target)
	f.metrics.Moved(int64(ahead)+n.AtoB, n.BtoA)
	if err != nil {
		f.cfg.Log.Debug("tunnel ended early", "client", r.RemoteAddr, "target", clip(r.Host), "err", err)
	}
}

func clip(s string) string {
	if len(s) > maxTargetText {
		return s[:maxTargetText] + "…"
	}
	return s
}
