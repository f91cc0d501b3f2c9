// The accepting end: handshakes, and the links that connections belong to.

package carrier

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/link"
)

const (
	// defaultBudget is LinkOptions.Budget's.
	defaultBudget = 256 << 20

	// handshakeTimeout leaves room for three round trips of three seconds, and for a
	// packet of each to be lost. A client that takes its time costs a place, which it
	// loses once somebody else wants it.
	handshakeTimeout = 30 * time.Second
	// parting bounds how long a client that was refused is read from; see partFrom.
	parting = time.Second

	// An Accept that failed for a reason that will pass is tried again after a
	// pause that doubles between these bounds.
	lowestPause  = 5 * time.Millisecond
	highestPause = time.Second
)

// Listen makes sessions of the connections that ln accepts; see
// tunnel.Transport.
func (p Protocol) Listen(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) {
	l, err := p.listen(ln, o)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", ln.Addr(), err)
	}
	return l, nil
}

func (p Protocol) listen(ln net.Listener, o tunnel.Options) (*listener, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	names := p.alpn(o.Link)
	conf, err := serverTLS(o.TLS, names)
	if err != nil {
		return nil, err
	}
	if err = checkCongestion(o.Link.Congestion); err != nil {
		return nil, err
	}
	budget := o.Link.Budget
	if budget <= 0 {
		budget = defaultBudget
	}
	c := link.RegistryConfig{Config: linkConfig(o), Identity: identity}
	c.Budget = link.NewBudget(budget)
	if ask := o.Link.Resume; ask != nil {
		c.Resume = func(c net.Conn) error {
			conn, cerr := overTLS(c)
			if cerr != nil {
				return cerr
			}
			return ask(p.peer(conn))
		}
	}
	registry, err := link.NewRegistry(c)
	if err != nil {
		return nil, err
	}
	return &listener{
		Listener: ln, protocol: p, names: names, tls: conf, options: o,
		registry: registry, entrance: newEntrance(maxGuests, o.Log),
	}, nil
}

// serverTLS is tunnel's, with these protocols in place of its own.
func serverTLS(c *tls.Config, names []string) (*tls.Config, error) {
	c, err := tunnel.ServerTLS(c)
	if err != nil {
		return nil, err
	}
	c.NextProtos = names
	if choose := c.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(h)
			if err != nil || chosen == nil {
				return nil, err
			}
			chosen.NextProtos = names // tunnel.ServerTLS made a copy
			return chosen, nil
		}
	}
	return c, nil
}

// identity is whose link a connection may open and resume. A node has another
// key after each renewal of its certificate: what stays is the subject.
func identity(c net.Conn) (string, error) {
	conn, err := overTLS(c)
	if err != nil {
		return "", err
	}
	certs := conn.ConnectionState().PeerCertificates
	if len(certs) == 0 {
		return "", errors.New("no client certificate")
	}
	return subject(certs[0].Subject), nil
}

// overTLS is c, which a registry has from us.
func overTLS(c net.Conn) (*tls.Conn, error) {
	conn, ok := c.(*tls.Conn)
	if !ok {
		return nil, errors.New("not a TLS connection")
	}
	return conn, nil
}

// subject spells the part of a name that says who somebody is.
func subject(n pkix.Name) string {
	orgs := slices.Clone(n.Organization)
	slices.Sort(orgs)
	return fmt.Sprintf("%q %q", n.CommonName, orgs)
}

type listener struct {
	net.Listener
	protocol Protocol
	names    []string // ALPN
	tls      *tls.Config
	options  tunnel.Options
	registry *link.Registry
	entrance *entrance

	broken       tunnel.Sparse // lines about connections of which no session came
	done, failed atomic.Uint64 // handshakes
}

// Transport implements tunnel.Doorkeeper.
func (l *listener) Transport() string { return l.protocol.Name }

// Handshakes implements tunnel.Doorkeeper.
func (l *listener) Handshakes() tunnel.Handshakes {
	underway, refused := l.entrance.count()
	return tunnel.Handshakes{Done: l.done.Load(), Failed: l.failed.Load(), Refused: refused, Underway: underway}
}

func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	shut := func() {
		_ = l.Close() // nothing could be done about it
		l.entrance.close()
	}
	stop := context.AfterFunc(ctx, shut)
	defer stop()
	var wg sync.WaitGroup
	defer func() {
		shut()
		wg.Wait() // each closes its own session, and so its link
		_ = l.registry.Close()
	}()
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			l.receive(c, func(g *guest) { wg.Go(func() { l.serve(ctx, g, f) }) })
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case passes(err):
			pause = min(max(2*pause, lowestPause), highestPause)
			l.options.Log.Warn("cannot accept a connection", "addr", l.Addr().String(), "err", err, "retry", pause)
			wait(ctx, pause)
		default:
			return fmt.Errorf("accept: %w", err)
		}
	}
}

// passes says whether an error of Accept is about one connection or a shortage:
// out of file descriptors, or a client that left before it was accepted.
func passes(err error) bool {
	code := tunnel.CodeOf(err)
	return code == tunnel.Busy || code == tunnel.Lost
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// receive has c served if there is a place for it.
func (l *listener) receive(c net.Conn, serve func(*guest)) {
	if g := l.entrance.admit(c); g != nil {
		serve(g)
	}
}

// serve shakes hands, and runs f if that makes a session.
func (l *listener) serve(ctx context.Context, g *guest, f func(context.Context, tunnel.Session)) {
	c, err := l.handshake(ctx, g)
	if err != nil {
		return
	}
	s, err := l.session(ctx, c)
	if err != nil {
		if more, ok := l.broken.Tell(c.RemoteAddr()); ok {
			l.options.Log.Info("no session came about", "addr", c.RemoteAddr().String(), "err", err, "others", more)
		}
	}
	if s == nil {
		return
	}
	f(ctx, s)
	if err := s.Close(); err != nil {
		l.options.Log.Debug("session did not close cleanly", "addr", c.RemoteAddr().String(), "err", err)
	}
}

// handshake proves who g is. On error g is closed.
func (l *listener) handshake(ctx context.Context, g *guest) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	tune(g.Conn, l.options)
	c := tls.Server(link.NewBatch(g), l.tls)
	err := g.shake(ctx, c.HandshakeContext)
	if err == nil {
		err = checkALPN(c, l.names)
	}
	if err != nil {
		l.failed.Add(1)
		g.failed(ctx, err)
		partFrom(g)
		return nil, err
	}
	l.done.Add(1)
	return c, nil
}

// session makes a session of c, or has the link take c that it is for: then there
// is no session, and no error. On error c is closed.
func (l *listener) session(ctx context.Context, c *tls.Conn) (tunnel.Session, error) {
	peer := l.protocol.peer(c)
	if !resumes(*peer.TLS) {
		if l.options.Link.Window() > 0 {
			l.options.Log.Info("session will end with its connection: the client does not resume", "addr", peer.Addr.String())
		}
		return l.protocol.Start(NewPipe(c, peer), false, l.options)
	}
	pipe, resumed, err := l.registry.Accept(ctx, c)
	if err != nil || resumed {
		return nil, err
	}
	return l.protocol.Start(NewPipe(pipe, peer), false, l.options)
}

// partFrom closes a connection on which an alert has been sent last. Closed with
// something unread, and a client sends on until it has read the alert, TCP would
// drop the alert for a reset.
func partFrom(raw net.Conn) {
	_ = tunnel.CloseWrite(raw) // none of these matters any more
	_ = raw.SetReadDeadline(time.Now().Add(parting))
	_, _ = io.CopyN(io.Discard, raw, 64<<10)
	_ = raw.Close()
}
