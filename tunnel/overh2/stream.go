// Stream: the user's end of a pair in memory, whose other end is joined to the two bodies
// of a request.

package overh2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// A stream is the user's end.
type stream struct {
	*memnet.Conn
	finish func(abort bool) // what HTTP/2 has to do about Close or Abort
	taken  chan struct{}    // closed when the user has accepted it; nil if he has opened it
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

var _ tunnel.Aborter = (*stream)(nil)

// pour copies what the peer says in a body to the user's end, and says whether the body
// came to its end. If it was cut, so is the user's end. The error is the user's end's:
// nobody reads there.
func pour(lib *memnet.Conn, body io.Reader) (ended bool, err error) {
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
			_ = lib.Abort() // as above
			return false, nil
		}
	}
}

// aborting has the user's end aborted when the session ends, until what it returns is
// called: nobody else would wake who waits for the user.
func (s *session) aborting(lib *memnet.Conn) (stop func() bool) {
	return context.AfterFunc(s.Alive(), func() { _ = lib.Abort() }) // never fails
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

func newOpener(s *session, lib *memnet.Conn) *opener {
	o := &opener{session: s, lib: lib}
	o.ctx, o.cancel = context.WithCancel(s.Alive())
	o.wrote, o.written = context.WithCancel(o.ctx)
	return o
}

// run makes the request and sees it to its end.
func (o *opener) run() {
	defer o.session.aborting(o.lib)()
	defer func() {
		o.cancel()
		<-o.session.opened
	}()
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { o.written() }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(o.ctx, trace), http.MethodPost, "https://hawser"+streamPath, body{o.lib})
	var resp *http.Response
	if err == nil {
		resp, err = o.session.client.RoundTrip(req)
	}
	<-o.session.unanswered
	if err != nil || resp.StatusCode != http.StatusOK {
		_ = o.lib.Abort() // never fails
		return
	}
	ended, err := pour(o.lib, resp.Body)
	switch {
	case err != nil:
		<-o.ctx.Done() // the user has closed the stream, and finish sees to the rest
	case ended:
		// The handler has returned: nobody reads what the user says.
		_ = o.lib.Close() // never fails
	}
	_ = resp.Body.Close() // as above
}

// finish resets the stream, at once or when all that was written has been sent.
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

// A body is the request's. The library closes it when it has been sent as well as when
// nobody wants it, and run knows better which of the two. RoundTrip returns only after a
// Read that waits.
type body struct{ lib *memnet.Conn }

func (b body) Read(p []byte) (int, error) { return b.lib.Read(p) }
func (b body) Close() error               { return b.lib.SetReadDeadline(past) }

// An answerer is the accepting end of a stream: a handler under way.
type answerer struct {
	mu      sync.Mutex // guards the following
	control *http.ResponseController
	over    bool // the handler returns: control must not be used any more
}

// finish resets the stream, at once or when what was written cannot be sent.
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
	_ = a.control.SetWriteDeadline(by) // the library's writer has it
}

// answer is the handler of a stream.
func (s *session) answer(w http.ResponseWriter, r *http.Request) {
	near, lib := memnet.Pipe(s.local, s.Peer().Addr)
	a := &answerer{control: http.NewResponseController(w)}
	st := &stream{Conn: near, finish: a.finish, taken: make(chan struct{})}
	select {
	case s.accepted <- st:
	default: // the peer does not count those that wait
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer s.aborting(lib)()
	poured, ended := make(chan struct{}), false
	go func() {
		defer close(poured)
		ended, _ = pour(lib, r.Body) // what a user does not read is nobody's concern
	}()
	// When the peer is gone the user still has what it said before it went.
	stop := context.AfterFunc(r.Context(), func() { <-poured; _ = lib.Close() })
	err := s.respond(w, r, st, lib, a.control)
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	// The library forbids to read a request after its handler.
	_, _ = a.control.SetReadDeadline(past), lib.SetWriteDeadline(past) // neither ever fails
	<-poured
	stop()
	if ended {
		_ = lib.Close() // never fails
	} else {
		_ = lib.Abort() // as above
	}
	if err != nil {
		panic(http.ErrAbortHandler) // so the library wants to be told to reset a stream
	}
}

// respond sends what the user says. It returns nil if the user has come to an end.
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

// An atOnce writer sends at once what is written to it.
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
