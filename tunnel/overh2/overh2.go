// Package overh2 makes tunnel sessions with the HTTP/2 (RFC 9113) client and server of
// golang.org/x/net/http2, as they are.
//
// HTTP/2 lets only the client open streams. So that both ends can, a session has two TLS
// connections, both made by the dialing end. On the first it is the client, on the
// second the server, and the accepting end is the other one. Both have the same ALPN
// name. Who sends the client's preface first is the client.
//
//	dialing end                                             accepting end
//	    │═ TLS 1 ═ PRI, GET /session ═══════════════════════════▶│
//	    │◀════════ 200, Hawser-Session: ID ══════════════════════│
//	    │═ TLS 2 ═ SETTINGS ════════════════════════════════════▶│
//	    │◀════════ PRI, GET /session ════════════════════════════│
//	    │═════════ 200, Hawser-Session: ID ═════════════════════▶│ the pair is made
//	    │═ TLS 1 ═ POST /stream ════════════════════════════════▶│ a stream
//	    │◀═ TLS 2 ═ POST /stream ════════════════════════════════│ a stream
//
// The ID is random and used once. The second connection must have the identity of the
// first, by its certificate's subject.
//
// A stream is one POST: the request's body is one direction, the response's body the
// other. The answer 200 says that the peer's program has accepted the stream. Behind a
// balancer both connections must reach the same server. One that does not have the session of
// a second connection says so before it closes that: POST /refusal with Hawser-Refusal: TEXT.
//
// What the library does not have, a session does not have either:
//
//   - A session ends with either of its connections.
//   - The opener's CloseWrite ends its direction alone. A server's handler ends the
//     response by returning, and with it the library ends the request. So at the
//     accepting end of a stream CloseWrite ends both directions: the peer reads all that
//     was said and the end, and what it still says is lost.
//   - A body knows no deadlines. The user's end is one of a pair in memory, which knows
//     them. What was written may still lie in there, up to 64 KiB.
//
// The bounds: Options.MaxStreams and backlog streams that the peer has open, of which
// backlog wait to be accepted; two goroutines, 160 KiB and a window of streamWindow a
// stream. When streams that nobody reads have filled the window of their connection, the
// others wait. Of floods of frames and resets the library takes care.
package overh2

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/http2"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// Name is the transport's; ALPN tells its connections from others on the same port
	// (RFC 7301).
	Name = "h2"
	ALPN = "hawser-h2/2"

	// What requests are for, and the headers that name the session and say why it is refused.
	sessionPath   = "/session"
	streamPath    = "/stream"
	refusalPath   = "/refusal"
	sessionHeader = "Hawser-Session"
	refusalHeader = "Hawser-Refusal"
	maxRefusal    = 256 // bytes of a text that are kept

	// backlog is how many streams may wait to be accepted, at either end.
	backlog = 256
	// streamWindow bounds what was received for a stream and not read. All streams of a
	// connection together may have connectionWindow in any case, and up to headroom more
	// if the Intake has plenty when it is made.
	streamWindow     = 512 << 10
	connectionWindow = 4 << 20
	headroom         = 32 << 20
	frameSize        = 16 << 10
	headerSize       = 16 << 10
	// pingTimeout is how long the peer may take to answer a ping. With the default
	// interval between pings a dead peer is found within 20 seconds.
	pingTimeout = 6 * time.Second
	// closeTimeout is how long what was written to a stream before Close may take to be
	// sent.
	closeTimeout = time.Minute
)

// Transport is this package as a tunnel.Transport.
func Transport() tunnel.Transport {
	return tunnel.Transport{Name: Name, Can: tunnel.Capabilities{Reset: true}, Dial: Dial, Listen: Listen}
}

// Dial makes a session with the server at addr, HOST:PORT. ctx bounds the dialing only.
func Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	begin := func(ctx context.Context, d *carrier.Dialer, t *tls.Conn) (tunnel.Session, error) {
		return pair(ctx, d, t, o)
	}
	return carrier.Dial(ctx, addr, ALPN, carrier.Bare, o, begin)
}

// pair makes a session of a first connection, which it owns, and of a second one.
func pair(ctx context.Context, d *carrier.Dialer, t *tls.Conn, o tunnel.Options) (_ *session, err error) {
	s := newSession(t, o)
	defer func() {
		if err != nil {
			_ = s.Close() // never fails
		}
	}()
	c := newConn(t, o)
	cc, err := client(c, o)
	if err != nil {
		_ = c.Close() // never fails
		return nil, err
	}
	s.request(c, cc)
	if s.id, err = askID(ctx, c, cc); err != nil {
		return nil, err
	}
	if t, err = d.Again(ctx); err != nil {
		return nil, fmt.Errorf("second connection: %w", err)
	}
	s.serve(newConn(t, o))
	return s, s.awaitPair(ctx)
}

// askID asks the server of c, whose client is cc, for the session's ID. Why c could not be read, as
// an alert of TLS says it, is in the error: once c is closed the library only says that.
func askID(ctx context.Context, c *conn, cc *http2.ClientConn) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://hawser"+sessionPath, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := cc.RoundTrip(req)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("%w: ask for the session: %w", tunnel.Lost, cmp.Or(c.ReadError(), err))
	}
	_ = resp.Body.Close() // never fails
	id := resp.Header.Get(sessionHeader)
	if resp.StatusCode != http.StatusOK || id == "" {
		return "", fmt.Errorf("ask for the session: peer answers %q", resp.Status)
	}
	return id, nil
}

// client makes the library's client of a connection.
func client(c *conn, o tunnel.Options) (*http2.ClientConn, error) {
	t, err := http2.ConfigureTransports(&http.Transport{
		DisableCompression: true,
		HTTP2:              &http.HTTP2Config{MaxReceiveBufferPerStream: streamWindow, MaxReceiveBufferPerConnection: c.window},
	})
	if err != nil {
		return nil, err
	}
	t.StrictMaxConcurrentStreams = true
	t.MaxReadFrameSize = frameSize
	t.MaxHeaderListSize = headerSize
	t.ReadIdleTimeout, t.PingTimeout = o.Link.Interval(), pingTimeout
	t.WriteByteTimeout = o.Link.Interval() + pingTimeout
	return t.NewClientConn(c)
}

// serve runs the library's server on a connection until it ends.
func serve(ctx context.Context, c *conn, o tunnel.Options, h http.Handler) {
	server := &http2.Server{
		MaxConcurrentStreams:         uint32(o.Streams() + backlog), //nolint:gosec // both are small
		MaxReadFrameSize:             frameSize,
		MaxUploadBufferPerStream:     streamWindow,
		MaxUploadBufferPerConnection: int32(c.window), //nolint:gosec // small as well
		ReadIdleTimeout:              o.Link.Interval(),
		PingTimeout:                  pingTimeout,
		WriteByteTimeout:             o.Link.Interval() + pingTimeout,
	}
	server.ServeConn(c, &http2.ServeConnOpts{
		Context: ctx, Handler: h,
		BaseConfig: &http.Server{MaxHeaderBytes: headerSize, ErrorLog: log.New(io.Discard, "", 0)},
	})
	_ = c.Close() // if the library has not
}

// A conn is a connection that the library owns.
type conn struct {
	*carrier.Conn
	window int // what it may have received and nobody read
}

func newConn(c net.Conn, o tunnel.Options) *conn {
	i := o.Shared()
	granted := i.Share(streamWindow, headroom)
	return &conn{
		Conn:   carrier.NewConn(c, pingTimeout, func() { i.Return(granted) }),
		window: connectionWindow + granted,
	}
}
