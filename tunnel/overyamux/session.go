// Session: a yamux session as tunnel wants it.

package overyamux

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

type session struct {
	*carrier.Pipe
	wire   *wire
	mux    *yamux.Session
	ctx    context.Context
	cancel context.CancelCauseFunc
	ours   chan struct{} // one token for each stream that this end opened
	theirs chan struct{} // one for each that the peer opened and we accepted

	mu    sync.Mutex // guards the following
	cause error      // why the session is over; nil while nobody knows that it is
	over  bool       // nothing may be added to tasks
	tasks sync.WaitGroup
}

// newSession makes a session of p and owns it.
func newSession(p *carrier.Pipe, client bool, o tunnel.Options) (*session, error) {
	s := &session{
		Pipe:   p,
		wire:   newWire(p.Conn(), client),
		ours:   make(chan struct{}, o.Streams()),
		theirs: make(chan struct{}, o.Streams()),
	}
	start := yamux.Server
	if client {
		start = yamux.Client
	}
	mux, err := start(s.wire, config())
	if err != nil {
		p.Abort() // the other error is the news
		return nil, fmt.Errorf("start yamux: %w", err)
	}
	s.mux = mux
	// The session is a root of its own: it ends by Close or by its connection,
	// not with whoever happened to dial.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	go s.bury() // joined by ctx, which Close waits for
	return s, nil
}

// bury waits for yamux to end and then for everything else.
func (s *session) bury() {
	<-s.mux.CloseChan()
	_ = s.mux.Close() // never fails; waits for yamux's goroutines
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.tasks.Wait()
	s.wire.closing.Wait()
	s.cancel(s.why())
}

// spawn runs f beside the caller. It does not if the session is over.
func (s *session) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.tasks.Go(f)
	return true
}

// aside runs f beside the caller or, once the session is over and nothing in it
// can block, in the caller.
func (s *session) aside(f func()) {
	if !s.spawn(f) {
		f()
	}
}

// why is the reason for the session's end, or Lost if it has not been found out.
func (s *session) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		s.cause = carrier.Lost(s.wire.broken())
	}
	return s.cause
}

// end ends the session for a reason of this end's.
func (s *session) end(cause error) {
	s.mu.Lock()
	if s.cause == nil && s.wire.broken() == nil {
		s.cause = cause
	}
	s.mu.Unlock()
	_ = s.mux.Close() // never fails
}

func (s *session) Context() context.Context { return s.ctx }

func (s *session) Close() error {
	s.end(tunnel.ErrSessionClosed)
	<-s.ctx.Done()
	return nil
}

// take takes a token, for as long as ctx lets it.
func (s *session) take(ctx context.Context, tokens chan struct{}) error {
	select {
	case tokens <- struct{}{}:
		return nil
	case <-s.mux.CloseChan():
		return s.why()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	if err := s.take(ctx, s.ours); err != nil {
		return nil, err
	}
	type result struct {
		stream *stream
		err    error
	}
	opened, unwanted := make(chan result), make(chan struct{})
	spawned := s.spawn(func() {
		var r result
		y, err := s.mux.OpenStream()
		if err != nil {
			r.err = s.openFailed(err)
			<-s.ours
		} else {
			r.stream = newStream(s, y, s.ours)
		}
		select {
		case opened <- r:
		case <-unwanted:
			if r.stream != nil {
				_ = r.stream.Abort() // never fails
			}
		}
	})
	if !spawned {
		<-s.ours
		return nil, s.why()
	}
	select {
	case r := <-opened:
		if r.err != nil {
			return nil, r.err
		}
		return r.stream, nil
	case <-ctx.Done():
		close(unwanted)
		return nil, context.Cause(ctx)
	}
}

func (s *session) openFailed(err error) error {
	switch {
	case s.mux.IsClosed():
		return s.why()
	case errors.Is(err, yamux.ErrStreamsExhausted):
		// Two thousand million streams have been. A new session starts from
		// zero.
		s.end(fmt.Errorf("%w: out of stream numbers", tunnel.Lost))
		return fmt.Errorf("%w: out of stream numbers", tunnel.Lost)
	default:
		return fmt.Errorf("%w: %w", tunnel.Internal, err)
	}
}

func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
	if err := s.take(ctx, s.theirs); err != nil {
		return nil, err
	}
	y, err := s.mux.AcceptStreamWithContext(ctx)
	switch {
	case err == nil:
		return newStream(s, y, s.theirs), nil
	case s.mux.IsClosed():
		err = s.why()
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	<-s.theirs
	return nil, err
}

var _ tunnel.Resumer = (*session)(nil)
