// Port: one TCP port for the tunnel and the API server.

package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/server/internal/descriptors"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	defaultHelloTimeout = 10 * time.Second
	defaultMaxPeeking   = 1024
	// maxHello is how many bytes a ClientHello may have. Those of today's
	// clients have less than 2 KiB.
	maxHello = 16 << 10
	// handoffs is how many connections wait to be accepted on either side.
	handoffs = 64
)

// errHelloTooLong is the error for a ClientHello above maxHello.
var errHelloTooLong = errors.New("TLS hello is too long")

// errProxied is the error for a header of the PROXY protocol before the ClientHello.
var errProxied = errors.New("a load balancer sends the PROXY protocol, which this server does not take: turn it off there")

// proxyHeaders are how a header of the PROXY protocol begins, of version 1 and of version 2: as
// many bytes as TLS reads before it knows that they are no record's.
var proxyHeaders = [...]string{"PROXY", "\r\n\r\n\x00"}

// PortConfig configures a Port. Listener is required; zero fields mean a good
// default.
type PortConfig struct {
	// Listener is the port. The Port owns it.
	Listener net.Listener
	// HelloTimeout is how long a client may take to send its ClientHello; zero
	// means 10 s.
	HelloTimeout time.Duration
	// MaxPeeking bounds the clients that have not sent their ClientHello yet; zero means
	// 1024. Above it the oldest connection of the address with the most of them is closed.
	// A ClientHello normally takes one round trip.
	MaxPeeking int
	// Protocols are the ALPN names of the tunnel's transports.
	Protocols []string
	// Older makes the listener Older get the connections of older agents. Otherwise the API
	// server gets them.
	Older bool

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Port passes each connection on by its ClientHello, which it does not consume: to the
// tunnel if it has the ALPN name of one of its transports, else to the API server, which
// also gets connections that are not TLS.
type Port struct {
	config  PortConfig
	tunnel  map[string]*memnet.Handoff // by ALPN
	api     *memnet.Handoff
	pending *strangers.Pending // connections without a ClientHello
	closed  portMetrics
	sparse  strangers.LogLimiter
	refused atomic.Bool // by Refuse
}

// NewPort checks c. It starts nothing.
func NewPort(c PortConfig) (*Port, error) {
	if c.Listener == nil {
		return nil, errors.New("port: no listener")
	}
	c.HelloTimeout = cmp.Or(max(c.HelloTimeout, 0), defaultHelloTimeout)
	c.MaxPeeking = cmp.Or(max(c.MaxPeeking, 0), defaultMaxPeeking)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	addr := c.Listener.Addr()
	c.Listener = descriptors.Sparing(c.Listener, c.Log)
	p := &Port{
		config: c, pending: strangers.NewPending(c.MaxPeeking), closed: newPortMetrics(c.Metrics),
		tunnel: make(map[string]*memnet.Handoff), api: memnet.NewHandoff(addr, handoffs),
	}
	for _, alpn := range c.Protocols {
		p.tunnel[alpn] = memnet.NewHandoff(addr, handoffs)
	}
	if c.Older {
		all := memnet.NewHandoff(addr, handoffs)
		for _, alpn := range olderProtocols {
			p.tunnel[alpn] = all
		}
	}
	return p, nil
}

// Tunnel returns a listener of the connections, before their handshake, with that ALPN
// name, for the hub. It must be one of the port's protocols.
func (p *Port) Tunnel(alpn string) net.Listener { return p.tunnel[alpn] }

// Older returns a listener of older agents' connections, for NewOlder, if PortConfig.Older
// is set.
func (p *Port) Older() net.Listener { return p.tunnel[olderProtocols[0]] }

// API returns a listener of the connections for the API server, before their handshake, and
// of injected ones: Config.API of the Hub should be its Inject.
func (p *Port) API() *memnet.Handoff { return p.api }

// Refuse accepts no more connections. Accepted connections and Run continue.
func (p *Port) Refuse() {
	p.refused.Store(true)
	_ = p.config.Listener.Close() // there is no remedy
}

// Run accepts until ctx is done or Accept fails. It closes the port and its listeners.
func (p *Port) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { p.close() })()
	defer p.close()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := p.config.Listener.Accept()
		switch {
		case err == nil:
			wg.Go(func() { p.sort(ctx, c) })
			// In a storm of connections, serve those that have sent their ClientHello
			// before accepting the next, so that they do not lose their place.
			runtime.Gosched()
		case ctx.Err() != nil:
			return nil
		case p.refused.Load() && errors.Is(err, net.ErrClosed):
			<-ctx.Done()
			return nil
		default:
			return fmt.Errorf("accept on %s: %w", p.config.Listener.Addr(), err)
		}
	}
}

