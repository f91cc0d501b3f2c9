// Package overh2 makes tunnel sessions of TLS connections with HTTP/2
// (RFC 9113).
//
// The frames, and the compression of headers, are those of
// golang.org/x/net/http2, and the multiplexer is package mux. The library's
// Transport and its Server are not used, because they cannot carry a net.Conn: a
// handler ends its direction only by returning, which resets the other one; a
// body that is being read has no deadline; a reset is a panic; and each stream
// takes two goroutines and a buffer at either end.
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
// Windows are as package mux says. That of the session as a whole never closes, so
// that streams which nobody reads do not hold up the others.
package overh2

import (
	"context"
	"net"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/mux"
)

// ALPN tells this transport from the others on the same port (RFC 7301).
const ALPN = tunnel.ALPN + "+h2"

const (
	// backlog is how many streams of the client's may wait to be accepted,
	// offers how many the client holds out for the server to open. Both ends
	// must agree on them: they are part of the protocol.
	backlog = 256
	offers  = 64
)

// Protocol is this package as package carrier has it.
func Protocol() carrier.Protocol {
	return carrier.Protocol{
		Name: "h2", ALPN: ALPN,
		Start: func(p *carrier.Pipe, dialed bool, o tunnel.Options) (tunnel.Session, error) {
			return newSession(p, !dialed, o), nil // the end that dialed is HTTP/2's server
		},
	}
}

// Transport is this package as a tunnel.Transport.
func Transport() tunnel.Transport { return Protocol().Transport() }

// Dial makes a session with the server at addr, HOST:PORT.
func Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	return Protocol().Dial(ctx, addr, o)
}

// Listen makes sessions of the connections that ln accepts.
func Listen(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) {
	return Protocol().Listen(ln, o)
}

// newSession makes a session of p and owns it.
func newSession(p *carrier.Pipe, client bool, o tunnel.Options) *mux.Session {
	return mux.New(p, backlog, o, func(s *mux.Session) mux.Framing {
		return newFraming(s, p.Conn(), client)
	})
}
