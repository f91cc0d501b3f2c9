// Package overh2 makes tunnel sessions of TLS connections with HTTP/2
// (RFC 9113).
//
// The frames, and the compression of headers, are those of
// golang.org/x/net/http2. Its Transport and its Server are not used, because
// they cannot carry a net.Conn: a handler ends its direction only by returning,
// which resets the other one; a body that is being read has no deadline; a reset
// is a panic; and each stream takes two goroutines and a buffer at either end.
//
// HTTP/2 lets only the client open streams, and the client is the end that
// accepted the TCP connection: the agent, which dialed it, is the HTTP/2 server.
// So that both can open streams:
//
//   - The client opens one with a CONNECT request for the authority "stream". It
//     may send at once. The answer, :status 200, says that the server's program
//     has accepted the stream. At most 256 may wait for that.
//   - The client keeps 64 CONNECT requests for the authority "offer" open.
//     The server opens a stream by answering one of them with :status 200. Each
//     that the client's program accepts is replaced by a new one. A server that
//     has used up what it was offered waits for the client's program to accept.
//
// An end of stream is a half-close, in either direction. RST_STREAM with CANCEL
// gives a stream up; with NO_ERROR it says that nobody reads what still comes.
// GOAWAY is an end's last word. No end sends PING, trailers, padding or a push.
//
// What a program writes is copied into the session's outbox, of at most 64 KiB,
// which a goroutine empties into the connection: frames that are written
// together leave together, and no call on a stream ever waits for the link any
// longer than its deadline. Streams that want room in the outbox queue for it and
// get it one frame at a time.
//
// Memory is bounded: each stream buffers at most a window of 2 MiB that nobody
// has read, each end of a session has at most Options.MaxStreams streams, and at
// most 256 more wait to be accepted. The window of the session as a whole never
// closes, so that streams which nobody reads do not hold up the others. At
// 100 ms of round trip a window lets one stream carry 20 MB/s.
package overh2

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

	"github.com/hawser-project/hawser/tunnel"
)

// ALPN tells this transport from the others on the same port (RFC 7301).
const ALPN = tunnel.ALPN + "+h2"

const (
	handshakeTimeout = 10 * time.Second
	// maxHandshakes is how many handshakes may be under way at a listener.
	maxHandshakes = 1024
)

// Transport is this package as a tunnel.Transport.
func Transport() tunnel.Transport {
	return tunnel.Transport{Name: "h2", Dial: Dial, Listen: Listen}
}

// Dial makes a session with the server at addr, HOST:PORT.
func Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	conf, err := tunnel.ClientTLS(o.TLS, addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	conf.NextProtos = []string{ALPN}
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
		err = checkALPN(c)
	}
	if err != nil {
		_ = raw.Close() // the handshake's error is the news
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return overTLS(c, false, o), nil
}

func checkALPN(c *tls.Conn) error {
	if c.ConnectionState().NegotiatedProtocol != ALPN {
		return fmt.Errorf("peer does not speak %s", ALPN)
	}
	return nil
}

// overTLS makes a session of a finished handshake and owns c.
func overTLS(c *tls.Conn, client bool, o tunnel.Options) tunnel.Session {
	state := c.ConnectionState()
	return newSession(c, tunnel.Peer{Addr: c.RemoteAddr(), TLS: &state, Transport: "h2"}, client, o)
}

// serverTLS is tunnel's with this package's protocol in place of its own.
func serverTLS(c *tls.Config) (*tls.Config, error) {
	c, err := tunnel.ServerTLS(c)
	if err != nil {
		return nil, err
	}
	c.NextProtos = []string{ALPN}
	if choose := c.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(h)
			if err != nil || chosen == nil {
				return nil, err
			}
			chosen.NextProtos = []string{ALPN} // tunnel.ServerTLS made a copy
			return chosen, nil
		}
	}
	return c, nil
}

// Listen makes sessions of the connections that ln accepts.
func Listen(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) {
	conf, err := serverTLS(o.TLS)
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
		err = checkALPN(c)
	}
	if err != nil {
		l.options.Log.Info("handshake failed", "addr", raw.RemoteAddr().String(), "err", err)
		partFrom(raw)
		return
	}
	leave()
	s := overTLS(c, true, l.options)
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
