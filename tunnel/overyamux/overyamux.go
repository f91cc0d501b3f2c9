// Package overyamux makes tunnel sessions of TLS connections with
// github.com/hashicorp/yamux.
//
// The multiplexer is the library's. What the library leaves open is closed
// here, on two floors. A wire sits between yamux and TLS and looks at the frame
// headers as they pass; a stream wraps yamux's. For each trap in the library:
//
//   - A stuck open ends the whole session after StreamOpenTimeout, and a write
//     that takes longer than ConnectionWriteTimeout fails with its bytes still
//     on their way and the window miscounted. Both timers are off: the control
//     stream decides when a session is dead.
//   - OpenStream knows no context. Open waits beside it, and a stream that
//     nobody wants any more is reset as soon as it is open.
//   - Close is a half-close, and a half-closed stream is reset when
//     StreamCloseTimeout has passed, however busy its other half. That timer is
//     off too. Close of a stream here sends the end, reads on for a bounded time
//     and a bounded number of bytes, and then resets, so that a peer that goes on
//     talking learns that nobody listens.
//   - There is no reset. The wire writes the frame for it, between two of
//     yamux's, and shows yamux the same frame as if the peer had sent it, which
//     is what makes yamux forget the stream.
//   - When a session dies, Read of every stream returns io.EOF. The wire knows
//     which streams the peer really ended; all others get an error.
//   - A deadline that has passed is not looked at while there is something to
//     read or room to write, and does not interrupt a write that waits for the
//     link. Both are done here; see stream.Write for what remains.
//   - Every frame is two writes, so two TLS records and two system calls. The
//     wire joins them.
//   - Each ping is answered by a goroutine of its own. Nobody here pings, and a
//     peer that does is cut off.
//   - The sentinels unwrap to nothing. Errors here unwrap to net.ErrClosed,
//     os.ErrDeadlineExceeded, syscall.ECONNRESET and tunnel.Lost.
//
// Memory is bounded: each stream buffers at most a window, each end of a session
// has at most Options.MaxStreams streams, and at most 256 more wait to be
// accepted.
package overyamux

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// window is how much of a stream may be on its way unread. At 100 ms of
	// round trip it lets one stream carry 20 MB/s.
	window = 2 << 20
	// backlog is how many streams may wait to be accepted. Both ends must agree
	// on it: it is part of the protocol.
	backlog = 256

	handshakeTimeout = 10 * time.Second
	// maxHandshakes is how many handshakes may be under way at a listener.
	maxHandshakes = 1024
)

// Transport is this package as a tunnel.Transport.
func Transport() tunnel.Transport {
	return tunnel.Transport{Name: "yamux", Dial: Dial, Listen: Listen}
}

// config is yamux's, without any of its timers.
func config() *yamux.Config {
	return &yamux.Config{
		AcceptBacklog:          backlog,
		EnableKeepAlive:        false,
		KeepAliveInterval:      time.Hour, // unused, but may not be zero
		ConnectionWriteTimeout: 100 * 365 * 24 * time.Hour,
		MaxStreamWindowSize:    window,
		StreamOpenTimeout:      0,
		StreamCloseTimeout:     0,
		LogOutput:              io.Discard, // what it says also comes as an error
	}
}

// Dial makes a session with the server at addr, HOST:PORT.
func Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	conf, err := tunnel.ClientTLS(o.TLS, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	dial := o.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	raw, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	c := tls.Client(raw, conf)
	err = c.HandshakeContext(ctx)
	if err == nil {
		err = tunnel.CheckALPN(c.ConnectionState())
	}
	if err != nil {
		_ = raw.Close() // the handshake's error is the news
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return overTLS(c, true, o)
}

// overTLS makes a session of a finished handshake and owns c.
func overTLS(c *tls.Conn, client bool, o tunnel.Options) (tunnel.Session, error) {
	state := c.ConnectionState()
	return newSession(c, tunnel.Peer{Addr: c.RemoteAddr(), TLS: &state, Transport: "yamux"}, client, o)
}

// Listen makes sessions of the connections that ln accepts.
func Listen(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) {
	conf, err := tunnel.ServerTLS(o.TLS)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", ln.Addr(), err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &listener{Listener: ln, tls: conf, options: o, lobby: tunnel.NewLobby(maxHandshakes)}, nil
}

type listener struct {
	net.Listener
	tls     *tls.Config
	options tunnel.Options
	lobby   *tunnel.Lobby // those in their handshake
}

func (l *listener) Serve(ctx context.Context, f func(context.Context, tunnel.Session)) error {
	shut := func() {
		_ = l.Close() // nothing could be done about it
		l.lobby.Close()
	}
	stop := context.AfterFunc(ctx, shut)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer shut()
	for {
		c, err := l.Accept()
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

// serve shakes hands and runs f.
func (l *listener) serve(ctx context.Context, raw net.Conn, f func(context.Context, tunnel.Session)) {
	leave := l.lobby.Enter(raw)
	defer leave()
	hctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	c := tls.Server(raw, l.tls)
	err := c.HandshakeContext(hctx)
	cancel()
	if err == nil {
		err = tunnel.CheckALPN(c.ConnectionState())
	}
	if err != nil {
		l.options.Log.Info("handshake failed", "addr", raw.RemoteAddr().String(), "err", err)
		partFrom(raw)
		return
	}
	s, err := overTLS(c, false, l.options)
	if err != nil {
		l.options.Log.Error("cannot make a session", "addr", raw.RemoteAddr().String(), "err", err)
		return
	}
	leave()
	f(ctx, s)
	if err := s.Close(); err != nil {
		l.options.Log.Debug("session did not close cleanly", "addr", raw.RemoteAddr().String(), "err", err)
	}
}

// partFrom closes a connection on which an alert has been sent last. Closed with
// something unread, and a client sends on until it has read the alert, TCP would
// drop the alert for a reset.
func partFrom(raw net.Conn) {
	_ = tunnel.CloseWrite(raw) // none of these matters any more
	_ = raw.SetReadDeadline(time.Now().Add(lastWords))
	_, _ = io.CopyN(io.Discard, raw, 64<<10)
	_ = raw.Close()
}
