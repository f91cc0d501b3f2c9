// Listening: TLS connections of strangers, until their handshakes are over; and the sessions
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

// A listener makes sessions of the connections that it accepts. Strangers may be in their
// handshakes in bounded number: see the package.
type listener struct {
	net.Listener
	name     string
	tls      *tls.Config
	below    func(net.Conn) net.Conn
	begin    func(context.Context, *tls.Conn) (tunnel.Session, error)
	options  tunnel.Options
	entrance *entrance
	broken   strangers.Sparse // lines about connections of which no session came

	done, failed atomic.Uint64 // handshakes
}

// Listen makes a tunnel.Listener for the transport of a name, which speaks these protocols
// (RFC 7301) and owns ln. below, which may be nil, makes what goes between TLS and each
// connection. begin makes a session of each TLS connection and owns that. It returns no
// session and no error if the connection was not to begin one.
func Listen(ln net.Listener, name string, alpn []string, below func(net.Conn) net.Conn, o tunnel.Options,
	begin func(context.Context, *tls.Conn) (tunnel.Session, error),
) (tunnel.Listener, error) {
	conf, err := ServerTLS(o.TLS, alpn...)
	if err == nil {
		err = checkCongestion(o.Link.Congestion)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", ln.Addr(), err)
	}
	if below == nil {
		below = func(c net.Conn) net.Conn { return c }
	}
	e := newEntrance(maxHandshakes, o.Logger())
	return &listener{Listener: ln, name: name, tls: conf, below: below, begin: begin, options: o, entrance: e}, nil
}

// Transport implements tunnel.Listener.
func (l *listener) Transport() string { return l.name }

// Handshakes implements tunnel.Listener.
func (l *listener) Handshakes() tunnel.Handshakes {
	e := l.entrance
	return tunnel.Handshakes{Done: l.done.Load(), Failed: l.failed.Load(), Refused: e.turned.Load(), Underway: len(e.places)}
}

// Serve implements tunnel.Listener.
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
		wg.Wait()
	}()
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			if g := l.entrance.admit(c); g != nil {
				wg.Go(func() { l.serve(ctx, g, f) })
			}
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case tunnel.CodeOf(err) == tunnel.Busy || tunnel.CodeOf(err) == tunnel.Lost:
			// File descriptors are short, or a client left before it was accepted.
			pause = min(max(2*pause, lowestPause), highestPause)
			l.options.Logger().Warn("cannot accept a connection", "addr", l.Addr().String(), "err", err, "retry", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		default:
			return fmt.Errorf("accept: %w", err)
		}
	}
}

// serve calls f with the session that g begins, if it begins one.
func (l *listener) serve(ctx context.Context, g *handshake, f func(context.Context, tunnel.Session)) {
	t, err := l.handshake(ctx, g)
	if err != nil {
		return // the log has it
	}
	s, err := l.begin(ctx, t)
	switch {
	case err == nil && s != nil:
		f(ctx, s)
		_ = s.Close() // never fails
	case err != nil && ctx.Err() == nil:
		if more, ok := l.broken.Tell(t.RemoteAddr()); ok {
			l.options.Logger().Info("no session came about", "addr", t.RemoteAddr().String(), "err", err, "others", more)
		}
	}
}

// handshake proves who g is. On error g is closed.
func (l *listener) handshake(ctx context.Context, g *handshake) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	tune(g.Conn, l.options)
	c := tls.Server(l.below(g), l.tls)
	err := g.shake(ctx, func(ctx context.Context) error {
		if err := c.HandshakeContext(ctx); err != nil {
			return err
		}
		return checkALPN(c.ConnectionState(), l.tls.NextProtos)
	})
	switch {
	case err == nil:
		l.done.Add(1)
		return c, nil
	case errors.Is(err, tunnel.Busy): // it has been counted, and told
	default:
		l.failed.Add(1)
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
