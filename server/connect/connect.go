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
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/hawser-project/hawser/auth"
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
	idlers  *idlers
	denied  strangers.Sparse // lines about who may not
	hold    time.Duration    // answerTime
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
	return &Server{cfg: c, metrics: m, idlers: newIdlers(m, c.Log), hold: answerTime}, nil
}

// Serve serves l, which it owns, until ctx is done, and returns nil then: no new
// requests are taken, and tunnels get DrainTimeout to end before they are cut.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	tunnels, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	f := &front{Server: s, ctx: tunnels}
	srv := &http.Server{
		Handler:           f,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         s.idlers.changed,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return tunnels },
		ConnContext:       s.idlers.enter,
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve CONNECT: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		timer := time.AfterFunc(s.cfg.DrainTimeout, func() { cut(errors.New("server is shutting down")) })
		defer timer.Stop()
		err := srv.Close() // hijacked connections are not the http.Server's any more
		f.open.wait()
		return err
	})
	return group.Wait()
}

// A front is a Server on one listener.
type front struct {
	*Server
	ctx  context.Context // of the tunnels: ends when they are cut, not when a request does
	open gate
}

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	in, _ := r.Context().Value(idlerKey{}).(*idler)
	in.asked.Store(true)
	if !f.open.enter() {
		f.refuse(w, r, &tunnel.DialError{Addr: clip(r.Host), Code: tunnel.Draining})
		return
	}
	defer f.open.leave()
	if in.scarce {
		f.metrics.Shed.Inc()
		w.Header().Set("Connection", "close")
		f.refuse(w, r, &tunnel.DialError{Addr: clip(r.Host), Code: tunnel.Busy, Text: "the server has no file descriptors to spare"})
		return
	}
	if r.Method != http.MethodConnect {
		w.Header().Set("Allow", http.MethodConnect)
		http.Error(w, "this port serves CONNECT only", http.StatusMethodNotAllowed)
		return
	}
	if f.cfg.Authorize != nil {
		if err := f.cfg.Authorize(r); err != nil {
			f.metrics.Dials.WithLabelValues(tunnel.Denied.String()).Inc()
			if more, ok := f.denied.Tell(err.Error()); ok { // which says who
				f.cfg.Log.Warn("CONNECT refused", "client", r.RemoteAddr, "target", clip(r.Host), "err", err, "others", more)
			}
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), f.cfg.DialTimeout)
	defer cancel()
	if f.cfg.Caller != nil {
		ctx = auth.WithCaller(ctx, auth.Caller{Name: f.cfg.Caller(r)})
	}
	if f.cfg.Trace != nil {
		ctx = f.cfg.Trace(ctx, r.Header)
	}
	began := time.Now()
	target, err := f.cfg.Dial(ctx, "tcp", r.Host)
	f.metrics.Dialed(tunnel.CodeOf(err), time.Since(began))
	if err != nil {
		f.refuse(w, r, err)
		return
	}
	f.join(w, r, target)
}

// refuse answers a dial that failed.
func (f *front) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code := tunnel.CodeOf(err)
	f.cfg.Log.Debug("CONNECT failed", "client", r.RemoteAddr, "target", clip(r.Host), "err", err)
	w.Header().Set("Proxy-Status", proxyStatus(code, err))
	if code.Temporary() {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, err.Error(), httpStatus(code))
}

// join answers 200 and splices. It owns target.
func (f *front) join(w http.ResponseWriter, r *http.Request, target net.Conn) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = tunnel.Abort(target)
		http.Error(w, "this connection cannot become a tunnel", http.StatusHTTPVersionNotSupported)
		return
	}
	if _, err = conn.Write([]byte("HTTP/1.1 200 Connection Established\r\n\r\n")); err != nil {
		_ = tunnel.Abort(target)
		_ = conn.Close()
		return
	}
	client := withBuffered(conn, buffered.Reader)
	f.metrics.Open.Inc()
	defer f.metrics.Open.Dec()
	hold := f.hold
	if strings.EqualFold(r.Header.Get(earlyHeader), "yes") {
		hold = 0
	}
	quiet, stop := holdBack(target, hold)
	defer stop()
	n, err := tunnel.Splice(f.ctx, client, quiet)
	f.metrics.Moved(n.AtoB, n.BtoA)
	if err != nil {
		f.cfg.Log.Debug("tunnel ended early", "client", r.RemoteAddr, "target", clip(r.Host), "err", err)
	}
}

// withBuffered is conn, of which r has read something already.
func withBuffered(conn net.Conn, r *bufio.Reader) net.Conn {
	p, _ := r.Peek(r.Buffered()) // it is there
	return tunnel.ReadAhead(conn, p)
}

func clip(s string) string {
	if len(s) > maxTargetText {
		return s[:maxTargetText] + "…"
	}
	return s
}
