// Framing: how frames are spelled, and how streams come to be.

package mux

import (
	"errors"
	"fmt"
)

// MaxFrame is how much of a stream's data a frame holds at most.
const MaxFrame = 16 << 10

// ErrProtocol is wrapped by the error with which a session ends whose peer does
// what no peer of ours does.
var ErrProtocol = errors.New("peer breaks the protocol")

// Violation is such an error.
func Violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)
}

// A Framing is one end's way with frames. All methods but ReadFrame are called
// with the session's mutex held; those that spell something write it to the
// session, which is an io.Writer for that purpose and never fails.
type Framing interface {
	// Greet spells what an end says first.
	Greet()
	// ReadFrame reads a frame, and maybe only a part of its data. An error ends
	// the session; it wraps ErrProtocol if the peer is to blame.
	ReadFrame() error
	// HandleFrame tells the session what the frame says.
	HandleFrame() error

	// Open spells that this end opens a stream, the peer's window for which is
	// credit bytes more than the least one, and returns the stream's number;
	// waits says that the peer will answer, by which it takes the stream out of
	// its backlog. It is not ok if no stream can be opened now; then Retry is
	// called once it may.
	Open(credit int) (id uint32, waits, ok bool)
	// Accept spells that this end's program has accepted a stream; credit is as
	// for Open.
	Accept(id uint32, credit int)
	// Forgotten is told that the peer has given up a stream which nobody had
	// accepted.
	Forgotten(id uint32)
	// Data spells data, of MaxFrame bytes at most, or their end.
	Data(id uint32, end bool, p []byte)
	// Credit spells that the peer may send more.
	Credit(id uint32, n int)
	// Reset spells that a stream is no more: because it was given up, or because
	// nobody reads what the peer still sends.
	Reset(id uint32, abandoned bool)
	// Bye spells the last word of a session.
	Bye(peerAtFault bool)
}

// What follows is for framings, with the session's mutex held.

// Write sends a frame, or a part of one. It never fails.
func (s *Session) Write(p []byte) (int, error) {
	s.out.put(p, nil)
	return len(p), nil
}

// WriteFrame sends a frame in two parts.
func (s *Session) WriteFrame(head, body []byte) { s.out.put(head, body) }

// Opened is told that the peer has opened a stream.
func (s *Session) Opened(id uint32) error {
	if len(s.incoming) >= s.backlog {
		return Violation("more than %d streams wait to be accepted", s.backlog)
	}
	st := s.addLocked(id)
	s.incoming = append(s.incoming, st)
	signal(s.came)
	return nil
}

// Answered is told that the peer has accepted a stream. It does no harm if the
// stream is no more; if the peer has said so before it is an error.
func (s *Session) Answered(id uint32) error {
	st := s.streams[id]
	if st == nil {
		return nil
	}
	if !st.waits {
		return Violation("two answers for stream %d", id)
	}
	s.answeredLocked(st)
	return nil
}

// Received is told that data has come, and maybe its end. It owns b if that is
// not nil; p lies in b then.
func (s *Session) Received(id uint32, p []byte, b *Block, end bool) error {
	st := s.streams[id]
	if st == nil || s.dead { // by this end: it hears no more
		b.Free()
		return nil
	}
	var err error
	switch {
	case st.waits:
		err = Violation("data before the answer on stream %d", id)
	case st.ended:
		err = Violation("data behind the end of stream %d", id)
	case len(p) > st.in.window.open:
		err = Violation("more than the window of stream %d", id)
	}
	if err != nil {
		b.Free()
		return err
	}
	st.receivedLocked(p, b)
	if end {
		st.endedLocked()
	}
	return nil
}

// ResetByPeer is told that the peer has given a stream up.
func (s *Session) ResetByPeer(id uint32) {
	if st := s.streams[id]; st != nil {
		s.forgetLocked(st)
		st.brokenLocked()
	}
}

// Credited is told that the peer takes n bytes more of a stream.
func (s *Session) Credited(id uint32, n int) error {
	st := s.streams[id]
	if st == nil {
		return nil
	}
	if st.window += n; st.window > maxWindow {
		return Violation("a window without end")
	}
	signal(st.writer.wake)
	return nil
}

// Retry is told that Open may be ok by now.
func (s *Session) Retry() { signal(s.retry) }

// Fail ends the session soon, because of err.
func (s *Session) Fail(err error) {
	if s.out.fault == nil {
		s.out.fault = err
	}
	signal(s.kick)
}
