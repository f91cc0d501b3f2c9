// Package overquic makes tunnel sessions of QUIC connections (RFC 9000) with
// github.com/quic-go/quic-go.
//
// A stream of the session's is a bidirectional QUIC stream: half-closes, resets
// and deadlines are QUIC's own, a lost packet holds up no stream but its own,
// and a peer whose address changes is followed. What the library leaves open is
// closed here:
//
//   - A peer's streams count against its limit until they are done, accepted or
//     not: there is no bound for those that wait to be accepted. So each end opens
//     one unidirectional stream, the tally, and writes a byte into it for each
//     stream that its program accepts. At most 256 may wait for theirs.
//   - Close must not be called while a Write is under way, and neither may follow
//     a cancellation. A stream here keeps the order; a Write that Close has cut
//     short ends in a reset, never in an end that looks complete.
//   - Close ends one direction. Here the other one is given up as well, at once:
//     a peer that goes on writing is told that nobody reads. QUIC's directions
//     are independent, so that what we have written still arrives.
//   - A stall of one stream can use up the window of the connection. That window
//     is as large as those of all streams together.
//   - Its idle timeout ends a session that the control stream finds well. It is
//     longer than any time the control stream can be set to.
//   - A stream exists for the peer once something has been said on it. Each begins
//     with a byte of the opener's that means nothing else. What the opener says
//     at once still goes with it.
//   - What has been received when a connection ends is lost if it has not been
//     read. That is so here as well, and the reader gets an error.
//
// Memory is bounded: each stream buffers at most a window of 2 MiB that nobody
// has read, each end of a session has at most Options.MaxStreams streams, and at
// most 256 more wait to be accepted. At 100 ms of round trip a window lets one
// stream carry 20 MB/s.
//
// A server that was killed and is back has nothing to answer the packets of its
// former sessions with but a stateless reset (RFC 9000, 10.3), whose key is
// derived from that of its certificate.
//
// A listener asks a client whose address is not verified to come again with a
// token (RFC 9000, 8.1.2) while many handshakes are under way, and refuses those
// beyond 1,024.
package overquic

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	window  = 2 << 20
	backlog = 256
	// idle is beyond the longest silence that tunnel.Welcome admits, a day.
	idle = 25 * time.Hour

	handshakeTimeout = 10 * time.Second
	// maxHandshakes is how many handshakes may be under way at a listener. From
	// fewHandshakes on, each client has to show that its address is its own.
	maxHandshakes = 1024
	fewHandshakes = 64
)

// Transport is this package as a tunnel.Transport. It cannot listen on a
// net.Listener: see ListenPacket.
func Transport() tunnel.Transport {
	return tunnel.Transport{
		Name: "quic",
		Dial: Dial,
		Listen: func(ln net.Listener, _ tunnel.Options) (tunnel.Listener, error) {
			return nil, fmt.Errorf("listen on %s: QUIC needs a packet connection", ln.Addr())
		},
	}
}

// config is QUIC's, with room for the streams of o.
func config(o tunnel.Options) *quic.Config {
	streams := o.Streams() + backlog
	return &quic.Config{
		HandshakeIdleTimeout:           handshakeTimeout / 2, // it may take twice that in all
		MaxIdleTimeout:                 idle,
		InitialStreamReceiveWindow:     window,
		MaxStreamReceiveWindow:         window,
		InitialConnectionReceiveWindow: 2 * window * uint64(streams), // of both ends
		MaxConnectionReceiveWindow:     2 * window * uint64(streams),
		MaxIncomingStreams:             int64(streams),
		MaxIncomingUniStreams:          1, // the tally
	}
}

// Dial makes a session with the server at addr, HOST:PORT, over UDP.
func Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	s, err := dial(ctx, addr, o)
	if err != nil {
		return nil, fmt.Errorf("connect to %s over UDP: %w", addr, err)
	}
	return s, nil
}

func dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	tlsConf, err := tunnel.ClientTLS(o.TLS, addr)
	if err != nil {
		return nil, err
	}
	pc, to, err := socket(ctx, addr, o)
	if err != nil {
		return nil, err
	}
	t := &quic.Transport{Conn: pc}
	shut := func() {
		_ = t.Close() // nothing could be done about either
		_ = pc.Close()
	}
	hctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	c, err := t.Dial(hctx, to, tlsConf, config(o))
	if err != nil {
		shut()
		return nil, alert(err)
	}
	s, err := newSession(c, o, shut)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// socket is what a session with addr goes through: one of our own, or what
