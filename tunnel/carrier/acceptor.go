// Acceptor: TLS connections of strangers, until their handshakes are over; and the sessions
// that come of them.

package carrier

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
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

// An Acceptor makes TLS connections of what a listener accepts, for strangers in
// bounded number: see the package.
type Acceptor struct {
	net.Listener
	names    []string // ALPN
	tls      *tls.Config
	below    func(net.Conn) net.Conn
	options  tunnel.Options
	entrance *entrance

	done, failed atomic.Uint64 // handshakes
}

// NewAcceptor makes an Acceptor that owns ln and speaks these protocols (RFC 7301).
// below, which may be nil, makes what goes between TLS and each connection.
func NewAcceptor(ln net.Listener, alpn []string, below func(net.Conn) net.Conn, o tunnel.Options) (*Acceptor, error) {
	conf, err := ServerTLS(o.TLS, alpn...)
	if err != nil {
		return nil, err
	}
	if err = checkCongestion(o.Link.Congestion); err != nil {
		return nil, err
	}
	if below == nil {
		below = func(c net.Conn) net.Conn { return c }
	}
	return &Acceptor{
		Listener: ln, names: alpn, tls: conf, below: below, options: o,
		entrance: newEntrance(maxHandshakes, o.Logger()),
	}, nil
}

// Handshakes implements tunnel.Doorkeeper.
func (a *Acceptor) Handshakes() tunnel.Handshakes {
	e := a.entrance
	return tunnel.Handshakes{Done: a.done.Load(), Failed: a.failed.Load(), Refused: e.turned.Load(), Underway: len(e.places)}
}

// Serve accepts until ctx is done and calls f for each connection whose handshake is
// over, in a goroutine of its own. f owns the connection. Serve returns once every f
// has: f must watch its ctx, which is done when Serve's is. Serve closes the listener.
func (a *Acceptor) Serve(ctx context.Context, f func(context.Context, *tls.Conn)) error {
	shut := func() {
		_ = a.Close() // nothing could be done about it
		a.entrance.close()
	}
	stop := context.AfterFunc(ctx, shut)
	defer stop()
	var wg sync.WaitGroup
	defer func() {
		shut()
		wg.Wait()
	}()
	pause := time.Duration(0)
	for {
		c, err := a.Accept()
		switch {
		case err == nil:
			pause = 0
			if g := a.entrance.admit(c); g != nil {
				wg.Go(func() {
					if t, herr := a.handshake(ctx, g); herr == nil {
						f(ctx, t)
					}
				})
			}
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case passes(err):
			pause = min(max(2*pause, lowestPause), highestPause)
			a.options.Logger().Warn("cannot accept a connection", "addr", a.Addr().String(), "err", err, "retry", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		default:
			return fmt.Errorf("accept: %w", err)
		}
	}
}

// A listener makes sessions of what an Acceptor accepts.
type listener struct {
	*Acceptor
	name   string
	accept func(context.Context, *tls.Conn) (tunnel.Session, error)
	broken strangers.Sparse // lines about connections of which no session came
}

// Listen makes a tunnel.Doorkeeper for the transport of a name, which speaks one protocol and
// owns ln. accept makes a session of each connection and owns that. It returns no session
// and no error if the connection was not to begin one.
func Listen(ln net.Listener, name, alpn string, o tunnel.Options, accept func(context.Context, *tls.Conn) (tunnel.Session, error)) (tunnel.Listener, error) {
	a, err := NewAcceptor(ln, []string{alpn}, nil, o)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", ln.Addr(), err)
	}
	return &listener{Acceptor: a, name: name, accept: accept}, nil
}

// Transport implements tunnel.Doorkeeper.
func (l *listener) Transport() string { return l.name }

// Serve implements tunnel.Listener.
func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	return l.Acceptor.Serve(ctx, func(ctx context.Context, t *tls.Conn) {
		s, err := l.accept(ctx, t)
		switch {
		case err == nil && s != nil:
			f(ctx, s)
			_ = s.Close() // never fails
		case err != nil && ctx.Err() == nil:
			if more, ok := l.broken.Tell(t.RemoteAddr()); ok {
				l.options.Logger().Info("no session came about", "addr", t.RemoteAddr().String(), "err", err, "others", more)
			}
		}
	})
}

// passes says whether an error of Accept is about one connection or a shortage:
// out of file descriptors, or a client that left before it was accepted.
func passes(err error) bool {
	code := tunnel.CodeOf(err)
	return code == tunnel.Busy || code == tunnel.Lost
}

// handshake proves who g is. On error g is closed.
func (a *Acceptor) handshake(ctx context.Context, g *handshake) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	tune(g.Conn, a.options)
	c := tls.Server(a.below(g), a.tls)
	err := g.shake(ctx, func(ctx context.Context) error {
		if err := c.HandshakeContext(ctx); err != nil {
			return err
		}
		return checkALPN(c.ConnectionState(), a.names)
	})
	switch {
	case err == nil:
		a.done.Add(1)
		return c, nil
	case errors.Is(err, tunnel.Busy): // it has been counted, and told
	default:
		a.failed.Add(1)
		partFrom(g.Conn)
	}
	return nil, err
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
