// Session: the streams of one connection, and how they are opened.

package overh2

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

const (
	// backlog is how many streams of the client's may wait to be accepted,
	// offers how many the client holds out for the server to open. Both ends
	// must agree on them: they are part of the protocol.
	backlog = 256
	offers  = 64

	maxStreamID = 1<<31 - 1
)

// A session is one end. Streams are in streams as long as the peer may speak of
// them.
type session struct {
	*carrier.Pipe
	conn   net.Conn // the pipe's
	client bool     // HTTP/2's
	framer *http2.Framer
	ctx    context.Context
	cancel context.CancelCauseFunc
	ours   chan struct{} // one token for each stream that this end opened
	theirs chan struct{} // one for each that the peer opened and we accepted
	gone   chan struct{} // closed once dead
	kick   chan struct{} // wakes the writer; holds at most one

	// What wakes those who wait for something below: each holds at most one.
	came    chan struct{} // incoming has a stream
	offered chan struct{} // offers has one
	heard   chan struct{} // an opened stream has been answered

	in struct { // owned by the reader
		greeted bool // the peer's settings have come
		window  int  // what the peer may still send
	}

	mu         sync.Mutex // guards the following and the streams
	streams    map[uint32]*stream
	next       uint32              // no stream of this number or above has been opened
	initial    int                 // the window that the peer gives to a new stream
	incoming   []*stream           // opened by the peer, to be accepted
	offers     []uint32            // at the server: streams to be opened
	offering   map[uint32]struct{} // at the client: those held out to the server
	unanswered int                 // at the client: opened and not yet accepted
	out        outbox
	dead       bool
	cause      error // why; nil until it has been found out
	broken     error // what writing failed with
}

// newSession makes a session of p and owns it.
func newSession(p *carrier.Pipe, client bool, o tunnel.Options) *session {
	s := &session{
		Pipe: p, conn: p.Conn(), client: client,
		ours:     make(chan struct{}, o.Streams()),
		theirs:   make(chan struct{}, o.Streams()),
		gone:     make(chan struct{}),
		kick:     make(chan struct{}, 1),
		came:     make(chan struct{}, 1),
		offered:  make(chan struct{}, 1),
		heard:    make(chan struct{}, 1),
		streams:  make(map[uint32]*stream),
		offering: make(map[uint32]struct{}),
		next:     1,
		initial:  1<<16 - 1, // RFC 9113, 6.5.2, until it says otherwise
	}
	s.in.window = sessionWindow
	s.out.init(s.kick)
	s.framer = http2.NewFramer(&s.out, s.conn)
	s.framer.SetReuseFrames()
	s.framer.SetMaxReadFrameSize(frameSize)
	s.framer.MaxHeaderListSize = 1 << 10
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.mu.Lock()
	s.greetLocked()
	s.mu.Unlock()
	// The session is a root of its own: it ends by Close or by its connection,
	// not with whoever happened to dial.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	go s.run() // joined by ctx, which Close waits for
	return s
}

// run reads and writes until the session is dead.
func (s *session) run() {
	var wg sync.WaitGroup
	wg.Go(s.write)
	s.end(s.lost(s.read()))
	wg.Wait()
	s.cancel(s.why())
}

// lost is what becomes of err, with which reading has ended.
func (s *session) lost(err error) error {
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
func (s *session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return
	}
	s.dead, s.cause = true, cause
	close(s.gone)
	code := http2.ErrCodeNo
	if errors.Is(cause, errProtocol) {
		code = http2.ErrCodeProtocol
	}
	_ = s.framer.WriteGoAway(s.lastSeenLocked(), code, nil) // an outbox never fails
	// A write that is under way gets that long, and the last one too.
	_ = s.conn.SetWriteDeadline(time.Now().Add(partingTime)) // the writer notices
	for _, st := range s.streams {
		st.wakeLocked()
		st.stopTimerLocked()
	}
	signal(s.kick)
}

