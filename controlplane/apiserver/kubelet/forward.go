package kubelet

// How a port-forward ends that tunnels SPDY in WebSocket frames.
//
// Close of the library's connection to such a client waits for the Read that is under way, which
// only the client ends. So a client that sends nothing would not see the end, and the server would
// keep both connections.

import (
	"bufio"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// endsReads has Close of the connections that h hijacks end their Read.
func endsReads(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&readEnder{w}, r)
	})
}

// A readEnder is the library's ResponseWriter of a client that tunnels.
type readEnder struct{ http.ResponseWriter }

// Hijack implements http.Hijacker.
func (w *readEnder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &tunneledConn{Conn: c}, rw, nil
}

// A tunneledConn is the library's connection to a client that tunnels.
type tunneledConn struct {
	net.Conn
	closed atomic.Bool
}

// Read fails with net.ErrClosed after Close: callers do not log that.
func (c *tunneledConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.closed.Load() {
		err = net.ErrClosed
	}
	return n, err
}

// Close ends a Read, and sends the end of the WebSocket behind all that was written.
func (c *tunneledConn) Close() error {
	c.closed.Store(true)
	_ = c.SetReadDeadline(time.Unix(1, 0)) // fails if it is closed already
	return c.Conn.Close()
}
