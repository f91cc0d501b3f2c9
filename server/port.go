// Port: one TCP port for the tunnel and the API server.

package server

import (
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

// errHelloTooLong is for a client that goes on and on.
var errHelloTooLong = errors.New("TLS hello is too long")

// PortConfig configures a Port. Listener is required; zero fields mean a good
// default.
type PortConfig struct {
	// Listener is the port. The Port owns it.
	Listener net.Listener
	// HelloTimeout is how long a client may take to send its ClientHello; zero
	// means 10 s.
	HelloTimeout time.Duration
	// MaxPeeking is how many clients may be at it at a time; zero means 1024.
	// One more, and of those that come from the address with most of them the one
	// that has taken longest is cut off: a client in earnest is done within a round
	// trip.
	MaxPeeking int
	// Protocols are the ALPN names of the tunnel's transports.
	Protocols []string
	// Older says that Older yields the connections of older agents, which the API
	// server gets otherwise.
	Older bool

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Port tells by the ClientHello, which it does not consume, who is meant: with
// the ALPN of one of its transports the tunnel, else the API server, which also gets whatever is not
// TLS at all and knows how to answer it.
type Port struct {
	config  PortConfig
	tunnel  map[string]*memnet.Handoff // by ALPN
	api     *memnet.Handoff
	pending *strangers.Pending // those who have not said hello
	closed  *portMetrics
	sparse  strangers.LogLimiter
	refused atomic.Bool // by Refuse
}

// NewPort checks c. It starts nothing.
func NewPort(c PortConfig) (*Port, error) {
	if c.Listener == nil {
		return nil, errors.New("port: no listener")
	}
	if c.HelloTimeout <= 0 {
		c.HelloTimeout = defaultHelloTimeout
	}
	if c.MaxPeeking <= 0 {
		c.MaxPeeking = defaultMaxPeeking
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	addr := c.Listener.Addr()
	p := &Port{
		config: c, pending: strangers.NewPending(c.MaxPeeking),
		tunnel: make(map[string]*memnet.Handoff), api: memnet.NewHandoff(addr, handoffs),
	}
	var err error
	if p.closed, err = newPortMetrics(c.Metrics); err != nil {
		return nil, fmt.Errorf("port: register metrics: %w", err)
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

// Tunnel yields the connections for the hub, before their handshake, that ask
// for the transport of that ALPN name. It must be one of the port's protocols.
func (p *Port) Tunnel(alpn string) net.Listener { return p.tunnel[alpn] }

// Older yields the connections of older agents, for NewOlder, if the port has those.
func (p *Port) Older() net.Listener { return p.tunnel[olderProtocols[0]] }

// API yields the connections for the API server, before their handshake, and
// whatever is injected: Hub's Config.API should be its Inject.
func (p *Port) API() *memnet.Handoff { return p.api }

// Refuse takes no more connections. What has been accepted goes on, and so does Run.
func (p *Port) Refuse() {
	p.refused.Store(true)
	_ = p.config.Listener.Close() // nobody could do something about it
}

// Run accepts until ctx is done or accepting fails. It closes the port and both
// of its sides.
func (p *Port) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { p.close() })
	defer stop()
	defer p.close()
	var wg sync.WaitGroup
	defer wg.Wait()
	pause := time.Duration(0)
	for {
		c, err := p.config.Listener.Accept()
		switch {
		case err == nil:
			pause = 0
			wg.Go(func() { p.sort(ctx, c) })
			// In a storm, who has said hello already should be heard before the
			// next comes in, and not lose a place because nobody had the time.
			runtime.Gosched()
		case ctx.Err() != nil:
			return nil
		case p.refused.Load() && errors.Is(err, net.ErrClosed):
			<-ctx.Done()
			return nil
		case tunnel.CodeOf(err) == tunnel.Busy || tunnel.CodeOf(err) == tunnel.Lost && !errors.Is(err, net.ErrClosed):
			// Out of file descriptors, or a client that left before it was
			// accepted: the port itself is well.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			p.config.Log.Warn("cannot accept a connection", "addr", p.config.Listener.Addr().String(), "err", err, "retry", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		default:
			return fmt.Errorf("accept on %s: %w", p.config.Listener.Addr(), err)
		}
	}
}

func (p *Port) close() {
	// None of these fails in a way that anybody could do something about.
	_ = p.config.Listener.Close()
	for _, h := range p.tunnel {
		_ = h.Close()
	}
	_ = p.api.Close()
	p.pending.Close()
}

// sort finds out whom c wants and hands it over.
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

// closedFor is the kind of reason for which a connection had no hello.
func closedFor(err error) string {
	switch {
	case errors.Is(err, errHelloTooLong):
		return "long"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "slow"
	case errors.Is(err, net.ErrClosed):
		return "crowded" // it was closed here, by the pending
	default:
		return "gone"
	}
}

// peek reads the ClientHello and returns all it has read. What is no ClientHello
// is no error as long as there is something to hand on.
func (p *Port) peek(ctx context.Context, c net.Conn) (read []byte, alpn []string, err error) {
	if err = c.SetReadDeadline(time.Now().Add(p.config.HelloTimeout)); err != nil {
		return nil, nil, err
	}
	if read, alpn, err = peekHello(ctx, c); err != nil {
		return nil, nil, err
	}
	return read, alpn, c.SetReadDeadline(time.Time{})
}

// peekHello lets the standard library read the hello from a connection that only
// listens, and stops it there. r's own deadline is the bound.
func peekHello(ctx context.Context, r io.Reader) (read []byte, alpn []string, err error) {
	e := &eavesdropper{r: r}
	heard := false
	stop := errors.New("heard enough")
	_ = tls.Server(e, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			alpn, heard = slices.Clone(h.SupportedProtos), true
			return nil, stop
		},
	}).HandshakeContext(context.WithoutCancel(ctx)) // fails by design; e knows whether r was at fault
	if !heard && e.err != nil {
		return nil, nil, e.err
	}
	return e.read, alpn, nil
}

// An eavesdropper is a connection that keeps what is read and says nothing.
type eavesdropper struct {
	net.Conn // nil: nothing but what is below is used before a hello has been answered
	r        io.Reader
	read     []byte
	err      error
}

func (e *eavesdropper) Read(p []byte) (int, error) {
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

func (e *eavesdropper) Write(p []byte) (int, error)      { return len(p), nil } // alerts go nowhere
func (e *eavesdropper) Close() error                     { return nil }
func (e *eavesdropper) SetDeadline(time.Time) error      { return nil }
func (e *eavesdropper) SetReadDeadline(time.Time) error  { return nil }
func (e *eavesdropper) SetWriteDeadline(time.Time) error { return nil }

// A replayed connection begins with what was peeked.
type replayed struct {
	net.Conn
	head []byte // owned by the one reader at a time that a tls.Conn is
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

// NetConn is the connection itself, for whoever sets its options.
func (c *replayed) NetConn() net.Conn { return c.Conn }

// CloseWrite ends our direction.
func (c *replayed) CloseWrite() error { return tunnel.CloseWrite(c.Conn) }
