// Session: the library's session with contexts and bounds.

package overyamux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

type session struct {
	*carrier.Session
	mux          *yamux.Session
	closeTimeout time.Duration
	writeTimeout time.Duration
	guard        *guard

	accepted chan struct{} // as Opened, for streams of the peer
}

// newSession makes a session of c, which it owns. start is the library's function for this
// end.
func newSession(c net.Conn, p tunnel.Peer, start startFunc, conf *yamux.Config, o tunnel.Options) (*session, error) {
	g := newGuard(c, o.Shared())
	conn := carrier.NewConn(g, conf.ConnectionWriteTimeout, func() {})
	mux, err := start(conn, conf)
	if err != nil {
		_ = conn.Close() // err is what is reported
		return nil, err
	}
	s := &session{
		Session: carrier.NewSession(p, o.Streams()), mux: mux, closeTimeout: conf.StreamCloseTimeout, writeTimeout: conf.ConnectionWriteTimeout, guard: g,
		accepted: make(chan struct{}, o.Streams()+backlog),
	}
	s.Go(func() {
		select {
		case <-mux.CloseChan():
		case <-s.Alive().Done():
		}
		_ = mux.Close() // never fails, and returns once the library has stopped
		g.end()
		s.End(conn.Cause())
	})
	return s, nil
}

// Open implements tunnel.Session. OpenStream, which cannot be canceled, may wait for the
// peer's backlog; it keeps its place meanwhile, which bounds such calls.
func (s *session) Open(ctx context.Context) (tunnel.Stream, error) {
	return carrier.Open(ctx, s.Session, func() (tunnel.Stream, error) {
		st, err := s.mux.OpenStream()
		if err != nil {
			return nil, s.failed(err)
		}
		return newStream(s, st, s.Opened), nil
	})
}

// Accept implements tunnel.Session.
func (s *session) Accept(ctx context.Context) (tunnel.Stream, error) {
	if err := s.Acquire(ctx, s.accepted); err != nil {
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

// failed translates an error of the library. After a write timeout it ends the session:
// the library does not say whether the data is still sent.
func (s *session) failed(err error) error {
	if errors.Is(err, yamux.ErrConnectionWriteTimeout) {
		s.End(fmt.Errorf("%w: connection took nothing for %v", tunnel.Dead, writeTimeout))
	}
	if s.mux.IsClosed() {
		<-s.Alive().Done()
	}
	if s.Alive().Err() != nil {
		return context.Cause(s.Alive())
	}
	return fmt.Errorf("yamux: %w", err)
}
