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
//   - A stall of one stream can use up the window of the connection: see Windows.
//   - The library's idle timeout knows no detach window. A session here watches
//     its path itself: see Paths.
//   - A stream exists for the peer once something has been said on it. Each begins
//     with a byte of the opener's that means nothing else. What the opener says
//     at once still goes with it.
//   - What has been received when a connection ends is lost if it has not been
//     read. That is so here as well, and the reader gets an error.
//
// # Paths
//
// QUIC recovers loss, so there is no link below it: a session outlives its path
// because the connection does. The end that dialed asks for a sign of life after
// 14 s in which nothing came, or at once when something of its own has had no
// answer for a second or a burst from the peer has stopped; it asks again after
// 3 s and takes the path for dead after 6. What counts is an answer: a path on
// which only the peer's packets arrive is dead as well, and the peer is told. From the second question on it tries to
// get through, again and again until the detach window is over: it sends from
// another socket, which a NAT or a firewall knows nothing bad of, and begins anew
// with what was on its way, since by itself QUIC waits the longer the longer a
// path has been dead. An answer may take long, and each beginning forgets what it
// would answer to, so tries come to be 10 s apart; in between it knocks each second:
// it sends the smallest packet of the latest try once more, as it was, and begins anew
// when something comes of that. Move takes another path in peace: it makes sure of it
// first. The accepting end asks nothing; it knows when it should have heard from
// the peer, and follows where the peer's packets come from (RFC 9000, 9).
//
// With LinkOptions.Metered the 14 s double each time, up to 10 minutes, as long as
// the path keeps the peer's address and needs no other socket; the end of a
// burst asks nothing, and there are no knocks.
//
// A path can come to pass smaller packets only, and say nothing of it. The library
// makes its packets small again when it begins anew on a path and at no other time.
// The dialing end gets no answers then and tries another path, as above. Where only
// the accepting end has much to say all seems well to the dialing end, because
// acknowledgements are small. So the accepting end, which has no answer to what fills
// its packets while it hears from the peer, falls silent for a while: then the peer
// tries another path.
//
// What cannot be sent for the time being, because there is no route or a firewall
// is in the way, counts as lost on the way.
//
// # Windows
//
// A stream may have 64 KiB unread at first and up to 4 MiB once its reader has
// shown that it keeps up; that lets one stream carry 30 MB/s at 100 ms of round
// trip. The connection's window is 64 KiB for every stream there may be and
// 128 MiB besides. So a thousand streams that nobody reads hold 64 MiB and leave
// room for their neighbours, as do 32 that had grown as far as they can before
// their readers stalled. One session never has more unread than that window,
// 288 MiB by default. That is its bound: a tunnel.Intake, which sessions over TCP
// share, does not count what QUIC has received, since the library shows nobody how
// much of that has not been read.
//
// A stream that has written 512 KiB is bulk and yields to all that has not.
//
// # Handshakes
//
// A server that was killed and is back has nothing to answer the packets of its
// former sessions with but a stateless reset (RFC 9000, 10.3), whose key is
// derived from that of its certificate.
//
// Handshakes are resumed (RFC 8446, 2.2) if the TLS configuration of the dialing
// end has a ClientSessionCache. There is no early data.
//
// A listener asks a client whose address is not verified to come again with a
// token (RFC 9000, 8.1.2) while many handshakes are under way, and refuses those
// beyond 1,024, or beyond 256 from one address.
package overquic

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// A stream may have this much unread at first, and as it proves to be read
	// quickly up to that much.
	firstWindow = 64 << 10
	window      = 4 << 20
	// headroom is what streams that have grown may have unread together, beyond
	// the firstWindow of each.
	headroom = 128 << 20

	backlog = 256
	// idle is beyond the longest silence that this package's own watch admits.
	idle = maxPromise + time.Hour
	// packetSize passes on every path that IPv6 passes on, tunnels included. What
	// more a path bears is found out (RFC 8899).
	packetSize = 1200

	handshakeTimeout = 10 * time.Second
	// maxHandshakes is how many handshakes may be under way at a listener. From
	// fewHandshakes on, each client has to show that its address is its own.
	maxHandshakes = 1024
	maxOfSource   = 256 // from one address
	fewHandshakes = 64
)

// Transport is this package as a tunnel.Transport. It cannot listen on a
// net.Listener: see ListenPacket.
func Transport() tunnel.Transport {
	return tunnel.Transport{
		Name: "quic",
		Can:  tunnel.Capabilities{Resume: true, Migrate: true, HalfClose: true, Reset: true},
		Dial: Dial,
		Listen: func(ln net.Listener, _ tunnel.Options) (tunnel.Listener, error) {
			return nil, fmt.Errorf("listen on %s: QUIC needs a packet connection", ln.Addr())
		},
	}
}

// config is QUIC's, with room for the streams of o.
func config(o tunnel.Options) *quic.Config {
	streams := o.Streams() + backlog
	all := 2*firstWindow*uint64(streams) + headroom // of both ends' streams
	return &quic.Config{
		HandshakeIdleTimeout:           handshakeTimeout / 2, // it may take twice that in all
		MaxIdleTimeout:                 idle,
		InitialStreamReceiveWindow:     firstWindow,
		MaxStreamReceiveWindow:         window,
		InitialConnectionReceiveWindow: all,
		MaxConnectionReceiveWindow:     all,
		MaxIncomingStreams:             int64(streams),
		MaxIncomingUniStreams:          1, // the tally
		InitialPacketSize:              packetSize,
		EnableDatagrams:                true, // see kindDeaf
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
	m, err := moor(ctx, addr, o)
	if err != nil {
		return nil, err
	}
	hctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	c, err := m.ways[0].Dial(hctx, m.quay.to, tlsConf, config(o))
	if err != nil {
		m.close()
		return nil, alert(err)
	}
	m.conn = c
	s, err := newSession(c, o, m, nil)
	if err != nil {
		return nil, err
	}
	return s, nil
}
