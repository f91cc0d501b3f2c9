// Package overyamux makes tunnel sessions of TLS connections with the multiplexer of
// github.com/hashicorp/yamux, as it is. A peer that runs the bare library on a TLS
// connection with this ALPN name speaks the same protocol: the dialing end is yamux's
// client, the other one its server.
//
// What the library does not have, a session does not have either:
//
//   - A session ends with its connection.
//   - There is no reset. Abort is Close. Close sends FIN, as CloseWrite does, and this
//     end reads no more; the peer reads the end of the stream. If the peer does not end
//     its own direction within closeTimeout, the library resets the stream.
//   - The library's timeout begins with CloseWrite as well. A stream may be half-closed
//     for that long. After it Read fails even if the peer has ended its direction in
//     time, because the library does not say which of the two it was.
//   - A write deadline bounds the wait for the peer's window. The wait for a connection
//     that takes nothing is bounded by writeTimeout, and then the session ends.
//
// The bounds: as many streams of a session as Options.MaxStreams are opened by either
// end at a time; the accepting end has that many and backlog more. Streams count until
// the library forgets them, which is closeTimeout after this end has closed one and the
// peer has not. The library resets streams beyond backlog that wait to be accepted. A
// stream holds up to 256 KiB that were not read, in a buffer of up to twice that size. A
// stream that does nothing has no goroutine, a session has four. A peer that exceeds a
// bound of guard.go ends the session.
package overyamux

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// Name is the transport's; ALPN tells its connections from others on the same port
	// (RFC 7301).
	Name = "yamux"
	ALPN = "hawser-yamux/2"

	// backlog is how many streams may wait to be accepted. The library assumes that
	// both ends have the same, and this is its default.
	backlog = 256
	// closeTimeout is how long a stream may be closed at this end alone. Shorter, and
	// half-closed streams are lost; longer, and a peer that goes on writing to a stream
	// which nobody reads holds it for longer.
	closeTimeout = time.Minute
	// writeTimeout is how long the connection may take nothing, and how long a peer may
	// take to answer a ping. With the default interval between pings a dead peer is
	// found within 20 seconds.
	writeTimeout = 6 * time.Second
)

// Transport is this package as a tunnel.Transport.
func Transport() tunnel.Transport {
	return tunnel.Transport{Name: Name, Can: tunnel.Capabilities{HalfClose: true}, Dial: Dial, Listen: Listen}
}

// A startFunc is yamux.Client or yamux.Server.
type startFunc func(io.ReadWriteCloser, *yamux.Config) (*yamux.Session, error)

// Dial makes a session with the server at addr, HOST:PORT. ctx bounds the dialing only.
func Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	begin := func(_ context.Context, _ *carrier.Dialer, c *tls.Conn) (tunnel.Session, error) {
		return newSession(c, carrier.PeerOf(c, Name), yamux.Client, config(o), o)
	}
	return carrier.Dial(ctx, addr, ALPN, carrier.Bare, o, begin)
}

// Listen makes sessions of the connections that ln accepts; see tunnel.Transport.
func Listen(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) {
	begin := func(_ context.Context, c *tls.Conn) (tunnel.Session, error) {
		return newSession(c, carrier.PeerOf(c, Name), yamux.Server, config(o), o)
	}
	return carrier.Listen(ln, Name, []string{ALPN}, carrier.Bare, o, begin)
}

func config(o tunnel.Options) *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = backlog
	c.KeepAliveInterval = o.Link.Interval()
	c.ConnectionWriteTimeout = writeTimeout
	c.StreamCloseTimeout = closeTimeout
	c.StreamOpenTimeout = 0 // it would end the session for a stream that nobody accepts
	// Much of what the library has to say a peer can bring about: it is for those who look
	// for a fault.
	c.LogOutput = io.Discard
	if log := o.Logger(); log.Enabled(context.Background(), slog.LevelDebug) {
		c.LogOutput, c.Logger = nil, slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	}
	return c
}