func (p *Port) close() {
	// There is no remedy for an error of these.
	_ = p.config.Listener.Close()
	for _, h := range p.tunnel {
		_ = h.Close()
	}
	_ = p.api.Close()
	p.pending.Close()
}

// sort reads the ClientHello of c and passes c on.
func (p *Port) sort(ctx context.Context, c net.Conn) {
	leave := p.pending.Enter(c)
	hello, alpn, err := p.peek(ctx, c)
	leave()
	if err != nil {
		p.closed.WithLabelValues(closedFor(err)).Inc()
		if more, ok := p.sparse.Allow(c.RemoteAddr()); ok && ctx.Err() == nil {
			p.config.Log.Info("connection closed without a usable hello", "addr", c.RemoteAddr().String(), "err", err, "others", more)
		}
		_ = c.Close()
		return
	}
	side := p.api
	if i := slices.IndexFunc(alpn, func(name string) bool { return p.tunnel[name] != nil }); i >= 0 {
		side = p.tunnel[alpn[i]]
	}
	if err := side.Inject(ctx, &replayed{Conn: c, head: hello}); err != nil {
		_ = c.Close() // shutting down
	}
}

// closedFor is the reason why a connection had no ClientHello.
func closedFor(err error) string {
	switch {
	case errors.Is(err, errHelloTooLong):
		return "long"
	case errors.Is(err, errProxied):
		return "proxied"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "slow"
	case errors.Is(err, net.ErrClosed):
		return "crowded" // it was closed here, by the pending
	default:
		return "gone"
	}
}

// peek reads the ClientHello and returns all bytes read. Other data is no error, but for a header of
// the PROXY protocol.
func (p *Port) peek(ctx context.Context, c net.Conn) (read []byte, alpn []string, err error) {
	if err = c.SetReadDeadline(time.Now().Add(p.config.HelloTimeout)); err != nil {
		return nil, nil, err
	}
	if read, alpn, err = peekHello(ctx, c); err != nil {
		return nil, nil, err
	}
	return read, alpn, c.SetReadDeadline(time.Time{})
}

// peekHello lets crypto/tls read the ClientHello from a connection that cannot write, and
// stops it there. r's deadline is the bound.
func peekHello(ctx context.Context, r io.Reader) (read []byte, alpn []string, err error) {
	e := &helloReader{r: r}
	got := false
	stop := errors.New("the ClientHello was read")
	_ = tls.Server(e, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			alpn, got = slices.Clone(h.SupportedProtos), true
			return nil, stop
		},
	}).HandshakeContext(context.WithoutCancel(ctx)) // always fails; e has the error of r
	if !got && e.err != nil {
		return nil, nil, e.err
	}
	for _, head := range proxyHeaders {
		if bytes.HasPrefix(e.read, []byte(head)) {
			return nil, nil, errProxied
		}
	}
	return e.read, alpn, nil
}

// A helloReader is a connection that records what is read and discards writes.
type helloReader struct {
	net.Conn // nil: only the methods below are used before the ClientHello is answered
	r        io.Reader
	read     []byte
	err      error
}

func (e *helloReader) Read(p []byte) (int, error) {
	room := maxHello - len(e.read)
	if room <= 0 {
		e.err = errHelloTooLong
		return 0, e.err
	}
	n, err := e.r.Read(p[:min(len(p), room)])
	e.read = append(e.read, p[:n]...)
	if err != nil {
		e.err = err
	}
	return n, err
}

func (e *helloReader) Write(p []byte) (int, error)      { return len(p), nil } // discards alerts
func (e *helloReader) Close() error                     { return nil }
func (e *helloReader) SetDeadline(time.Time) error      { return nil }
func (e *helloReader) SetReadDeadline(time.Time) error  { return nil }
func (e *helloReader) SetWriteDeadline(time.Time) error { return nil }

// A replayed connection returns the peeked bytes first.
type replayed struct {
	net.Conn
	head []byte // owned by the reader, a tls.Conn, which reads serially
}

func (c *replayed) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		if c.head = c.head[n:]; len(c.head) == 0 {
			c.head = nil
		}
		return n, nil
	}
	return c.Conn.Read(p)
}

// NetConn is the connection itself, for setting socket options.
func (c *replayed) NetConn() net.Conn { return c.Conn }

// Abort resets the connection.
func (c *replayed) Abort() error { return tunnel.Abort(c.Conn) }

// CloseWrite ends our direction.
func (c *replayed) CloseWrite() error { return tunnel.CloseWrite(c.Conn) }