// why is the reason for the session's end.
func (s *session) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

func (s *session) Context() context.Context { return s.ctx }

func (s *session) Close() error {
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
func (s *session) await(ctx context.Context, c <-chan struct{}) error {
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
func (s *session) take(ctx context.Context, tokens chan struct{}) error {
	select {
	case tokens <- struct{}{}:
		return nil
	case <-s.gone:
		return s.why()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	if err := s.take(ctx, s.ours); err != nil {
		return nil, err
	}
	try, wake := s.answerOfferLocked, s.offered
	if s.client {
		try, wake = s.requestLocked, s.heard
	}
	st, err := s.until(ctx, wake, try)
	if err != nil {
		<-s.ours
		return nil, err
	}
	return st, nil
}

func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
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
func (s *session) until(ctx context.Context, wake chan struct{}, try func() (*stream, bool)) (*stream, error) {
	w := &waiter{wake: make(chan struct{}, 1)}
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

// requestLocked opens a stream at the client.
func (s *session) requestLocked() (st *stream, more bool) {
	if s.unanswered == backlog {
		return nil, false
	}
	id := s.newRequestLocked(authorityStream)
	if id == 0 {
		return nil, false
	}
	st = s.newStreamLocked(id)
	st.tokens, st.waits = s.ours, true
	s.unanswered++
	return st, s.unanswered < backlog
}

// answeredLocked takes a stream that this end opened out of the peer's backlog.
func (s *session) answeredLocked(st *stream) {
	if st.waits {
		st.waits = false
		s.unanswered--
		signal(s.heard)
	}
}

// newRequestLocked sends a CONNECT request; 0 if the session has run out of
// numbers, a thousand million of which there are: a new one starts from 1.
func (s *session) newRequestLocked(authority string) uint32 {
	if s.next > maxStreamID {
		s.out.fault = errExhausted
		signal(s.kick)
		return 0
	}
	id := s.next
	s.next += 2
	s.putHeadersLocked(id, [][2]string{{":method", "CONNECT"}, {":authority", authority}})
	return id
}

// offerLocked holds out a stream to the server.
func (s *session) offerLocked() {
	if id := s.newRequestLocked(authorityOffer); id != 0 {
		s.offering[id] = struct{}{}
	}
}

// answerOfferLocked opens a stream at the server.
func (s *session) answerOfferLocked() (st *stream, more bool) {
	if len(s.offers) == 0 {
		return nil, false
	}
	st = s.newStreamLocked(s.offers[0])
	s.offers = slices.Delete(s.offers, 0, 1)
	st.tokens = s.ours
	s.putHeadersLocked(st.id, [][2]string{{":status", "200"}})
	return st, len(s.offers) > 0
}

// acceptLocked accepts a stream, and tells the peer that there is room for
// another one.
func (s *session) acceptLocked() (st *stream, more bool) {
	if len(s.incoming) == 0 {
		return nil, false
	}
	st = s.incoming[0]
	s.incoming = slices.Delete(s.incoming, 0, 1)
	st.tokens = s.theirs
	if s.client {
		s.offerLocked()
	} else {
		s.putHeadersLocked(st.id, [][2]string{{":status", "200"}})
	}
	return st, len(s.incoming) > 0
}

// forgetLocked drops a stream that nobody has accepted, if st is one: the peer
// has given it up.
func (s *session) forgetLocked(st *stream) {
	if i := slices.Index(s.incoming, st); i >= 0 {
		s.incoming = slices.Delete(s.incoming, i, i+1)
		if s.client {
			s.offerLocked()
		}
	}
}

// putHeadersLocked writes a header block.
func (s *session) putHeadersLocked(id uint32, fields [][2]string) {
	s.out.block.Reset()
	for _, f := range fields {
		_ = s.out.hpack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // a bytes.Buffer never fails
	}
	_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.out.block.Bytes(), EndHeaders: true}) // nor does an outbox
	signal(s.kick)
}
