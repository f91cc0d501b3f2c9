// Session: a QUIC connection as tunnel wants it.

package overquic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
)

// The codes that go with a CONNECTION_CLOSE.
const (
	codeClosed   quic.ApplicationErrorCode = 0
	codeProtocol quic.ApplicationErrorCode = 1
	codeGone     quic.ApplicationErrorCode = 2
	// codeGoodbye and the 255 codes after it are a tunnel.Code: why the peer ended the
	// session. An older peer takes them for a loss.
	codeGoodbye quic.ApplicationErrorCode = 0x100
)

// maxReason bounds the text that goes with one of those, in bytes, so that it fits
// into the one packet that there is for it.
const maxReason = 512

// The tally goes before all streams, and streams that have proven to be bulk
// behind all others (RFC 9218, 4.1, where 3 is the default).
const (
	urgencyTally = 0
	urgencyBulk  = 4
)

var errProtocol = errors.New("peer breaks the protocol")

type session struct {
	conn    *quic.Conn
	peer    tunnel.Peer
	ctx     context.Context
	cancel  context.CancelCauseFunc
	ours    chan struct{} // one token for each stream that this end opened
	theirs  chan struct{} // one for each that the peer opened and we accepted
	waiting chan struct{} // one for each of ours that the peer has not accepted

	log     *slog.Logger
	mooring *mooring // at the dialing end, and owned; nil at the other
	below   *served  // at the accepting end, its listener's socket; nil if that is no UDP socket

	tally   *quic.SendStream
	tallyMu sync.Mutex // guards writing to tally

	resting atomic.Bool   // watch has nothing to look at
	stirred chan struct{} // holds a token once somebody uses the session
	words   chan word     // from the peer's tally to watch
	cries   chan struct{} // holds a token while watch wants the peer told that this end is deaf
	promise atomic.Int64  // within how many nanoseconds the peer hears from this end

	// Owned by watch.
	asker  *asker  // at the dialing end
	hearer *hearer // at the other
	roused bool
	cried  time.Time // when it last said that it is deaf
	probes int       // how many have gone since the path died
	// The latest probe, and where it went; guarded by the inquiry.
	probe  probe
	probed netip.AddrPort

	mu    sync.Mutex       // guards the following
	cause error            // why this end ended the session; nil if it did not
	link  tunnel.LinkState // but for what the connection itself knows
	tell  func(tunnel.LinkState)
	// looked is how many packets had come when watch last looked.
	looked uint64
}

// newSession makes a session of c and owns both it and m, which is nil at the
// accepting end. So is below at the dialing end, and where the listener's socket is no
// UDP socket.
func newSession(c *quic.Conn, o tunnel.Options, m *mooring, below *served) (*session, error) {
	state := c.ConnectionState().TLS
	addr := c.RemoteAddr()
	s := &session{
		conn:    c,
		peer:    tunnel.Peer{Addr: addr, TLS: &state, Transport: "quic"},
		mooring: m,
		below:   below,
		log:     o.Log,
		ours:    make(chan struct{}, o.Streams()),
		theirs:  make(chan struct{}, o.Streams()),
		waiting: make(chan struct{}, backlog),
		stirred: make(chan struct{}, 1),
		words:   make(chan word),
		cries:   make(chan struct{}, 1),
		link:    tunnel.LinkState{Window: max(o.Link.Window(), 0), Addr: addr, Heard: time.Now()},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	interval := o.Link.Interval()
	if m != nil {
		s.asker = newAsker(interval, o.Link.Metered, s.link.Window)
		s.promise.Store(int64(s.asker.promise()))
	} else {
		s.hearer = &hearer{promise: interval, window: s.link.Window}
	}
	err := tunnel.CheckALPN(state)
	if err == nil {
		s.tally, err = c.OpenUniStream()
	}
	if err != nil {
		_ = c.CloseWithError(codeProtocol, "no tally") // the other error is the news
		s.shut()
		return nil, fmt.Errorf("start session: %w", alert(err))
	}
	s.tally.SetPriority(urgencyTally, false)
	s.say(word{kind: kindHello, window: s.link.Window, interval: interval})
	// The session is a root of its own: it ends by Close or by its connection,
	// not with whoever happened to dial.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	go s.run() // joined by ctx, which Close waits for
	return s, nil
}

// run looks after the connection until it ends, and then cleans up.
func (s *session) run() {
	var wg sync.WaitGroup
	if s.mooring != nil && s.link.Window > 0 {
		wg.Go(func() { s.mooring.prepare(s.conn.Context()) })
	}
	wg.Go(s.watch)
	if s.mooring == nil {
		wg.Go(s.datagrams)
	} else {
		wg.Go(s.cry)
	}
	if err := s.readTally(); err != nil {
		s.end(codeProtocol, &gone{code: tunnel.Lost, text: "session ended", cause: err})
	}
	<-s.conn.Context().Done()
	wg.Wait()
	if s.mooring != nil && s.unheard() {
		s.mooring.part()
	}
	if s.below != nil {
		s.below.muted.unmute(s.addr())
	}
	if s.asks() {
		s.below.inquiry.forget(s)
	}
	s.shut()
	s.cancel(s.why())
}

// unheard says whether the peer may not know that this end has ended the session.
func (s *session) unheard() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(s.cause, tunnel.ErrSessionClosed) && !s.link.Parked.IsZero()
}

