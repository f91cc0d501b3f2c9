// The accepting end: handshakes, and the links that connections belong to.

package carrier

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/link"
)

const (
	// defaultBudget is LinkOptions.Budget's.
	defaultBudget = 256 << 20
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
	acceptor, err := NewAcceptor(ln, p.alpn(o.Link), batched, o)
	if err != nil {
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
	return &listener{Acceptor: acceptor, protocol: p, options: o, registry: registry}, nil
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
	*Acceptor
	protocol Protocol
	options  tunnel.Options
	registry *link.Registry
	broken   tunnel.Sparse // lines about connections of which no session came
}

// Transport implements tunnel.Doorkeeper.
func (l *listener) Transport() string { return l.protocol.Name }

func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	defer func() { _ = l.registry.Close() }() // by then each has closed its session, and so its link
	return l.Acceptor.Serve(ctx, func(ctx context.Context, c *tls.Conn) { l.serve(ctx, c, f) })
}

// serve runs f if c makes a session.
func (l *listener) serve(ctx context.Context, c *tls.Conn, f func(context.Context, tunnel.Session)) {
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
