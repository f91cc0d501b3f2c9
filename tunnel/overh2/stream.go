// Stream: one end of a pipe in memory. The other end is copied to and from the two bodies of
// a request.

package overh2

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// A stream is the caller's end of the pipe.
type stream struct {
	*memnet.Conn
	finish func(abort bool) // called by Close and Abort
	taken  chan struct{}    // closed by Accept; nil if this end has opened it
}

// Close implements net.Conn.
func (s *stream) Close() error {
	err := s.Conn.Close()
	s.finish(false)
	return err
}

// Abort implements tunnel.Aborter.
func (s *stream) Abort() error {
	err := s.Conn.Abort()
	s.finish(true)
	return err
}

// brokenTimeout bounds the wait for what follows when a connection seems to have ended.
const brokenTimeout = time.Second

// await waits until ctx is done, for brokenTimeout at most.
func await(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(brokenTimeout):
	}
}

// fail aborts a pipe because err has ended the stream. Unless the stream was reset, the library is
// about to close the connection: fail waits until that has ended the session, or over is done.
func (s *session) fail(over context.Context, lib *memnet.Conn, err error) {
	if !errors.As(err, new(http2.StreamError)) {
		await(over)
	}
	s.abort(lib)
}

// abort aborts a pipe. The stream's user is told the cause of the session's end, or of a reset if
// the session goes on.
func (s *session) abort(lib *memnet.Conn) {
	lib.AbortWithError(cmp.Or(context.Cause(s.Alive()), error(syscall.ECONNRESET)))
}

// pour copies a body to the pipe, and returns whether the body came to its end. If it did
// not it calls fail, which aborts the pipe. The error is the pipe's, and means that it is not
// read any more.
func pour(lib *memnet.Conn, body io.Reader, fail func(error)) (ended bool, err error) {
	buf := make([]byte, frameSize)
	for {
		n, rerr := body.Read(buf)
		if n > 0 {
			if _, err := lib.Write(buf[:n]); err != nil {
				return false, err
			}
		}
		switch {
		case rerr == nil:
		case errors.Is(rerr, io.EOF):
			_ = lib.CloseWrite() // never fails
			return true, nil
		default:
			fail(rerr)
			return false, nil
		}
	}
}

// An opener is the opening end of a stream: a request.
type opener struct {
	session *session
	lib     *memnet.Conn
	ctx     context.Context
	cancel  context.CancelFunc // resets the stream, if it has not come to its end
	wrote   context.Context    // done when the request's body has been sent to its end, or ctx is
	written context.CancelFunc
}

// run makes the request and copies both bodies until they end.
func (o *opener) run() {
	defer context.AfterFunc(o.session.Alive(), func() { o.session.abort(o.lib) })()
	fail := func(err error) { o.session.fail(o.ctx, o.lib, err) }
	defer func() {
		o.cancel()
		<-o.session.Opened
	}()
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { o.written() }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(o.ctx, trace), http.MethodPost, "https://hawser"+streamPath, body{o.lib})
	var resp *http.Response
	if err == nil {
		resp, err = o.session.client.RoundTrip(req)
	}
	<-o.session.unanswered
	switch {
	case err != nil:
		fail(err)
		return
	case resp.StatusCode != http.StatusOK:
		o.session.abort(o.lib)
		return
	}
	ended, err := pour(o.lib, resp.Body, fail)
	switch {
	case err != nil:
		<-o.ctx.Done() // the stream was closed, and finish does the rest
	case ended:
		// The peer's handler has returned: it does not read the request any more.
		_ = o.lib.Close() // never fails
	}
	_ = resp.Body.Close() // as above
}

// finish resets the stream: at once, or after all that was written was sent.
func (o *opener) finish(abort bool) {
	if abort {
		o.cancel()
		return
	}
	force := time.AfterFunc(closeTimeout, o.cancel)
	context.AfterFunc(o.wrote, func() {
		force.Stop()
		o.cancel()
	})
}

// A body is the request's body. The library closes it both after the end and after an
// error, so Close does nothing, and run handles either. RoundTrip waits for a pending Read.
type body struct{ lib *memnet.Conn }

func (b body) Read(p []byte) (int, error) { return b.lib.Read(p) }
func (b body) Close() error               { return b.lib.SetReadDeadline(past) }

// An answerer is the accepting end of a stream, while its handler runs.
type answerer struct {
	mu      sync.Mutex // guards the following
	control *http.ResponseController
	over    bool // the handler is returning: control must not be used any more
}

// finish resets the stream: at once, or if what was written is not sent in closeTimeout.
func (a *answerer) finish(abort bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	by := time.Now().Add(closeTimeout)
	if abort {
		by = past
	}
	_ = a.control.SetWriteDeadline(by) // fails only if the handler has returned
}

// answer is the handler of a stream.
func (s *session) answer(w http.ResponseWriter, r *http.Request) {
	near, lib := memnet.Pipe(s.local, s.Peer().Addr)
	a := &answerer{control: http.NewResponseController(w)}
	st := &stream{Conn: near, finish: a.finish, taken: make(chan struct{})}
	select {
	case s.accepted <- st:
	default: // the peer exceeds backlog
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer context.AfterFunc(s.Alive(), func() { s.abort(lib) })()
	fail := func(err error) {
		if errors.Is(err, os.ErrDeadlineExceeded) { // which is set below
			s.abort(lib)
		} else {
			s.fail(s.Alive(), lib, err)
		}
	}
	poured, ended := make(chan struct{}), false
	go func() {
		defer close(poured)
		ended, _ = pour(lib, r.Body, fail) // an error means that the stream is not read any more
	}()
	// What was received before the peer has gone can still be read.
	stop := context.AfterFunc(r.Context(), func() { <-poured; _ = lib.Close() })
	err := s.respond(w, r, st, lib, a.control)
	if err != nil {
		await(r.Context()) // a writer may learn of a lost connection before the body has
	}
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	// A request must not be read after its handler has returned.
	_, _ = a.control.SetReadDeadline(past), lib.SetWriteDeadline(past) // neither ever fails
	<-poured
	stop()
	if ended {
		_ = lib.Close() // never fails
	} else {
		s.abort(lib)
	}
	if err != nil {
		panic(http.ErrAbortHandler) // this makes the library reset the stream
	}
}

// respond copies the pipe to the response. It returns nil at the end of the pipe.
func (s *session) respond(w http.ResponseWriter, r *http.Request, st *stream, lib *memnet.Conn, control *http.ResponseController) error {
	select {
	case <-st.taken:
	case <-r.Context().Done():
		return context.Cause(r.Context())
	}
	w.WriteHeader(http.StatusOK)
	if err := control.Flush(); err != nil {
		return err
	}
	return errors.Join(tunnel.Copy(atOnce{w, control}, lib, nil))
}

// An atOnce writer flushes each write.
type atOnce struct {
	io.Writer
	control *http.ResponseController
}

func (f atOnce) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}
