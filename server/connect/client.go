// Client: a connection until it becomes a tunnel or is closed.

package connect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/server/internal/descriptors"
	"github.com/hawser-project/hawser/server/internal/fronts"
	"github.com/hawser-project/hawser/tunnel"
)

const (
	// readerSize is the size of the buffer for reading a request, in bytes.
	readerSize = 1 << 10
	// watchAfter is how long a dial may take before it is checked whether the client
	// still waits for it. Most dials end earlier and cost no check.
	watchAfter = 100 * time.Millisecond
	// lingerTimeout is how long the connection is read after the last answer. If it were closed
	// with unread data, TCP would send a reset, and the client could lose the answer (RFC
	// 9112, 9.6).
	lingerTimeout = 500 * time.Millisecond
)

// past is a deadline that has passed. It is written here once and never changed.
var past = time.Unix(1, 0)

// readers recycles the buffers for reading requests. It is a cache whose content is not
// visible outside.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readerSize) }}

// A client is one connection. One goroutine serves it.
type client struct {
	*front
	conn   net.Conn
	scarce bool                 // it has one of the last file descriptors
	tls    *tls.ConnectionState // nil without TLS
	in     *bufio.Reader        // reads at most limit bytes
	limit  io.LimitedReader
}

// serve serves a connection, which it owns. No request is read once ctx is done; what follows
// from one that was read goes on until the front's own context is done.
func (f *front) serve(ctx context.Context, conn net.Conn) {
	c := &client{front: f, conn: conn, scarce: descriptors.Scarce(conn), limit: io.LimitedReader{R: conn}}
	c.in, _ = readers.Get().(*bufio.Reader)
	c.in.Reset(&c.limit)
	calm := hurry(f.ctx, conn)
	r, target := c.requests(ctx)
	if target != nil && !c.establish(r) {
		_ = tunnel.Abort(target)
		target = nil
	}
	calm()
	ahead, _ := c.in.Peek(c.in.Buffered()) // the request has arrived
	if target == nil {
		_ = conn.Close() // the client has got its answer
	} else if len(ahead) > 0 {
		_, _ = target.Write(ahead) // there is room for it; if it fails, so does what follows
	}
	c.in.Reset(nil)
	readers.Put(c.in)
	if target != nil {
		f.join(conn, target, r, len(ahead))
	}
}

// hurry ends the reads and writes of conn once ctx is done, until calm is called.
func hurry(ctx context.Context, conn net.Conn) (calm func()) {
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(past) // if conn is broken that is noticed
		close(hurried)
	})
	return func() {
		if !stop() {
			<-hurried
			_ = conn.SetDeadline(time.Time{})
		}
	}
}

// established is the answer to a request that has reached its target. It is written here
// once and never changed.
var established = []byte("HTTP/1.1 200 Connection Established\r\n\r\n")

// establish answers r, whose target is connected. Then it waits until the client has sent
// data, which shows that it has read the answer, or for answerTime: the egress selector
// fails if a byte follows the answer in the same read. It reports whether the client is
// still connected.
func (c *client) establish(r *http.Request) bool {
	if _, err := c.conn.Write(established); err != nil {
		return false
	}
	if c.in.Buffered() > 0 || c.hold <= 0 || strings.EqualFold(r.Header.Get(earlyHeader), "yes") {
		return true
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(c.hold)) // if conn is broken the tunnel ends
	_, err := c.in.Peek(1)
	_ = c.conn.SetReadDeadline(time.Time{})
	// The next read returns an EOF again. It does not return a reset again, but an EOF.
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded)
}

// requests answers one request after the other, until the client sends no more or a
// target is connected.
func (c *client) requests(ctx context.Context) (*http.Request, net.Conn) {
	for first := true; ; first = false {
		r, err := c.next(ctx, first)
		if err != nil {
			c.without(err, first)
			return nil, nil
		}
		target := c.answer(r)
		if target != nil {
			return r, target
		}
		if c.isLast(r) {
			c.part()
			return nil, nil
		}
	}
}

