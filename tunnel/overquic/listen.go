// Listener: the accepting end's socket, and the bounds on handshakes.

package overquic

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// maxHandshakes bounds the handshakes of a listener that are in progress, and
	// maxOfSource those of one source. Beyond fewHandshakes each client has to prove its
	// address first (RFC 9000, 8.1.2).
	maxHandshakes = 1024
	maxOfSource   = 256
	fewHandshakes = 64
)

// ListenPacket makes sessions of the QUIC connections to pc, which it owns.
func ListenPacket(pc net.PacketConn, o tunnel.Options) (tunnel.Listener, error) {
	conf, err := carrier.ServerTLS(o.TLS, ALPN)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", pc.LocalAddr(), err)
	}
	o.TLS = conf
	return &listener{conn: pc, options: o}, nil
}

type listener struct {
	conn       net.PacketConn
	options    tunnel.Options // TLS is the effective configuration
	handshakes atomic.Int64   // in progress
	granted    atomic.Int64   // to the window of the connection that admit is called for next

	mu         sync.Mutex             // guards the following
	sources    strangers.SourceCounts // of handshakes
	refusedLog strangers.LogLimiter   // of refused clients

	done, failed, refused atomic.Uint64 // handshakes
}

// Transport implements tunnel.Listener.
func (l *listener) Transport() string { return Name }

// Handshakes implements tunnel.Listener.
func (l *listener) Handshakes() tunnel.Handshakes {
	return tunnel.Handshakes{
		Done: l.done.Load(), Failed: l.failed.Load(), Refused: l.refused.Load(), Underway: int(l.handshakes.Load()),
	}
}

func (l *listener) Addr() net.Addr { return l.conn.LocalAddr() }

func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	t := &quic.Transport{
		Conn:                l.conn,
		StatelessResetKey:   resetKey(l.options.TLS, l.options.Link.Server),
		ConnContext:         l.admit,
		VerifySourceAddress: func(net.Addr) bool { return l.handshakes.Load() >= fewHandshakes },
	}
	defer func() {
		_ = t.Close() // Serve returns either way
		_ = l.conn.Close()
	}()
	conf := config(l.options, 0)
	conf.GetConfigForClient = l.grant
	ln, err := t.Listen(l.options.TLS, conf)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", l.conn.LocalAddr(), err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = ln.Close() }() // does not end the sessions; never fails
	for {
		c, err := ln.Accept(ctx)
		switch {
		case err == nil:
			if over, ok := c.Context().Value(overKey{}).(func(*atomic.Uint64)); ok {
				over(&l.done)
			}
			wg.Go(func() {
				s := newSession(c, nil, l.options.Streams())
				f(ctx, s)
				_ = s.Close() // never fails
			})
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		default:
			return fmt.Errorf("accept: %w", err)
		}
	}
}

// resetKey is the secret of stateless resets (RFC 9000, 10.3). It is derived from the
// certificate's key, so that a restarted server can tell clients that their connections are
// lost, and from the server's name, so that no other server with the same certificate can
// (RFC 9000, 21.11). It is nil if the key cannot be read; then those clients wait for a
// timeout.
func resetKey(c *tls.Config, server string) *quic.StatelessResetKey {
	var cert *tls.Certificate
	switch {
	case c.GetCertificate != nil:
		cert, _ = c.GetCertificate(new(tls.ClientHelloInfo)) // nil on error
	case len(c.Certificates) > 0:
		cert = &c.Certificates[0]
	}
	if cert == nil {
		return nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return nil
	}
	secret, err := hkdf.Key(sha256.New, der, nil, ALPN+" stateless reset "+server, len(quic.StatelessResetKey{}))
	if err != nil {
		return nil
	}
	return (*quic.StatelessResetKey)(secret)
}

// overKey is the context key of a func(count *atomic.Uint64) that, at its first call,
// releases the place of a handshake and counts its result. The library passes only this
// context from admit to Accept.
type overKey struct{}

// grant grants bytes to the window of the connection that admit is called for next. While
// many handshakes are in progress it grants nothing.
func (l *listener) grant(*quic.ClientInfo) (*quic.Config, error) {
	n := 0
	if l.handshakes.Load() < fewHandshakes {
		n = l.options.Shared().Share(firstStream, headroom)
	}
	l.granted.Add(int64(n))
	return config(l.options, n), nil
}

// admit counts the handshakes, and refuses those above the bounds.
func (l *listener) admit(ctx context.Context, client *quic.ClientInfo) (context.Context, error) {
	source, granted := strangers.SourceOf(client.RemoteAddr), int(l.granted.Swap(0))
	if !l.enter(source) {
		l.refused.Add(1)
		if more, ok := l.refusedLog.Allow(client.RemoteAddr); ok {
			l.options.Logger().Warn("too many handshakes over UDP at a time: clients are sent away", "addr", client.RemoteAddr.String(), "others", more)
		}
		l.options.Shared().Return(granted)
		return nil, errors.New("too many handshakes")
	}
	var once sync.Once
	over := func(count *atomic.Uint64) {
		once.Do(func() {
			l.leave(source)
			count.Add(1)
		})
	}
	context.AfterFunc(ctx, func() {
		over(&l.failed) // no effect if the handshake was finished
		l.options.Shared().Return(granted)
	})
	return context.WithValue(ctx, overKey{}, over), nil
}

// enter takes a place for a handshake, and says whether there was one.
func (l *listener) enter(s strangers.Source) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handshakes.Load() >= maxHandshakes || l.sources.Of(s) >= maxOfSource {
		return false
	}
	l.sources.Add(s)
	l.handshakes.Add(1)
	return true
}

// leave releases the place.
func (l *listener) leave(s strangers.Source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sources.Remove(s)
	l.handshakes.Add(-1)
}
