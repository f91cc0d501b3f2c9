// Package doorman bounds what strangers can cost an HTTPS server: connections whose
// user nobody knows yet, and clients that ask and take it back (HTTP/2 rapid reset,
// CVE-2023-44487).
//
// The mental model: a Doorman stands below TLS, where Listener gives it each
// connection, and above HTTP, where Handler shows it each request. A connection holds
// a place from its arrival until Seen is told that a request on it has a user. When
// all places are taken a newcomer costs the oldest connection of the address that has
// most of them its place (strangers.Pending), so that slow handshakes from one address keep
// nobody else out.
//
// What net/http bounds by itself is left to it: how long a handshake and a header may
// take, how large a header is, how many streams a connection has at a time and how
// many of its requests wait. A connection that is closed without having been of use
// is counted by reason, and is in the log once a minute for each address.
//
// Handler finds the connection of a request by its local address, which net/http puts
// into each request's context: servers whose ConnContext is not ours have nothing else
// to tell connections by.
package doorman

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// DefaultLimit is how many connections without a known user there may be when
	// Config does not say.
	DefaultLimit = 2048
	// A connection may take back this many requests before they have been answered:
	// at once, and a second. It has 250 open at a time at most, and clients give up
	// watches now and then, not requests by the hundred.
	resetsBurst     = 500
	resetsPerSecond = 50
	// resetsSuspect is how many of them are the reason if it ends: net/http, too,
	// closes connections that take back requests faster than it can stop them. A client
	// that stops takes back all that are open.
	resetsSuspect = 300
)

// Why a connection was closed, as the metric and the log call it.
const (
	crowded   = "crowded"    // it lost its place to another one
	noRequest = "no_request" // there was none: no handshake, a malformed or an oversized one or header, silence
	unknown   = "unknown"    // its requests were refused for want of a user
	resets    = "resets"     // it took back too many requests
)

// Config configures a Doorman. Server is required.
type Config struct {
	// Server is what the metric is named after: hawser_SERVER_connections_closed_total.
	Server string
	// Limit is how many connections may be without a known user; zero means
	// DefaultLimit.
	Limit int

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Doorman is that of one server. All methods may be called at the same time.
type Doorman struct {
	server  string
	log     *slog.Logger
	pending *strangers.Pending
	metrics *metrics
	sparse  strangers.LogLimiter
	closing atomic.Bool // the server stops
}

// New checks c. It starts nothing.
func New(c Config) (*Doorman, error) {
	if c.Server == "" {
		return nil, errors.New("doorman: Config.Server is required")
	}
	if c.Limit <= 0 {
		c.Limit = DefaultLimit
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	d := &Doorman{server: c.Server, log: c.Log, pending: strangers.NewPending(c.Limit)}
	var err error
	d.metrics, err = newMetrics(c.Server, c.Metrics, d.pending)
	return d, err
}

// Listener yields the connections of l, which it owns, for the server to do TLS on.
func (d *Doorman) Listener(l net.Listener) net.Listener { return &listener{l, d} }

type listener struct {
	net.Listener
	d *Doorman
}

func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, d: l.d, resets: rate.NewLimiter(resetsPerSecond, resetsBurst)}
	c.leave = sync.OnceFunc(l.d.pending.Enter(stranger{c}))
	return c, nil
}

// Close closes the listener. Connections that are closed from now on have nothing to
// blame for it but the server.
func (l *listener) Close() error {
	l.d.closing.Store(true)
	return l.Listener.Close()
}

// Handler shows the requests for next to the Doorman. The server's connections must
// come from Listener; others are left alone.
func (d *Doorman) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := connOf(r.Context())
		if c == nil {
			next.ServeHTTP(w, r)
			return
		}
		c.asked.Store(true)
		if r.ProtoMajor == 2 {
			defer context.AfterFunc(r.Context(), c.reset)()
		}
		next.ServeHTTP(w, r)
	})
}

// Seen says whether the request of ctx has a user whom the server knows. If it has,
// its connection need not yield to strangers any more; if it has not, it was refused
// for that.
func Seen(ctx context.Context, known bool) {
	c := connOf(ctx)
	switch {
	case c == nil:
	case !known:
		c.refused.Store(true)
	case !c.known.Swap(true):
		c.leave()
	}
}

func connOf(ctx context.Context) *conn {
	a, _ := ctx.Value(http.LocalAddrContextKey).(connAddr)
	return a.conn
}

// A connAddr is the local address of a conn, which it leads back to.
type connAddr struct {
	net.Addr
	conn *conn
}

// A conn is a connection below TLS.
type conn struct {
	net.Conn
	d      *Doorman
	leave  func() // gives its place back
	resets *rate.Limiter

	asked   atomic.Bool // there was a request
	refused atomic.Bool // one had no user
	known   atomic.Bool // one had a user
	ended   atomic.Bool
}

func (c *conn) LocalAddr() net.Addr { return connAddr{c.Conn.LocalAddr(), c} }

// reset is called when a request over HTTP/2 ends before it has been answered.
func (c *conn) reset() {
	if !c.resets.Allow() && c.end(resets) {
		_ = tunnel.Abort(c.Conn) // its peer will not miss anything
	}
}

// Close is the server's.
func (c *conn) Close() error {
	c.leave()
	switch {
	case !c.asked.Load():
		c.end(noRequest)
	case c.refused.Load() && !c.known.Load():
		c.end(unknown)
	case c.resets.Tokens() <= resetsBurst-resetsSuspect:
		c.end(resets)
	default:
		c.ended.Store(true)
	}
	return c.Conn.Close()
}

// Abort is that of whoever has taken the connection from the server.
func (c *conn) Abort() error {
	c.leave()
	c.ended.Store(true)
	return tunnel.Abort(c.Conn)
}

// A stranger is a conn as the pending has it.
type stranger struct{ *conn }

// Abort makes room for another one.
func (s stranger) Abort() error {
	s.end(crowded)
	return tunnel.Abort(s.Conn)
}

// end counts and logs the reason for which c ends, and says whether it is the first.
func (c *conn) end(reason string) bool {
	if c.ended.Swap(true) || c.d.closing.Load() {
		return false
	}
	if more, ok := c.d.sparse.Allow(c.RemoteAddr()); ok {
		c.d.log.Info("connection closed", "server", c.d.server, "client", c.RemoteAddr().String(), "reason", reason, "others", more)
	}
	c.d.metrics.closed.WithLabelValues(reason).Inc()
	return true
}

// NetConn is the connection itself, for whoever sets its options.
func (c *conn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends our direction.
func (c *conn) CloseWrite() error { return tunnel.CloseWrite(c.Conn) }
