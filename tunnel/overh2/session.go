// Session: the library's client on one connection and its server on the other.

package overh2

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"

	"golang.org/x/net/http2"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

type session struct {
	*carrier.Session
	options tunnel.Options
	local   net.Addr

	identity       string            // of the peer; set at the accepting end
	id             string            // set before the peer can ask for it
	client         *http2.ClientConn // set before ready is closed
	ready          chan struct{}     // closed once client is set
	identified     chan struct{}     // closed once the peer has asked for the ID
	identifiedOnce sync.Once         // closes identified

	unanswered chan struct{} // as Opened, until the peer has accepted the stream
	accepted   chan *stream  // streams of the peer that wait for Accept
}

func newSession(t *tls.Conn, o tunnel.Options) *session {
	return &session{
		Session: carrier.NewSession(carrier.PeerOf(t, Name), o.Streams()),
		options: o, local: t.LocalAddr(),
		ready:      make(chan struct{}),
		identified: make(chan struct{}),
		unanswered: make(chan struct{}, backlog),
		accepted:   make(chan *stream, backlog),
	}
}

// request makes c, whose client is cc, the connection on which this end opens streams.
func (s *session) request(c *conn, cc *http2.ClientConn) {
	s.client = cc
	s.tie(c)
	close(s.ready)
}

// serve makes c the connection on which the peer opens streams.
func (s *session) serve(c *conn) {
	s.tie(c)
	s.Go(func() { serve(s.Alive(), c, s.options, s) })
}

// tie makes the session end with c, and c with the session.
func (s *session) tie(c *conn) {
	held := s.Go(func() {
		select {
		case <-c.Closed():
			s.End(c.Cause())
		case <-s.Alive().Done():
			_ = c.Close() // never fails
		}
	})
	if !held {
		_ = c.Close() // as above
	}
}

// awaitPair waits until both ends have both connections.
func (s *session) awaitPair(ctx context.Context) error {
	for _, step := range []<-chan struct{}{s.ready, s.identified} {
		if _, err := carrier.Await(ctx, s.Session, step); err != nil {
			return fmt.Errorf("second connection: %w", err)
		}
	}
	return nil
}

// ServeHTTP handles the requests of the peer.
func (s *session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && r.URL.Path == sessionPath:
		w.Header().Set(sessionHeader, s.id)
		w.WriteHeader(http.StatusOK)
		s.identifiedOnce.Do(func() { close(s.identified) })
	case r.Method == http.MethodPost && r.URL.Path == streamPath:
		if s.Join() {
			defer s.Leave()
			s.answer(w, r)
		}
	case r.Method == http.MethodPost && r.URL.Path == refusalPath:
		text := r.Header.Get(refusalHeader)
		s.End(&tunnel.Goodbye{Code: tunnel.Lost, Text: text[:min(len(text), maxRefusal)]})
	default: // an older peer answers a refusal so
		w.WriteHeader(http.StatusNotFound)
	}
}

// Open implements tunnel.Session.
func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	if err := s.Acquire(ctx, s.Opened); err != nil {
		return nil, err
	}
	if err := s.Acquire(ctx, s.unanswered); err != nil {
		<-s.Opened
		return nil, err
	}
	near, lib := memnet.Pipe(s.local, s.Peer().Addr)
	o := &opener{session: s, lib: lib}
	o.ctx, o.cancel = context.WithCancel(s.Alive())
	o.wrote, o.written = context.WithCancel(o.ctx)
	if !s.Go(o.run) {
		_, _ = <-s.unanswered, <-s.Opened
		return nil, context.Cause(s.Alive())
	}
	return &stream{Conn: near, finish: o.finish}, nil
}

// Accept implements tunnel.Session.
func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
	st, err := carrier.Await(ctx, s.Session, s.accepted)
	if err != nil {
		return nil, err
	}
	close(st.taken)
	return st, nil
}
