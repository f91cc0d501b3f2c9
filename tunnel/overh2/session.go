// Session: the library's client on one connection, and its server on the other.

package overh2

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"golang.org/x/net/http2"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

type session struct {
	options tunnel.Options
	peer    tunnel.Peer
	local   net.Addr
	ctx     context.Context // see tunnel.Session
	cancel  context.CancelCauseFunc
	alive   context.Context // done at once when the session ends
	end     context.CancelCauseFunc

	id     string            // set before a peer can ask for it
	client *http2.ClientConn // set before anybody opens a stream
	asked  sync.Once
	named  chan struct{} // closed when the peer has asked for the ID

	opened     chan struct{} // one for each stream that this end has opened
	unanswered chan struct{} // the same, until the peer's program has accepted it
	accepted   chan *stream  // those of the peer that wait

	mu   sync.Mutex // guards the following
	work sync.WaitGroup
	over bool // nothing is added to work any more
}

func newSession(t *tls.Conn, o tunnel.Options) *session {
	state := t.ConnectionState()
	s := &session{
		options: o, local: t.LocalAddr(),
		peer:       tunnel.Peer{Addr: t.RemoteAddr(), TLS: &state, Transport: Name},
		named:      make(chan struct{}),
		opened:     make(chan struct{}, o.Streams()),
		unanswered: make(chan struct{}, backlog),
		accepted:   make(chan *stream, backlog),
	}
	// The session is a root of its own: it does not end with whoever happened to dial.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.alive, s.end = context.WithCancelCause(s.ctx)
	go s.watch()
	return s
}

// watch notes the end of the session.
func (s *session) watch() {
	<-s.alive.Done()
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.work.Wait()
	s.cancel(context.Cause(s.alive))
}

// join has the session's end wait for work.Done, unless it has come.
func (s *session) join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.work.Add(1)
	}
	return !s.over
}

// begin runs f in a goroutine that the session's end waits for.
func (s *session) begin(f func()) bool {
	if !s.join() {
		return false
	}
	go func() {
		defer s.work.Done()
		f()
	}()
	return true
}

// request makes c the connection on which this end opens streams.
func (s *session) request(c *conn) error {
	cc, err := client(c, s.options)
	if err != nil {
		_ = c.Close() // the library's error is the news
		return err
	}
	s.adopt(c, cc)
	return nil
}

// adopt is request for a connection that has a client already.
func (s *session) adopt(c *conn, cc *http2.ClientConn) {
	s.client = cc
	s.hold(c)
}

// serve makes c the connection on which the peer opens streams.
func (s *session) serve(c *conn) {
	s.hold(c)
	s.begin(func() { serve(s.alive, c, s.options, s) })
}

// hold has the session and c end with each other.
func (s *session) hold(c *conn) {
	held := s.begin(func() {
		select {
		case <-c.gone:
			s.end(c.why())
		case <-s.alive.Done():
			_ = c.Close() // never fails
		}
	})
	if !held {
		_ = c.Close() // as above
	}
}

// ServeHTTP answers the peer, which is the client.
func (s *session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && r.URL.Path == sessionPath:
		w.Header().Set(sessionHeader, s.id)
		w.WriteHeader(http.StatusOK)
		s.asked.Do(func() { close(s.named) })
	case r.Method == http.MethodPost && r.URL.Path == streamPath:
		if s.join() {
			defer s.work.Done()
			s.answer(w, r)
		}
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *session) Context() context.Context { return s.ctx }
func (s *session) Peer() tunnel.Peer        { return s.peer }

// Open implements tunnel.Session.
func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	if err := s.enter(ctx, s.opened); err != nil {
		return nil, err
	}
	if err := s.enter(ctx, s.unanswered); err != nil {
		<-s.opened
		return nil, err
	}
	near, lib := memnet.Pipe(s.local, s.peer.Addr)
	o := newOpener(s, lib)
	if !s.begin(o.run) {
		_, _ = <-s.unanswered, <-s.opened
		return nil, context.Cause(s.alive)
	}
	return &stream{Conn: near, finish: o.finish}, nil
}

// enter waits for a place.
func (s *session) enter(ctx context.Context, places chan<- struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.alive.Err() != nil {
		return context.Cause(s.alive)
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-s.alive.Done():
		return context.Cause(s.alive)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Accept implements tunnel.Session.
func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
	if s.alive.Err() != nil {
		return nil, context.Cause(s.alive)
	}
	select {
	case st := <-s.accepted:
		close(st.taken)
		return st, nil
	case <-s.alive.Done():
		return nil, context.Cause(s.alive)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close implements tunnel.Session.
func (s *session) Close() error {
	s.end(tunnel.ErrSessionClosed)
	<-s.ctx.Done()
	return nil
}
