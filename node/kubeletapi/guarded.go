package kubeletapi

// What clients of exec, attach and port forwarding may send, before the library reads it: the
// library keeps every stream and header that it gets, and a stream too many for ever.

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/hawser-project/hawser/auth/spdyframes"
)

const (
	// late is how much longer the library waits for streams than they may take: when it gives
	// up, no more of them come.
	late = 5 * time.Second
	// maxForwarded bounds the connections that one request to forward ports has at a time,
	// maxForwardedPorts the ports that a WebSocket request names, and maxForwardedByAll the
	// connections of all requests.
	maxForwarded      = 256
	maxForwardedPorts = 64
	maxForwardedByAll = 2048
)

// A guarded is the way to a client that wants a connection. The end of that ends the request's context.
type guarded struct {
	http.ResponseWriter
	streams func(protocol string) spdyframes.Limits // nil for WebSocket
	within  time.Duration                           // for all streams to be there; zero is for ever

	conn  net.Conn // once it is the library's
	timer *time.Timer
}

// newGuarded bounds what the client sends. WebSocket connections have their channels from the first
// on, and no compressed headers; sizes says whether one of them is for terminal sizes.
func newGuarded(w http.ResponseWriter, r *http.Request, streams func(protocol string) spdyframes.Limits, within time.Duration, sizes bool) *guarded {
	if wsstream.IsWebSocketRequest(r) {
		return &guarded{ResponseWriter: spdyframes.GuardWebSocket(w, sizes, func() {})}
	}
	return &guarded{ResponseWriter: w, streams: streams, within: within}
}

// Unwrap is for http.ResponseController.
func (g *guarded) Unwrap() http.ResponseWriter { return g.ResponseWriter }

// Hijack implements http.Hijacker.
func (g *guarded) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(g.ResponseWriter).Hijack()
	if err != nil || g.streams == nil {
		return conn, rw, err
	}
	unread := spdyframes.NewUnread(conn, rw.Reader, func() {})
	if g.conn = unread; g.within > 0 {
		g.timer = time.AfterFunc(g.within, func() { _ = unread.Close() })
	}
	limits := g.streams(g.Header().Get(httpstream.HeaderProtocolVersion))
	limits.Answer = late
	c := &guardedConn{unread, spdyframes.NewGuard(unread, limits)}
	return c, bufio.NewReadWriter(bufio.NewReader(c), rw.Writer), nil
}

// A guardedConn is a connection of which the library reads what may be read.
type guardedConn struct {
	net.Conn
	guard *spdyframes.Guard
}

// Read implements io.Reader. What may not be read ends the connection: the library would read no
// more, and leave what it has begun to itself.
func (c *guardedConn) Read(p []byte) (int, error) {
	n, err := c.guard.Read(p)
	if errors.Is(err, spdyframes.ErrRefused) {
		_ = c.Close()
	}
	return n, err
}

// Write implements io.Writer. It does not fail, so that streams can be answered once the
// connection is over; reads fail.
func (c *guardedConn) Write(p []byte) (int, error) {
	if _, err := c.Conn.Write(p); err != nil {
		_ = c.Close()
	}
	c.guard.Written(p)
	return len(p), nil
}

// complete is called when all streams are there.
func (g *guarded) complete() {
	if g.timer != nil {
		g.timer.Stop()
	}
}

// end closes a connection to which not all streams came, which the library leaves open.
func (g *guarded) end() {
	if g.timer != nil && g.timer.Stop() {
		_ = g.conn.Close()
	}
}

// execStreams are the streams that a client with these options opens: as many as the library
// waits for.
func execStreams(o *remotecommand.Options) func(protocol string) spdyframes.Limits {
	return func(protocol string) spdyframes.Limits {
		n := 1 // for the result
		for _, wanted := range []bool{
			o.Stdin, o.Stdout, o.Stderr,
			o.TTY && (protocol == remotecommand.StreamProtocolV4Name || protocol == remotecommand.StreamProtocolV3Name), // for sizes
		} {
			if wanted {
				n++
			}
		}
		return spdyframes.Limits{Streams: n}
	}
}

// tellFull logs that connections are not forwarded, once a minute.
func (s *Server) tellFull(err error) {
	s.sparse.Do(func() { s.log.Warn("a connection is not forwarded to a pod", "err", err) })
}

// forwardStreams are two for each connection, and as many for those that are being refused: a
// client may open some hundreds at once, and has the others kept.
func (s *Server) forwardStreams(string) spdyframes.Limits {
	return spdyframes.Limits{Open: 4 * maxForwarded, Pair: s.cfg.StreamCreationTimeout}
}
