// Package connect is the hub's front end for HTTP CONNECT, as the
// HTTPConnect mode of kube-apiserver's EgressSelectorConfiguration expects it
// (KEP-1281).
//
// A client sends CONNECT host:port, where a '%' is written %25 as in a URL
// (RFC 6874). When the target is connected it gets 200, and the connection becomes
// a tunnel to the target. Otherwise it gets a status for the kind of failure, with
// Proxy-Status (RFC 9209) for machines and one line of text for people, which the status line
// has too. Then the connection is closed: what follows may be data for the target.
//
// When the process runs out of file descriptors, new requests get 503 by the last
// few, and open tunnels go on.
//
// A tunnel that is cut at one end is reset at the other: over TLS by a TCP reset
// without close_notify. A unix socket has no reset, so that a client there cannot
// tell a cut from an end, unless the protocol in the tunnel can.
//
// Data of a target that sends first is held back for 100 ms, or until the client has
// sent data, because the egress selector fails if a byte follows the 200 in the same
// read. A client that accepts such data sends "Hawser-Early: yes".
//
// The package authenticates and authorizes only by Config.Authorize; the listener
// does TLS (ListenTLS). The file mode of a unix socket decides who may connect to it
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

	"github.com/hawser-project/hawser/server/internal/descriptors"
	"github.com/hawser-project/hawser/server/internal/fronts"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// DefaultDialTimeout is used if Config.DialTimeout is zero.
	DefaultDialTimeout = 30 * time.Second
	// headerTimeout bounds the TLS handshake, and the time in which a client sends its
	// request.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection may be kept open between two requests. A
	// tunnel may be idle for ever.
	idleTimeout = time.Minute
	// maxIdlers is how many connections of a Server may be without a request: in
	// their handshake, in their header, or kept open after an answer that was no
	// tunnel. kube-apiserver, which is one source, may connect to thousands of nodes at once.
	maxIdlers = 4096
	// earlyHeader is the field by which a client accepts the target's data right behind the
	// answer: "Hawser-Early: yes".
	earlyHeader = "Hawser-Early"
	// maxHeader bounds the request in bytes; a host name has 255 at most.
	maxHeader = 8 << 10
	// drainTimeout is how long Serve waits for tunnels to end by themselves unless
	// Config.DrainTimeout says otherwise.
	drainTimeout = 5 * time.Second
	// answerTime is how long data of a target that sends first is held back, so that the
	// client reads the 200 alone.
	answerTime = 100 * time.Millisecond
	// maxTargetText bounds a target in logs and answers.
	maxTargetText = 300
)

// Config configures a Server. Dial is required.
type Config struct {
	// Dial reaches targets: the hub's DialContext.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Authorize may refuse a request by an error, which the client gets. Nil allows
	// every client that could connect, which suits a unix socket.
	Authorize func(*http.Request) error
	// Caller names the client of a request, for auth.CallerOf of the dial's context. Nil
	// means no name.
	Caller func(*http.Request) string
	// Trace puts the trace of a request's headers into the context of its dial. Nil means
	// no traces.
	Trace func(context.Context, http.Header) context.Context
	// DialTimeout bounds a dial; zero means DefaultDialTimeout.
	DialTimeout time.Duration
	// DrainTimeout is how long tunnels, and dials for them, may go on once Serve's context is
	// done; zero means 5 s.
	DrainTimeout time.Duration

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Server is a front end. Serve may be called for several listeners.
type Server struct {
	cfg     Config
	metrics *fronts.Metrics
	idlers  *strangers.Pending   // connections without a request
	silent  strangers.LogLimiter // limits log lines about closed pending connections
	denied  strangers.LogLimiter // limits log lines about refused clients
	hold    time.Duration        // answerTime
}

// New checks c. It starts nothing.
func New(c Config) (*Server, error) {
	if c.Dial == nil {
		return nil, errors.New("connect: Config.Dial is required")
	}
	c.DialTimeout = cmp.Or(max(c.DialTimeout, 0), DefaultDialTimeout)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, drainTimeout)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return &Server{cfg: c, metrics: fronts.NewMetrics(c.Metrics), idlers: strangers.NewPending(descriptors.AtMost(maxIdlers)), hold: answerTime}, nil
}

// Serve serves l, which it owns, until ctx is done. Then it takes no new requests, cuts
// the tunnels, and the dials for them, after DrainTimeout, and returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	tunnels, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l = descriptors.Sparing(l, s.cfg.Log)
	shut := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept ends
	f := &front{Server: s, ctx: tunnels, private: s.cfg.Authorize == nil && l.Addr().Network() == "unix"}
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
	ctx context.Context // of tunnels and dials: done when they are cut, which is later than the end of Serve's context
	// private says that every client which can connect may make tunnels, as on the socket of
	// ListenUnix. Connections without a request are not counted then.
	private bool
}

// accept serves what l accepts until ctx is done.
func (f *front) accept(ctx context.Context, l net.Listener, clients *sync.WaitGroup) error {
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			clients.Go(func() { f.serve(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		default:
			return fmt.Errorf("serve CONNECT: %w", err)
		}
	}
}

// join copies between the connection of r and its target. It owns both.
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