// isLast reports whether the connection is closed after r was answered and became no tunnel.
// What follows a CONNECT may be data for its target: it must not be read as a request.
func (c *client) isLast(r *http.Request) bool {
	return r.Method == http.MethodConnect || r.Close || r.Body != http.NoBody || c.scarce
}

// errTooLarge is why a request is not read to its end.
var errTooLarge = errors.New("request is too large")

// next waits for a request. Meanwhile the connection counts as pending and may be closed
// in favour of others, unless the listener is private.
func (c *client) next(ctx context.Context, first bool) (*http.Request, error) {
	if !c.private {
		defer c.idlers.Enter(c.conn)()
	}
	defer hurry(ctx, c.conn)()
	if first {
		if err := c.within(ctx, headerTimeout); err != nil {
			return nil, err
		}
		if t, ok := c.conn.(*tls.Conn); ok {
			if err := c.shake(t); err != nil {
				return nil, err
			}
		}
	} else {
		if err := c.within(ctx, idleTimeout); err != nil {
			return nil, err
		}
		if _, err := c.in.Peek(1); err != nil {
			return nil, err
		}
		if err := c.within(ctx, headerTimeout); err != nil {
			return nil, err
		}
	}
	c.limit.N = maxHeader
	r, err := http.ReadRequest(c.in)
	if err != nil && c.limit.N <= 0 {
		err = errTooLarge
	}
	c.limit.N = math.MaxInt64
	if err != nil {
		return nil, err
	}
	r.TLS, r.RemoteAddr = c.tls, c.conn.RemoteAddr().String()
	return r, c.conn.SetReadDeadline(time.Time{})
}

// shake does the TLS handshake. It ends early for the same reasons as the wait for a
// request.
func (c *client) shake(t *tls.Conn) error {
	if err := t.SetWriteDeadline(time.Now().Add(headerTimeout)); err != nil {
		return err
	}
	if err := t.Handshake(); err != nil { //nolint:noctx // it has deadlines
		return err
	}
	state := t.ConnectionState()
	c.tls = &state
	return t.SetWriteDeadline(time.Time{})
}

// within sets the deadline for reads, unless ctx is done.
func (c *client) within(ctx context.Context, d time.Duration) error {
	if err := c.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	return ctx.Err() // whose own deadline may be lost
}

// without ends a connection without a request, or without a further one, because of err.
func (c *client) without(err error, first bool) {
	var (
		broken *net.OpError
		record tls.RecordHeaderError
	)
	switch {
	case errors.Is(err, errTooLarge):
		c.say(nil, http.StatusRequestHeaderFieldsTooLarge, err.Error(), nil)
		c.part()
	case errors.As(err, &record) && record.Conn != nil && slices.Contains([]string{"CONN", "GET "}, string(record.RecordHeader[:4])):
		c.conn = record.Conn
		c.say(nil, http.StatusBadRequest, "this port speaks TLS", nil)
	case isTLS(c.conn) && c.tls == nil, errors.Is(err, io.EOF), errors.As(err, &broken), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, errCut), errors.Is(err, context.Canceled):
	default:
		c.say(nil, http.StatusBadRequest, clip(err.Error()), nil)
		c.part()
	}
	if !first {
		c.metrics.Closed.WithLabelValues(fronts.Idle).Inc()
		return
	}
	c.metrics.Closed.WithLabelValues(fronts.NoRequest).Inc()
	if more, ok := c.silent.Allow(c.conn.RemoteAddr()); ok {
		c.cfg.Log.Info("connection closed without a usable request", "client", c.conn.RemoteAddr().String(), "others", more)
	}
}

func isTLS(c net.Conn) bool { _, ok := c.(*tls.Conn); return ok }