// shut gives back what is below the connection.
func (s *session) shut() {
	if s.mooring != nil {
		s.mooring.close()
	}
}

// readTally counts the streams that the peer accepts, and hands on the rest of
// what it says. The error is nil if the connection has ended.
func (s *session) readTally() error {
	ctx := s.conn.Context()
	in, err := s.conn.AcceptUniStream(ctx)
	if err != nil {
		return nil //nolint:nilerr // it fails only with the connection
	}
	var (
		said []byte
		buf  = make([]byte, backlog)
	)
	for {
		n, err := in.Read(buf)
		said = append(said, buf[:n]...)
		for {
			w, size, derr := decodeWord(said)
			if derr != nil {
				return derr
			}
			if size == 0 {
				break
			}
			if derr = s.hear(ctx, w); derr != nil {
				return derr
			}
			said = said[size:]
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%w: it stops counting", errProtocol)
		}
		if err != nil {
			return nil
		}
	}
}

// hear takes a word of the peer's.
func (s *session) hear(ctx context.Context, w word) error {
	if w.kind == kindAccepted {
		select {
		case <-s.waiting:
			return nil
		default:
			return fmt.Errorf("%w: it accepts more than was opened", errProtocol)
		}
	}
	select {
	case s.words <- w:
	case <-ctx.Done():
	}
	return nil
}

// count tells the peer that one of its streams has been accepted. At most
// backlog of these can be on their way, which fit into one packet: it does not
// wait for the link.
func (s *session) count() {
	s.tallyMu.Lock()
	defer s.tallyMu.Unlock()
	_, _ = s.tally.Write([]byte{kindAccepted}) // fails only with the connection
}

// say tells the peer something if there is room for it.
func (s *session) say(w word) {
	s.tallyMu.Lock()
	defer s.tallyMu.Unlock()
	_ = s.tally.TryWriteAll(appendWord(nil, w)) // it will be said again, or nobody waits for it
}

// end closes the connection for a reason of this end's, unless it is closed.
func (s *session) end(code quic.ApplicationErrorCode, cause error) {
	s.endWith(code, cause.Error(), cause)
}

// endWith is end, and tells the peer text.
func (s *session) endWith(code quic.ApplicationErrorCode, text string, cause error) {
	s.mu.Lock()
	if s.cause == nil && s.conn.Context().Err() == nil {
		s.cause = cause
	}
	s.mu.Unlock()
	if s.mooring != nil {
		s.mooring.keep()
	}
	_ = s.conn.CloseWithError(code, text) // never fails
}

// why is the reason for the session's end, once it is at one.
func (s *session) why() error { return s.explain(context.Cause(s.conn.Context())) }

// explain makes ours of the connection's error.
func (s *session) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var (
		app       *quic.ApplicationError
		transport *quic.TransportError
		idle      *quic.IdleTimeoutError
	)
	switch {
	case s.cause != nil:
		return s.cause
	case err == nil:
		return &gone{code: tunnel.Lost, text: "connection closed"}
	case errors.As(err, &app) && app.Remote && app.ErrorCode == codeGone:
		return &gone{code: tunnel.Dead, text: "peer closed the connection: " + app.ErrorMessage}
	case errors.As(err, &app) && goodbye(app) != nil:
		return &gone{code: tunnel.Lost, text: "peer closed the connection", cause: goodbye(app)}
	case errors.As(err, &app) && app.Remote:
		return &gone{code: tunnel.Lost, text: "peer closed the connection: " + app.ErrorMessage}
	case errors.As(err, &transport):
		return &gone{code: tunnel.Lost, text: "connection broke", cause: alert(err)}
	case errors.As(err, &idle):
		return &gone{code: tunnel.Dead, text: err.Error()}
	default:
		// Others unwrap to what would mislead: a session that was cut is no
		// deadline, and not closed by its own end.
		return &gone{code: tunnel.Lost, text: err.Error()}
	}
}

