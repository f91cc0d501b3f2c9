// Session: the streams of one connection, and how they are opened.

package mux

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

// A Session is one end. Streams are in streams as long as the peer may speak of
// them.
type Session struct {
	*carrier.Pipe
	conn    net.Conn // the pipe's
	framing Framing
	backlog int
	intake  *tunnel.Intake
	ctx     context.Context
	cancel  context.CancelCauseFunc
	ours    chan struct{} // one token for each stream that this end opened
	theirs  chan struct{} // one for each that the peer opened and we accepted
	gone    chan struct{} // closed once dead
	kick    chan struct{} // wakes the writer; holds at most one

	// What wakes those who wait for something below: each holds at most one.
	came  chan struct{} // incoming has a stream
	retry chan struct{} // the peer's backlog has room, or the framing

	mu         sync.Mutex // guards the following and the streams
	streams    map[uint32]*stream
	incoming   []*stream // opened by the peer, to be accepted
	unanswered int       // opened by this end, and not yet accepted
	spare      int       // for windows; what windows have of it the intake has granted
	unread     int       // bytes of all streams; not kept up once dead
	out        outbox
	dead       bool
	cause      error // why; nil until it has been found out
	broken     error // what writing failed with
}

var _ tunnel.Teller = (*Session)(nil)

// New makes a session of p, which it owns. At most backlog streams wait to be
// accepted at either end: both must agree on it. Framing is called once, to make
// the session's.
func New(p *carrier.Pipe, backlog int, o tunnel.Options, framing func(*Session) Framing) *Session {
	s := &Session{
		Pipe: p, conn: p.Conn(), backlog: backlog, intake: o.Shared(),
		ours:    make(chan struct{}, o.Streams()),
		theirs:  make(chan struct{}, o.Streams()),
		gone:    make(chan struct{}),
		kick:    make(chan struct{}, 1),
		came:    make(chan struct{}, 1),
		retry:   make(chan struct{}, 1),
		streams: make(map[uint32]*stream),
		spare:   budget,
	}
	s.out.kick = s.kick
	s.out.direct, _ = s.conn.(trier)
	s.framing = framing(s)
	s.mu.Lock()
	s.framing.Greet()
	s.mu.Unlock()
	// The session is a root of its own: it ends by Close or by its connection,
	// not with whoever happened to dial.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	go s.run() // joined by ctx, which Close waits for
	return s
}

