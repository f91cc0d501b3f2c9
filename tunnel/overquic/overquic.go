// Package overquic makes tunnel sessions of QUIC connections (RFC 9000) with
// github.com/quic-go/quic-go. It adds nothing to the protocol: a peer that uses the
// bare library, and offers the application protocol ALPN, is served.
//
// A session is one QUIC connection. A stream of the session's is a bidirectional QUIC
// stream: half-closes, resets and deadlines are QUIC's own, and a lost packet holds up
// no stream but its own.
//
// Three rules of QUIC show:
//
//   - A stream exists for the peer once something has been said on it.
//   - The two directions of a stream are independent. Close ends ours and gives up the
//     peer's at once: what we have written still arrives, and a peer that goes on
//     writing is told that nobody reads. A Write that Close has cut short ends in a
//     reset, never in an end that looks complete.
//   - What has been received when a connection ends is lost if it has not been read. The
//     reader gets an error.
//
// # Life and paths
//
// A session ends with its connection. Either end asks for a sign of life while nothing
// comes, and the connection ends when there is none. QUIC counts the idle timeout anew
// from the question (RFC 9000, 10.1), and the library asks after half of it at the
// latest. So the idle timeout is two thirds of Keepalive and 4.6 s: by default a
// question comes after 6.2 s of silence, and a dead peer is found within 20 s.
//
// A process that is killed says nothing, and its session ends like that of a machine
// which is cut off: by silence (tunnel.Dead).
//
// A NAT may change the address of the dialing end: QUIC follows (RFC 9000, 9). Move
// takes the connection to another socket, after that has been proven to work. The
// sockets are not connected: the machine's routes choose the interface.
//
// What the library does not do: it takes a packet that the system refuses to send for
// the end of the connection; it proves no other path while the window of a dead path is
// full of packets; and it does not notice that a path has come to pass small packets
// only.
//
// # Bounds
//
// The constants below and in listen.go bound a connection and the handshakes of a
// listener, MaxStreams the streams of the peer's that are open, accepted or not. What
// the tunnel.Intake grants a connection it has back at the connection's end. So all
// sessions together have half of the Intake unread, and firstWindow each. Streams that
// nobody reads can use up the window of their connection, and all others wait until one
// of these is read or closed: that is 32 streams at least, or 2 when the Intake has
// nothing to grant.
//
// # Options
//
// Heeded are TLS, MaxStreams, Intake, Log and Link.Keepalive; of both ends' idle timeouts
// the shorter one holds. Dial makes a UDP socket that only tells the server's address:
// the connection has sockets of its own. Not heeded are the other LinkOptions: nothing is
// resumed, kept to send again or saved on a metered path, there is one connection, and
// the congestion control is the library's. There is no early data.
package overquic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// Name is the transport's.
	Name = "quic"
	// ALPN is the application protocol of its connections (RFC 7301).
	ALPN = "hawser-quic/2"

	// margin is how much later than Keepalive a peer is known to be silent.
	margin = 4600 * time.Millisecond

	// A stream may have firstStream unread at first, and as it proves to be read quickly
	// up to maxStream. All streams of a connection together may have firstWindow in any
	// case, headroom more if the Intake has plenty, and never more than maxWindow.
	firstStream = 64 << 10
	maxStream   = 1 << 20
	firstWindow = 2 << 20
	headroom    = 32 << 20
	maxWindow   = 64 << 20

	// packetSize passes on every path that IPv6 passes on. What more a path bears is
	// found out (RFC 8899).
	packetSize = 1200

	handshakeTimeout = 10 * time.Second
)

// Transport is this package as a tunnel.Transport. It cannot listen on a net.Listener:
// see ListenPacket.
func Transport() tunnel.Transport { return TransportOn(new(net.ListenConfig).ListenPacket) }

// TransportOn is Transport with the sockets that listen makes for it, as a
// net.ListenConfig does: two a session, which owns them and closes them.
func TransportOn(listen func(ctx context.Context, network, address string) (net.PacketConn, error)) tunnel.Transport {
	return tunnel.Transport{
		Name: Name,
		Can:  tunnel.Capabilities{Migrate: true, HalfClose: true, Reset: true},
		Dial: func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			to, err := resolve(ctx, addr, o)
			if err == nil {
				var s *session
				if s, err = dial(ctx, addr, to, o, listen); err == nil {
					return s, nil
				}
			}
			return nil, fmt.Errorf("connect to %s over UDP: %w", addr, err)
		},
		Listen: func(ln net.Listener, _ tunnel.Options) (tunnel.Listener, error) {
			return nil, fmt.Errorf("listen on %s: QUIC needs a packet connection", ln.Addr())
		},
	}
}

// config is QUIC's, for a connection that has been granted some bytes.
func config(o tunnel.Options, granted int) *quic.Config {
	intake := o.Shared()
	return &quic.Config{
		HandshakeIdleTimeout:           handshakeTimeout / 2, // it may take twice that in all
		KeepAlivePeriod:                o.Link.Interval(),
		MaxIdleTimeout:                 (o.Link.Interval() + margin) * 2 / 3,
		InitialStreamReceiveWindow:     firstStream,
		MaxStreamReceiveWindow:         maxStream,
		InitialConnectionReceiveWindow: firstWindow + uint64(granted),
		MaxConnectionReceiveWindow:     maxWindow,
		AllowConnectionWindowIncrease: func(c *quic.Conn, delta uint64) bool {
			n := int(min(delta, maxWindow))
			if !intake.Grow(n) {
				return false
			}
			context.AfterFunc(c.Context(), func() { intake.Return(n) })
			return true
		},
		MaxIncomingStreams:    int64(o.Streams()),
		MaxIncomingUniStreams: -1,
		InitialPacketSize:     packetSize,
	}
}

// dial makes a session with the server at addr, which is the address to.
func dial(ctx context.Context, addr string, to *net.UDPAddr, o tunnel.Options, listen listenFunc) (*session, error) {
	conf, err := carrier.ClientTLS(o.TLS, addr, ALPN)
	if err != nil {
		return nil, err
	}
	p, err := openSockets(ctx, to, listen)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	intake := o.Shared()
	granted := intake.Share(firstStream, headroom)
	c, err := p.pair[0].Dial(ctx, to, conf, config(o, granted))
	if err != nil {
		intake.Return(granted)
		p.close()
		return nil, tlsError(err)
	}
	context.AfterFunc(c.Context(), func() { intake.Return(granted) })
	return newSession(c, p, o.Streams()), nil
}

// resolve says to which address of the server's there is a way. To connect a UDP socket
// sends nothing.
func resolve(ctx context.Context, addr string, o tunnel.Options) (*net.UDPAddr, error) {
	dial := o.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	c, err := dial(ctx, "udp", addr)
	if err != nil {
		return nil, err
	}
	to, ok := c.RemoteAddr().(*net.UDPAddr)
	if err := c.Close(); err != nil {
		return nil, err
	}
	if !ok {
		return nil, errors.New("QUIC needs UDP, and the dialer made a connection of another kind")
	}
	return to, nil
}
