// Session: the library's, with contexts and bounds.

package overyamux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
)

type session struct {
	mux          *yamux.Session
	peer         tunnel.Peer
	closeTimeout time.Duration
	ctx          context.Context
	cancel       context.CancelCauseFunc
	why          atomic.Pointer[error] // of its end; the first one counts
	unread       *unread

	mu    sync.Mutex     // guards the following
	over  bool           // nothing is added to opens any more
	opens sync.WaitGroup // calls of OpenStream

	opened   chan struct{} // one for each stream that this end has opened and the library knows
	accepted chan struct{} // the same for those of the peer
}

// newSession makes a session of c, which it owns.
func newSession(c net.Conn, p tunnel.Peer, dialed bool, conf *yamux.Config, o tunnel.Options) (*session, error) {
	streams, u := o.Streams(), newUnread(o.Shared())
	start := yamux.Server
	if dialed {
		start = yamux.Client
	}
	mux, err := start(&guard{Conn: c, unread: u}, conf)
	if err != nil {
		_ = c.Close() // the configuration's error is the news
		return nil, err
	}
	s := &session{
		mux: mux, peer: p, closeTimeout: conf.StreamCloseTimeout, unread: u,
		opened: make(chan struct{}, streams), accepted: make(chan struct{}, streams+backlog),
	}
	// The session is a root of its own: it does not end with whoever happened to dial.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	go s.watch()
	return s, nil
}

func (s *session) Context() context.Context { return s.ctx }
func (s *session) Peer() tunnel.Peer        { return s.peer }

// Open implements tunnel.Session.
func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	if err := s.enter(ctx, s.opened); err != nil {
		return nil, err
	}
	type result struct {
		st  *yamux.Stream
		err error
	}
	// OpenStream knows no context. It waits while the peer's backlog is full.
	results := make(chan result, 1)
	ok := s.begin(func() {
		st, err := s.mux.OpenStream()
		results <- result{st, err}
	})
	if !ok {
		<-s.opened
		return nil, s.lost()
	}
	select {
	case r := <-results:
		if r.err != nil {
			<-s.opened
			return nil, s.failed(r.err)
		}
		return newStream(s, r.st, s.opened), nil
	case <-ctx.Done():
		go func() { // it keeps its place until then, so that there are not many
			if r := <-results; r.err == nil {
				_ = newStream(s, r.st, s.opened).Close() // never fails
			} else {
				<-s.opened
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// begin runs f in a goroutine that the session's end waits for, unless it has come.
func (s *session) begin(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.opens.Go(f)
	}
	return !s.over
}

// Accept implements tunnel.Session.
func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
	if err := s.enter(ctx, s.accepted); err != nil {
		return nil, err
	}
	st, err := s.mux.AcceptStreamWithContext(ctx)
	if err == nil {
		return newStream(s, st, s.accepted), nil
	}
	<-s.accepted
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, s.failed(err)
}

// enter waits for a place.
func (s *session) enter(ctx context.Context, places chan<- struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-s.mux.CloseChan():
		return s.lost()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close implements tunnel.Session.
func (s *session) Close() error {
	s.end(tunnel.ErrSessionClosed)
	<-s.ctx.Done()
	return nil
}

// end ends the session, if it has not ended for another reason.
func (s *session) end(why error) {
	s.why.CompareAndSwap(nil, &why)
	_ = s.mux.Close() // never fails
}

// watch notes the end of the session.
func (s *session) watch() {
	<-s.mux.CloseChan()
	why := s.lost()
	s.end(why) // waits for whoever ends it
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.opens.Wait() // the library lets them go
	s.unread.end()
	s.cancel(why)
}

// lost is why the session has ended. The library tells whoever accepts a stream.
func (s *session) lost() error {
	if why := s.why.Load(); why != nil {
		return *why
	}
	err := yamux.ErrSessionShutdown
	for i := 0; i <= backlog && errors.Is(err, yamux.ErrSessionShutdown); i++ {
		_, err = s.mux.AcceptStream() // those that wait are of no use
	}
	why := fmt.Errorf("%w: %w", tunnel.Lost, err)
	switch {
	case errors.Is(err, io.EOF): // which would look like a stream's end
		why = fmt.Errorf("%w: peer closed the connection", tunnel.Lost)
	case errors.Is(err, yamux.ErrKeepAliveTimeout):
		why = fmt.Errorf("%w: %w", tunnel.Dead, err)
	}
	s.why.CompareAndSwap(nil, &why)
	return *s.why.Load()
}

// failed is what an error of the library's about the session means. It ends a session
// whose connection has taken nothing for too long: what was to be sent may still be, and
// nobody would know.
func (s *session) failed(err error) error {
	if errors.Is(err, yamux.ErrConnectionWriteTimeout) {
		s.end(fmt.Errorf("%w: connection took nothing for %v", tunnel.Dead, writeTimeout))
	}
	if s.mux.IsClosed() {
		return s.lost()
	}
	return fmt.Errorf("yamux: %w", err)
}
