// Session: a QUIC connection as tunnel wants it.

package overquic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
)

// The codes that go with a CONNECTION_CLOSE.
const (
	codeClosed   quic.ApplicationErrorCode = 0
	codeProtocol quic.ApplicationErrorCode = 1
)

var errProtocol = errors.New("peer breaks the protocol")

type session struct {
	conn    *quic.Conn
	peer    tunnel.Peer
	ctx     context.Context
	cancel  context.CancelCauseFunc
	shut    func()        // gives back what is below the connection
	ours    chan struct{} // one token for each stream that this end opened
	theirs  chan struct{} // one for each that the peer opened and we accepted
	waiting chan struct{} // one for each of ours that the peer has not accepted

	tally   *quic.SendStream
	tallyMu sync.Mutex // guards writing to tally

	mu    sync.Mutex // guards the following
	cause error      // why this end ended the session; nil if it did not
}

// newSession makes a session of c and owns it. shut is called after c is closed.
func newSession(c *quic.Conn, o tunnel.Options, shut func()) (*session, error) {
	state := c.ConnectionState().TLS
	s := &session{
		conn:    c,
		peer:    tunnel.Peer{Addr: c.RemoteAddr(), TLS: &state, Transport: "quic"},
		shut:    shut,
		ours:    make(chan struct{}, o.Streams()),
		theirs:  make(chan struct{}, o.Streams()),
		waiting: make(chan struct{}, backlog),
	}
	err := tunnel.CheckALPN(state)
	if err == nil {
		s.tally, err = c.OpenUniStream()
	}
	if err != nil {
		_ = c.CloseWithError(codeProtocol, "no tally") // the other error is the news
		shut()
		return nil, fmt.Errorf("start session: %w", err)
	}
	// The session is a root of its own: it ends by Close or by its connection,
	// not with whoever happened to dial.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	go s.run() // joined by ctx, which Close waits for
	return s, nil
}

// run reads the peer's tally until the connection ends, and then cleans up.
func (s *session) run() {
	if err := s.readTally(); err != nil {
		s.end(codeProtocol, fmt.Errorf("%w: %w", tunnel.Lost, err))
	}
	<-s.conn.Context().Done()
	s.shut()
	s.cancel(s.why())
}

// readTally counts the streams that the peer accepts. The error is nil if the
// connection has ended.
func (s *session) readTally() error {
	in, err := s.conn.AcceptUniStream(s.conn.Context())
	if err != nil {
		return nil //nolint:nilerr // it fails only with the connection
	}
	buf := make([]byte, backlog)
	for {
		n, err := in.Read(buf)
		for range n {
			select {
			case <-s.waiting:
			default:
				return fmt.Errorf("%w: it accepts more than was opened", errProtocol)
			}
		}
		if err != nil && s.conn.Context().Err() == nil {
			return fmt.Errorf("%w: it stops counting", errProtocol)
		}
		if err != nil {
			return nil
		}
	}
}

// count tells the peer that one of its streams has been accepted. At most
// backlog of these can be on their way, which fit into one packet: it does not
// wait for the link.
func (s *session) count() {
	s.tallyMu.Lock()
	defer s.tallyMu.Unlock()
	_, _ = s.tally.Write([]byte{1}) // fails only with the connection
}

// end closes the connection for a reason of this end's, unless it is closed.
func (s *session) end(code quic.ApplicationErrorCode, cause error) {
	s.mu.Lock()
	if s.cause == nil && s.conn.Context().Err() == nil {
		s.cause = cause
	}
	s.mu.Unlock()
	_ = s.conn.CloseWithError(code, cause.Error()) // never fails
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
	)
	switch {
	case s.cause != nil:
		return s.cause
	case err == nil:
		return fmt.Errorf("%w: connection closed", tunnel.Lost)
	case errors.As(err, &app) && app.Remote:
		return fmt.Errorf("%w: peer closed the connection: %s", tunnel.Lost, app.ErrorMessage)
	case errors.As(err, &transport):
		return fmt.Errorf("%w: %w", tunnel.Lost, alert(err))
	default:
		// Others unwrap to what would mislead: a session that was cut is no
		// deadline, and not closed by its own end.
		return fmt.Errorf("%w: %s", tunnel.Lost, err.Error())
	}
}

// alert makes of an alert of the peer's TLS what it is over TCP.
func alert(err error) error {
	var e *quic.TransportError
	if errors.As(err, &e) && e.Remote && e.ErrorCode.IsCryptoError() {
		return &net.OpError{Op: "remote error", Err: tls.AlertError(e.ErrorCode & 0xff)} // RFC 9001, 4.8
	}
	return err
}

func (s *session) Context() context.Context { return s.ctx }
func (s *session) Peer() tunnel.Peer        { return s.peer }

func (s *session) Close() error {
	s.end(codeClosed, tunnel.ErrSessionClosed)
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
