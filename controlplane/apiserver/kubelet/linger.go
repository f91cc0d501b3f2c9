package kubelet

// How a connection ends of which the server has not read all that the client sent.
//
// If such a connection were closed, TCP would send a reset, and the client could lose what it has not
// received (RFC 9112, 9.6): the end of a command's output, and its exit code. A command that ends
// without having read all of its stdin leaves such a connection.

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// lingerIdle is how long a client may send nothing before the connection is closed. What is on
	// its way to the client is still delivered then, as long as the client sends nothing more.
	lingerIdle = 5 * time.Second
	// lingerTime bounds how long a connection is read after its last write.
	lingerTime = 5 * time.Minute
	// lingerBytes is more than was on its way when the server stopped reading, and lingerBuffer how much
	// is read at a time, both in bytes. After lingerBytes there is a lingerPause between reads: a client
	// that sends without end costs 6 MiB a second at most.
	lingerBytes  = 16 << 20
	lingerBuffer = 32 << 10
	lingerPause  = 5 * time.Millisecond
)

// lingers has the connections that h hijacks, and closes, end in order: h's end of them at once, and
// the request once the client has closed its end too.
func lingers(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l := &lingerer{ResponseWriter: w}
		defer func() { // also if h panics
			if l.conn != nil {
				l.conn.linger()
			}
		}()
		h.ServeHTTP(l, r)
	})
}

// A lingerer has no Unwrap: what is inside could be hijacked.
type lingerer struct {
	http.ResponseWriter
	conn *lingeringConn // nil before Hijack
}

// Hijack implements http.Hijacker.
func (w *lingerer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil || !halfCloses(conn) {
		return conn, rw, err
	}
	w.conn = &lingeringConn{Conn: conn, from: rw.Reader}
	return w.conn, bufio.NewReadWriter(bufio.NewReader(w.conn), bufio.NewWriter(w.conn)), nil
}

// A lingeringConn is a connection to a client. One goroutine may read.
type lingeringConn struct {
	net.Conn
	from *bufio.Reader

	reading sync.Mutex // held by Read

	mu      sync.Mutex // guards the following
	over    bool       // by Close
	writing int        // calls of Write under way
	broken  bool       // a Write has failed
	left    bool       // Close is to close the connection
	lingers bool       // linger is to close it
}

// Read fails with net.ErrClosed after Close: callers do not log that.
func (c *lingeringConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.closed() {
		return 0, net.ErrClosed
	}
	n, err := c.from.Read(p)
	if err != nil && c.closed() {
		err = net.ErrClosed
	}
	return n, err
}

func (c *lingeringConn) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// Write implements io.Writer.
func (c *lingeringConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return 0, net.ErrClosed
	}
	c.writing++
	c.mu.Unlock()
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing--
	c.broken = c.broken || err != nil
	return n, err
}

// SetDeadline implements net.Conn. After Close there is nothing to bound.
func (c *lingeringConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn, as SetDeadline does.
func (c *lingeringConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return net.ErrClosed
	}
	return c.Conn.SetReadDeadline(t)
}

// Close ends a Read and the server's direction. It closes a connection that takes nothing, or that
// nobody would read.
func (c *lingeringConn) Close() error {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return nil
	}
	c.over = true
	c.lingers = !c.left && !c.broken && c.writing == 0
	if !c.lingers {
		c.mu.Unlock()
		return c.Conn.Close()
	}
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // fails if it is closed already
	c.mu.Unlock()
	closeWrite(c.Conn)
	return nil
}

// linger reads what the client still sends, until its end or within the bounds above, and closes the
// connection. If Close has not been called, that does it.
func (c *lingeringConn) linger() {
	c.mu.Lock()
	c.left = true
	lingers := c.lingers
	c.mu.Unlock()
	if !lingers {
		return
	}
	c.reading.Lock() // a Read ends by its deadline
	defer c.reading.Unlock()
	b, until := make([]byte, lingerBuffer), time.Now().Add(lingerTime)
	for got := 0; ; {
		idle := time.Now().Add(lingerIdle)
		if idle.After(until) {
			idle = until
		}
		_ = c.Conn.SetReadDeadline(idle) // if that fails, so does Read
		n, err := c.Conn.Read(b)
		if err != nil {
			break
		}
		if got += n; got > lingerBytes {
			time.Sleep(lingerPause)
		}
	}
	_ = c.Conn.Close() // the client has got all, or never will
}

// halfCloses reports whether closeWrite ends a direction of c.
func halfCloses(c net.Conn) bool {
	for ; c != nil; c = below(c) {
		if _, ok := c.(interface{ CloseWrite() error }); ok {
			return true
		}
	}
	return false
}

// closeWrite ends the direction to the client: that of TLS, and that of the connection below.
func closeWrite(c net.Conn) {
	for ; c != nil; c = below(c) {
		if w, ok := c.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite() // if it is broken, so are reads
		}
	}
}

// below is the connection that c wraps; nil if it wraps none.
func below(c net.Conn) net.Conn {
	if w, ok := c.(interface{ NetConn() net.Conn }); ok {
		return w.NetConn()
	}
	return nil
}
