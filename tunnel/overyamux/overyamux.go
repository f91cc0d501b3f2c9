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
	"io"
	"net"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// window is how much of a stream may be on its way unread. At 100 ms of
	// round trip it lets one stream carry 20 MB/s.
	window = 2 << 20
	// backlog is how many streams may wait to be accepted. Both ends must agree
	// on it: it is part of the protocol.
	backlog = 256
)

// protocol is yamux as package carrier has it.
func protocol() carrier.Protocol {
	return carrier.Protocol{
		Name: "yamux", ALPN: tunnel.ALPN,
		Start: func(p *carrier.Pipe, dialed bool, o tunnel.Options) (tunnel.Session, error) {
			return newSession(p, dialed, o)
		},
	}
}

// Transport is this package as a tunnel.Transport.
func Transport() tunnel.Transport { return protocol().Transport() }

// Dial makes a session with the server at addr, HOST:PORT.
func Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	return protocol().Dial(ctx, addr, o)
}

// Listen makes sessions of the connections that ln accepts.
func Listen(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) {
	return protocol().Listen(ln, o)
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
