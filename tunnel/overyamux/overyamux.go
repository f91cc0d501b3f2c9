// Package overyamux makes tunnel sessions of TLS connections with the frames of
// yamux (github.com/hashicorp/yamux, spec.md).
//
// The frames are yamux's and the multiplexer is package mux. The library's own is
// not used, because what it leaves open cannot be closed from outside: a read
// waits for all of a frame that has begun, whatever its deadline; a write that
// waits for the connection has none; there is no reset, and what a stream has
// queued cannot be taken back; each write is two, and visits two goroutines; and
// 1,000 streams whose readers have stalled may cost 2 GB.
//
// Where this departs from the specification: a stream's first window is 64 KiB
// and what the first frame of either end adds to it (package mux says how much);
// nobody sends pings, of which the pipe or the control stream takes care; a stream
// that finds the backlog full is not reset but never opened, because the end that
// opens knows how many wait; a reset gives a stream up; and no end sends a reserved
// flag, or a frame for a stream that nobody has opened. A peer that does what no
// peer of ours does is cut off.
package overyamux

import (
	"context"
	"net"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/mux"
)

// backlog is how many streams may wait to be accepted. Both ends must agree on
// it: it is part of the protocol.
const backlog = 256

// Protocol is yamux as package carrier has it.
func Protocol() carrier.Protocol {
	return carrier.Protocol{
		Name: "yamux", ALPN: tunnel.ALPN,
		Start: func(p *carrier.Pipe, dialed bool, o tunnel.Options) (tunnel.Session, error) {
			return newSession(p, dialed, o), nil
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
func newSession(p *carrier.Pipe, dialed bool, o tunnel.Options) *mux.Session {
	return mux.New(p, backlog, o, func(s *mux.Session) mux.Framing {
		return newFraming(s, p.Conn(), dialed)
	})
}