// answer dials for a request. It returns the target, or answers with the error and
// returns nil.
func (c *client) answer(r *http.Request) net.Conn {
	if c.scarce {
		c.metrics.Shed.Inc()
		c.refuse(r, &tunnel.DialError{Addr: clip(r.Host), Code: tunnel.Busy, Text: "the server has no file descriptors to spare"})
		return nil
	}
	if r.Method != http.MethodConnect {
		c.say(r, http.StatusMethodNotAllowed, "this port serves CONNECT only", http.Header{"Allow": {http.MethodConnect}})
		return nil
	}
	if c.cfg.Authorize != nil {
		if err := c.cfg.Authorize(r); err != nil {
			c.metrics.Dials.WithLabelValues(tunnel.Denied.Name()).Inc()
			if more, ok := c.denied.Allow(err.Error()); ok { // the error names the client
				c.cfg.Log.Warn("CONNECT refused", "client", r.RemoteAddr, "target", clip(r.Host), "err", err, "others", more)
			}
			c.say(r, http.StatusForbidden, err.Error(), nil)
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.DialTimeout)
	defer cancel()
	if c.cfg.Caller != nil {
		ctx = auth.WithCaller(ctx, auth.Caller{Name: c.cfg.Caller(r)})
	}
	if c.cfg.Trace != nil {
		ctx = c.cfg.Trace(ctx, r.Header)
	}
	began := time.Now()
	unwatch := c.watch(cancel)
	target, err := c.cfg.Dial(ctx, "tcp", r.Host)
	unwatch()
	c.metrics.Dialed(tunnel.CodeOf(err), time.Since(began))
	if err != nil {
		c.refuse(r, err)
		return nil
	}
	return target
}

// watch calls giveUp when the client has closed the connection, until stop is called. It
// notices that by reading while the buffer has room; the next reader gets those bytes. A
// client that has sent data may have ended its direction only, and still waits.
func (c *client) watch(giveUp func()) (stop func()) {
	over := make(chan struct{})
	t := time.AfterFunc(watchAfter, func() {
		defer close(over)
		var err error
		for err == nil {
			_, err = c.in.Peek(c.in.Buffered() + 1)
		}
		halfClosed := errors.Is(err, io.EOF) && c.in.Buffered() > 0
		if !halfClosed && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, bufio.ErrBufferFull) {
			giveUp()
		}
	})
	return func() {
		if t.Stop() {
			return
		}
		_ = c.conn.SetReadDeadline(past) // if conn is broken that is noticed
		<-over
		_ = c.conn.SetReadDeadline(time.Time{})
	}
}

// refuse answers a dial that failed.
func (c *client) refuse(r *http.Request, err error) {
	code := tunnel.CodeOf(err)
	c.cfg.Log.Debug("CONNECT failed", "client", r.RemoteAddr, "target", clip(r.Host), "err", err)
	h := http.Header{"Proxy-Status": {proxyStatus(code, err)}}
	if code.Temporary() {
		h.Set("Retry-After", "1")
	}
	c.say(r, httpStatus(code), err.Error(), h)
}

// say answers a request that becomes no tunnel; r is nil if it could not be read. The status line has
// the text too: kube-apiserver shows its users nothing else of the answer.
func (c *client) say(r *http.Request, status int, text string, h http.Header) {
	if h == nil {
		h = make(http.Header)
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	phrase := fmt.Sprintf("%d %s: %s", status, http.StatusText(status), printable(clip(text)))
	text += "\n"
	resp := http.Response{
		Status: phrase, StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: h,
		Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
		Close: r == nil || c.isLast(r),
	}
	var b bytes.Buffer
	_ = resp.Write(&b)                                         // to memory
	_ = c.conn.SetWriteDeadline(time.Now().Add(headerTimeout)) // if conn is broken the client gets no answer
	_, _ = c.conn.Write(b.Bytes())                             // and the next read fails
	_ = c.conn.SetWriteDeadline(time.Time{})
}

// part closes a connection after its last answer.
func (c *client) part() {
	_ = tunnel.CloseWrite(c.conn) // these bytes are discarded
	_ = c.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	_, _ = io.CopyN(io.Discard, c.conn, 64<<10)
}