// read handles frames until it cannot; the error is never nil.
func (s *Session) read() error {
	for {
		if err := s.framing.ReadFrame(); err != nil {
			return err
		}
		s.mu.Lock()
		err := s.framing.HandleFrame()
		if err == nil {
			err = s.out.fault // the writer may be stuck
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// run reads and writes until the session is dead.
func (s *Session) run() {
	var wg sync.WaitGroup
	wg.Go(s.write)
	s.end(s.lost(s.read()))
	wg.Wait()
	s.cancel(s.why())
}

// lost is what becomes of err, with which reading has ended.
func (s *Session) lost(err error) error {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	var ne net.Error
	switch {
	case broken != nil && (errors.Is(err, io.EOF) || errors.As(err, &ne) && ne.Timeout()):
		// Whoever failed to write has left the peer some time for last words,
		// and there were none.
		return carrier.Lost(broken)
	default:
		return carrier.Lost(err)
	}
}

// end ends the session, for a reason that counts if it is the first. Only the
// writer closes the connection, when it has written what is left.
func (s *Session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return
	}
	s.dead, s.cause = true, cause
	close(s.gone)
	s.framing.Bye(errors.Is(cause, ErrProtocol))
	// A write that is under way gets that long, and the last one too.
	_ = s.conn.SetWriteDeadline(time.Now().Add(partingTime)) // the writer notices
	for _, st := range s.streams {
		st.wakeLocked()
		st.stopTimerLocked()
	}
	// What lies unread is not added to any more, and is soon read or closed.
	s.intake.Read(s.unread)
	s.intake.Return(budget - s.spare)
	signal(s.kick)
}

// why is the reason for the session's end.
func (s *Session) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Context is done once the session is dead; see tunnel.Session.
func (s *Session) Context() context.Context { return s.ctx }

// Close ends the session and its pipe.
func (s *Session) Close() error {
	s.end(tunnel.ErrSessionClosed)
	<-s.ctx.Done()
	return nil
}

// signal wakes whoever waits on c, or will.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// await waits for c as long as ctx and the session let it.
func (s *Session) await(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-s.gone:
		return s.why()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take takes a token.
func (s *Session) take(ctx context.Context, tokens chan struct{}) error {
	select {
	case tokens <- struct{}{}:
		return nil
	case <-s.gone:
		return s.why()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Open opens a stream; see tunnel.Session. While the session is parked it does so
// as long as what it says fits into the link, and then waits.
func (s *Session) Open(ctx context.Context) (tunnel.Stream, error) {
	if err := s.take(ctx, s.ours); err != nil {
		return nil, err
	}
	st, err := s.until(ctx, s.retry, s.openStreamLocked)
	if err != nil {
		<-s.ours
		return nil, err
	}
	return st, nil
}

// Accept waits for a stream that the peer opened; see tunnel.Session.
func (s *Session) Accept(ctx context.Context) (tunnel.Stream, error) {
	if err := s.take(ctx, s.theirs); err != nil {
		return nil, err
	}
	st, err := s.until(ctx, s.came, s.acceptLocked)
	if err != nil {
		<-s.theirs
		return nil, err
	}
	return st, nil
}

// until calls try, when woken and when there is room in the outbox, until it
// comes up with a stream.
func (s *Session) until(ctx context.Context, wake chan struct{}, try func() (*stream, bool)) (*stream, error) {
	w := &waiter{wake: make(chan struct{}, 1)} // it has little to say
	s.mu.Lock()
	defer func() {
		s.out.leave(w)
		s.mu.Unlock()
	}()
	for {
		if s.dead {
			return nil, s.cause
		}
		next := wake
		if !s.out.enter(w) {
			next = w.wake
		} else if st, more := try(); st != nil {
			if more {
				signal(wake) // for the next one
			}
			return st, nil
		} else {
			s.out.done(w)
		}
		s.mu.Unlock()
		err := s.await(ctx, next)
		s.mu.Lock()
		if err != nil {
			signal(wake) // whoever is next may have relied on this one
			return nil, err
		}
	}
}

// openStreamLocked opens a stream, unless the peer's backlog is full or the
// framing has to wait.
func (s *Session) openStreamLocked() (st *stream, more bool) {
	if s.unanswered >= s.backlog {
		return nil, false
	}
	var w window
	id, waits, ok := s.framing.Open(s.openLocked(&w))
	if !ok {
		s.closeLocked(&w)
		return nil, false
	}
	st = newStream(s, id)
	st.in.window, st.tokens, st.waits = w, s.ours, waits
	s.streams[id] = st
	if waits {
		s.unanswered++
	}
	return st, true
}

// addLocked is a stream that the peer has opened. Its window is the least one
// until it is accepted.
func (s *Session) addLocked(id uint32) *stream {
	st := newStream(s, id)
	st.in.window.size, st.in.window.open = Least, Least
	s.streams[id] = st
	return st
}

// answeredLocked takes a stream that this end opened out of the peer's backlog.
func (s *Session) answeredLocked(st *stream) {
	if st.waits {
		st.waits = false
		s.unanswered--
		signal(s.retry)
	}
}

// acceptLocked accepts a stream, and tells the peer that there is room for
// another one.
func (s *Session) acceptLocked() (st *stream, more bool) {
	if len(s.incoming) == 0 {
		return nil, false
	}
	st = s.incoming[0]
	s.incoming = slices.Delete(s.incoming, 0, 1)
	st.tokens = s.theirs
	s.framing.Accept(st.id, s.widenLocked(&st.in.window))
	return st, len(s.incoming) > 0
}

// forgetLocked drops a stream that nobody has accepted, if st is one: the peer
// has given it up.
func (s *Session) forgetLocked(st *stream) {
	if i := slices.Index(s.incoming, st); i >= 0 {
		s.incoming = slices.Delete(s.incoming, i, i+1)
		st.dropLocked() // even what came before an orderly end
		s.framing.Forgotten(st.id)
	}
}