// A gone is why there is no session any more. It unwraps to its code, to
// syscall.ECONNRESET and to the cause.
type gone struct {
	code  tunnel.Code // Dead if the peer fell silent, or Lost
	text  string
	cause error
}

func (g *gone) Error() string {
	text := g.code.String() + ": " + g.text
	if g.cause != nil {
		text += ": " + g.cause.Error()
	}
	return text
}

func (g *gone) Unwrap() []error {
	errs := []error{g.code, syscall.ECONNRESET}
	if g.cause != nil {
		errs = append(errs, g.cause)
	}
	return errs
}

// Timeout and Temporary make it a net.Error. It is never a timeout in the sense
// of a deadline, so that nobody tries the same stream again.
func (g *gone) Timeout() bool { return false }

// Temporary is the code's.
func (g *gone) Temporary() bool { return g.code.Temporary() }

// goodbye is what the peer has said with its CONNECTION_CLOSE; nil if it said nothing.
func goodbye(app *quic.ApplicationError) *tunnel.Goodbye {
	if !app.Remote || app.ErrorCode&^0xff != codeGoodbye {
		return nil
	}
	return &tunnel.Goodbye{Code: tunnel.Code(app.ErrorCode & 0xff), Text: app.ErrorMessage}
}

// alert makes of an alert of the peer's TLS what it is over TCP, and of a peer's
// goodbye what it said.
func alert(err error) error {
	var (
		e   *quic.TransportError
		app *quic.ApplicationError
	)
	if errors.As(err, &app) && goodbye(app) != nil {
		return goodbye(app)
	}
	if errors.As(err, &e) && e.Remote && e.ErrorCode.IsCryptoError() {
		return &net.OpError{Op: "remote error", Err: tls.AlertError(e.ErrorCode & 0xff)} // RFC 9001, 4.8
	}
	return err
}

func (s *session) Context() context.Context { return s.ctx }
func (s *session) Peer() tunnel.Peer        { return s.peer }

// localAddr and remoteAddr are the ends of the path. The dialing end must not ask
// its connection, which changes them without a lock.
func (s *session) localAddr() net.Addr {
	if s.mooring != nil {
		return s.mooring.local.Load()
	}
	return s.conn.LocalAddr()
}

func (s *session) remoteAddr() net.Addr {
	if s.mooring != nil {
		return s.peer.Addr
	}
	return s.conn.RemoteAddr()
}

func (s *session) Close() error {
	s.end(codeClosed, tunnel.ErrSessionClosed)
	<-s.ctx.Done()
	return nil
}

// Dismiss implements tunnel.Dismisser.
func (s *session) Dismiss(code tunnel.Code, text string) error {
	s.endWith(codeGoodbye|quic.ApplicationErrorCode(code), text[:min(len(text), maxReason)], tunnel.ErrSessionClosed)
	<-s.ctx.Done()
	return nil
}

// take takes a token, for as long as ctx lets it.
func (s *session) take(ctx context.Context, tokens chan struct{}) error {
	select {
	case tokens <- struct{}{}:
		return nil
	case <-s.conn.Context().Done():
		return s.why()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	s.stir()
	if err := s.take(ctx, s.ours); err != nil {
		return nil, err
	}
	if err := s.take(ctx, s.waiting); err != nil {
		<-s.ours
		return nil, err
	}
	q, err := s.conn.OpenStreamSync(ctx)
	if err == nil {
		_, err = q.Write([]byte{1}) // so little does not wait for the link
	}
	if err != nil {
		<-s.waiting
		<-s.ours
		return nil, s.failed(ctx, err)
	}
	return newStream(s, q, s.ours), nil
}

func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
	if err := s.take(ctx, s.theirs); err != nil {
		return nil, err
	}
	q, err := s.conn.AcceptStream(ctx)
	if err != nil {
		<-s.theirs
		return nil, s.failed(ctx, err)
	}
	s.count()
	s.stir()
	st := newStream(s, q, s.theirs)
	st.mark = true
	return st, nil
}

// failed says why opening or accepting a stream did.
func (s *session) failed(ctx context.Context, err error) error {
	if s.conn.Context().Err() == nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.explain(err)
}