// o.Dial makes.
func socket(ctx context.Context, addr string, o tunnel.Options) (net.PacketConn, net.Addr, error) {
	if o.Dial != nil {
		c, err := o.Dial(ctx, "udp", addr)
		if err != nil {
			return nil, nil, err
		}
		return connected{c}, c.RemoteAddr(), nil
	}
	// To connect a UDP socket sends nothing, resolves the name, and picks an
	// address to which there is a way. QUIC wants a socket that is not connected.
	probe, err := new(net.Dialer).DialContext(ctx, "udp", addr)
	if err != nil {
		return nil, nil, err
	}
	to, local := probe.RemoteAddr(), probe.LocalAddr().(*net.UDPAddr)
	if err = probe.Close(); err != nil {
		return nil, nil, err
	}
	network := "udp6"
	if local.IP.To4() != nil {
		network = "udp4"
	}
	pc, err := new(net.ListenConfig).ListenPacket(ctx, network, ":0")
	return pc, to, err
}

// A connected packet connection is a net.Conn that keeps packets apart.
type connected struct{ net.Conn }

func (c connected) ReadFrom(p []byte) (int, net.Addr, error) {
	n, err := c.Read(p)
	return n, c.RemoteAddr(), err
}

func (c connected) WriteTo(p []byte, _ net.Addr) (int, error) { return c.Write(p) }

// ListenPacket makes sessions of the QUIC connections that come to pc. It owns
// pc.
func ListenPacket(pc net.PacketConn, o tunnel.Options) (tunnel.Listener, error) {
	conf, err := tunnel.ServerTLS(o.TLS)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", pc.LocalAddr(), err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.TLS = conf
	return &listener{conn: pc, options: o}, nil
}

type listener struct {
	conn       net.PacketConn
	options    tunnel.Options // with the TLS configuration that is used
	handshakes atomic.Int64   // under way
}

func (l *listener) Addr() net.Addr { return l.conn.LocalAddr() }

func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	t := &quic.Transport{
		Conn:                l.conn,
		StatelessResetKey:   resetKey(l.options.TLS),
		ConnContext:         l.admit,
		VerifySourceAddress: func(net.Addr) bool { return l.handshakes.Load() >= fewHandshakes },
	}
	defer func() {
		_ = t.Close() // nothing could be done about either
		_ = l.conn.Close()
	}()
	ln, err := t.Listen(l.options.TLS, config(l.options))
	if err != nil {
		return fmt.Errorf("listen on %s: %w", l.conn.LocalAddr(), err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = ln.Close() }() // leaves the sessions alone; never fails
	for {
		c, err := ln.Accept(ctx)
		switch {
		case err == nil:
			wg.Go(func() { l.serve(ctx, c, f) })
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		default:
			return fmt.Errorf("accept: %w", err)
		}
	}
}

// resetKey is a secret that the server of this certificate has again when it has
// been restarted, so that it can tell clients of its former life that their
// connections are no more (RFC 9000, 10.3). It is nil if the certificate's key
// cannot be read; then those clients find out by themselves.
func resetKey(c *tls.Config) *quic.StatelessResetKey {
	cert, err := certificate(c)
	if err != nil || cert == nil {
		return nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return nil
	}
	secret, err := hkdf.Key(sha256.New, der, nil, "hawser/1 stateless reset", len(quic.StatelessResetKey{}))
	if err != nil {
		return nil
	}
	return (*quic.StatelessResetKey)(secret)
}

// certificate is the one that c shows now to a client that says nothing.
func certificate(c *tls.Config) (*tls.Certificate, error) {
	hello := new(tls.ClientHelloInfo)
	if c.GetConfigForClient != nil {
		chosen, err := c.GetConfigForClient(hello)
		if err != nil {
			return nil, err
		}
		if chosen != nil {
			c = chosen
		}
	}
	switch {
	case c.GetCertificate != nil:
		return c.GetCertificate(hello)
	case len(c.Certificates) > 0:
		return &c.Certificates[0], nil
	default:
		return nil, errors.New("no certificate")
	}
}

// shaken is where a connection's context keeps the func to call when the
// handshake is over.
type shaken struct{}

// admit counts the handshakes and refuses more than there may be.
func (l *listener) admit(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
	if l.handshakes.Add(1) > maxHandshakes {
		l.handshakes.Add(-1)
		return nil, errors.New("too many handshakes")
	}
	done := sync.OnceFunc(func() { l.handshakes.Add(-1) })
	context.AfterFunc(ctx, done) // it has failed, or is over and so is the connection
	return context.WithValue(ctx, shaken{}, done), nil
}

// serve runs f.
func (l *listener) serve(ctx context.Context, c *quic.Conn, f func(context.Context, tunnel.Session)) {
	if done, ok := c.Context().Value(shaken{}).(func()); ok {
		done()
	}
	s, err := newSession(c, l.options, func() {})
	if err != nil {
		l.options.Log.Info("cannot make a session", "addr", c.RemoteAddr().String(), "err", err)
		return
	}
	f(ctx, s)
	if err := s.Close(); err != nil {
		l.options.Log.Debug("session did not close cleanly", "addr", c.RemoteAddr().String(), "err", err)
	}
}
