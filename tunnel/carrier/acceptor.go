// Acceptor: accepts connections, does their TLS handshakes, and makes sessions of them.

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
	// handshakeTimeout allows for three round trips of three seconds, with a packet lost in
	// each. A slow client takes only a place, and loses it to newcomers: see admission.
	handshakeTimeout = 30 * time.Second
	// alertTimeout bounds how long a client is read from after an alert was sent to it.
	alertTimeout = time.Second
	// maxBeginning bounds the connections of one identity that have had their handshake and are
	// neither a session yet nor part of one. It is the most connections that a session may have,
	// which may all come at once.
	maxBeginning = tunnel.MaxConnections
)

// A listener makes sessions of the connections that it accepts.
type listener struct {
	net.Listener
	name      string
	tls       *tls.Config
	below     func(net.Conn) net.Conn
	begin     func(context.Context, *tls.Conn) (tunnel.Session, error)
	options   tunnel.Options
	admission *admission
	failedLog strangers.LogLimiter // of connections that did not become sessions

	done, failed, noSession atomic.Uint64 // handshakes

	mu        sync.Mutex     // guards the following
	beginning map[string]int // connections for which begin is running, by identity
}

// ErrLogged is wrapped by an error of begin that has been logged: see Listen.
var ErrLogged = errors.New("has been logged")

// Listen makes a tunnel.Listener of ln, which it owns, for the transport of that name.
// Clients must offer one of the protocols in alpn (RFC 7301). below, such as Bare, wraps each
// connection below TLS. begin makes a session of a TLS connection, which it owns; it
// returns neither a session nor an error if the connection has joined a session. An error of
// begin is counted, and logged unless it wraps ErrLogged. begin is not called for more than
// maxBeginning connections of one Identity at a time; further ones are closed.
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
	return &listener{
		Listener: strangers.Steady(ln, o.Logger()), name: name, tls: conf, below: below, begin: begin, options: o,
		admission: newAdmission(maxHandshakes, o.Logger()), beginning: make(map[string]int),
	}, nil
}

// Transport implements tunnel.Listener.
func (l *listener) Transport() string { return l.name }

// Handshakes implements tunnel.Listener.
func (l *listener) Handshakes() tunnel.Handshakes {
	e := l.admission
	return tunnel.Handshakes{Done: l.done.Load(), Failed: l.failed.Load(), NoSession: l.noSession.Load(), Refused: e.refused.Load(), Underway: len(e.places)}
}

// Serve implements tunnel.Listener.
func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	shut := func() {
		_ = l.Close() // Serve returns either way
		l.admission.close()
	}
	defer context.AfterFunc(ctx, shut)()
	var wg sync.WaitGroup
	defer func() {
		shut()
		wg.Wait()
	}()
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			if g := l.admission.admit(c); g != nil {
				wg.Go(func() { l.serve(ctx, g, f) })
			}
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		default:
			return fmt.Errorf("accept: %w", err)
		}
	}
}

// serve calls f with the session that g begins, if it begins one. All of an idle session's stack
// counts (server/session.go), so what is done before is in another function.
func (l *listener) serve(ctx context.Context, g *handshake, f func(context.Context, tunnel.Session)) {
	if s := l.session(ctx, g); s != nil {
		f(ctx, s)
		_ = s.Close() // never fails
	}
}

// session returns the session that g begins; nil if it begins none, which has been logged.
func (l *listener) session(ctx context.Context, g *handshake) tunnel.Session {
	t, err := l.handshake(ctx, g)
	if err != nil {
		return nil
	}
	s, err := l.beginBounded(ctx, t)
	switch {
	case err == nil:
		return s
	case ctx.Err() != nil:
		return nil
	}
	l.noSession.Add(1)
	if !errors.Is(err, ErrLogged) {
		if more, ok := l.failedLog.Allow(t.RemoteAddr()); ok {
			l.options.Logger().Info("no session came about", "addr", t.RemoteAddr().String(), "err", err, "others", more)
		}
	}
	return nil
}

// beginBounded calls begin, within maxBeginning.
func (l *listener) beginBounded(ctx context.Context, t *tls.Conn) (tunnel.Session, error) {
	who, _ := Identity(PeerOf(t, l.name)) // peers without one are one identity together
	if !l.enter(who) {
		_ = t.Close() // the peer tries again
		return nil, fmt.Errorf("%w: %s has %d connections that are no session yet", tunnel.Busy, who, maxBeginning)
	}
	defer l.leave(who)
	return l.begin(ctx, t)
}

// enter counts a connection of an identity for which begin is to be called, unless there are
// too many.
func (l *listener) enter(who string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.beginning[who] >= maxBeginning {
		return false
	}
	l.beginning[who]++
	return true
}

// leave undoes enter.
func (l *listener) leave(who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.beginning[who]--; l.beginning[who] == 0 {
		delete(l.beginning, who)
	}
}

// handshake does the TLS handshake of g. On error g is closed.
func (l *listener) handshake(ctx context.Context, g *handshake) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	tune(g.Conn, l.options)
	c := tls.Server(l.below(g), l.tls)
	err := g.run(ctx, func(ctx context.Context) error {
		if err := c.HandshakeContext(ctx); err != nil {
			return err
		}
		return checkALPN(c.ConnectionState(), l.tls.NextProtos)
	})
	switch {
	case err == nil:
		l.done.Add(1)
		return c, nil
	case errors.Is(err, tunnel.Busy): // admission has counted it, and told the client
	default:
		l.failed.Add(1)
		closeAfterAlert(g.Conn)
	}
	return nil, err
}

// closeAfterAlert closes a connection on which an alert was sent. It reads what the client
// still sends: TCP resets a connection that is closed with unread data, and the client would
// lose the alert.
func closeAfterAlert(raw net.Conn) {
	_ = tunnel.CloseWrite(raw) // an error means that the client has left
	_ = raw.SetReadDeadline(time.Now().Add(alertTimeout))
	_, _ = io.CopyN(io.Discard, raw, 64<<10)
	_ = raw.Close()
}
