// Pair: a session in memory, for tests of what is above a session.

package tunneltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// pairBacklog is how many streams wait to be accepted before Open blocks.
const pairBacklog = 256

// Pair makes a session in memory and returns its two ends. Each peer is what the
// respective end learns about the other. Its streams are memnet connections; there is no
// multiplexer, no encryption and no goroutine.
func Pair(a, b tunnel.Peer, o tunnel.Options) (tunnel.Session, tunnel.Session) {
	sa, sb := newSession(b, o), newSession(a, o)
	sa.far, sb.far = sb, sa
	sa.local, sb.local = a.Addr, b.Addr
	return sa, sb
}

// ServeRequests is tunnel.StartServing that waits until s has ended or ctx is done.
func ServeRequests(ctx context.Context, s tunnel.Session, f func(context.Context, *tunnel.Request)) error {
	wait := tunnel.StartServing(ctx, s, f)
	select {
	case <-ctx.Done():
	case <-s.Context().Done():
	}
	return wait()
}

type session struct {
	peer   tunnel.Peer
	local  net.Addr
	far    *session
	ctx    context.Context
	cancel context.CancelCauseFunc
	accept chan *stream
	slots  chan struct{} // one for each stream that this end has open

	mu      sync.Mutex // guards the following
	streams map[*stream]struct{}
	closed  bool
}

func newSession(peer tunnel.Peer, o tunnel.Options) *session {
	s := &session{
		peer:    peer,
		accept:  make(chan *stream, pairBacklog),
		slots:   make(chan struct{}, o.Streams()),
		streams: make(map[*stream]struct{}),
	}
	// The session is a root of its own: it ends by Close, not with whoever
	// happened to dial.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

func (s *session) Context() context.Context { return s.ctx }
func (s *session) Peer() tunnel.Peer        { return s.peer }

func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	select {
	case s.slots <- struct{}{}:
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	a, b := memnet.Pipe(s.local, s.peer.Addr)
	near := &stream{Conn: a, session: s, slot: s.slots}
	far := &stream{Conn: b, session: s.far}
	if !s.add(near) || !s.far.add(far) {
		_ = near.Abort() // never fails
		return nil, tunnel.ErrSessionClosed
	}
	select {
	case s.far.accept <- far:
		return near, nil
	case <-s.ctx.Done():
		_ = near.Abort()
		return nil, context.Cause(s.ctx)
	case <-ctx.Done():
		_, _ = near.Abort(), far.Abort() // neither ever fails
		return nil, context.Cause(ctx)
	}
}

func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
	select {
	case st := <-s.accept:
		return st, nil
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *session) Close() error {
	s.end(tunnel.ErrSessionClosed)
	s.far.end(fmt.Errorf("%w: peer closed the session", tunnel.Lost))
	return nil
}

// Dismiss is Close.
func (s *session) Dismiss(*tunnel.Goodbye) error { return s.Close() }

// There is no connection below.
func (s *session) Link() tunnel.LinkState {
	return tunnel.LinkState{Streams: len(s.slots), MaxStreams: cap(s.slots)}
}
func (s *session) Tell(func(tunnel.LinkState)) {}
func (s *session) Move(context.Context) error  { return errors.New("there is nowhere to move to") }

// end aborts every stream of this end.
func (s *session) end(cause error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	streams := s.streams
	s.streams = nil
	s.mu.Unlock()
	for st := range streams {
		_ = st.Conn.Abort() // never fails
	}
	s.cancel(cause)
}

func (s *session) add(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.streams[st] = struct{}{}
	return true
}

func (s *session) remove(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
}

// A stream is a memnet connection that its session knows.
type stream struct {
	*memnet.Conn
	session *session
	slot    chan struct{} // nil at the accepting end
	once    sync.Once
}

func (st *stream) Close() error {
	st.gone()
	return st.Conn.Close()
}

func (st *stream) Abort() error {
	st.gone()
	return st.Conn.Abort()
}

func (st *stream) gone() {
	st.once.Do(func() {
		st.session.remove(st)
		if st.slot != nil {
			<-st.slot
		}
	})
}
