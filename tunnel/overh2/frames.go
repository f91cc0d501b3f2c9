// Frames: what an end does about each of its peer's.

package overh2

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/net/http2"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// window is how much of a stream may be on its way unread, sessionWindow how
	// much of all of them: more than any link holds.
	window        = 2 << 20
	sessionWindow = 1 << 30
	maxWindow     = 1<<31 - 1

	// frameSize is what HTTP/2 lets every peer send (RFC 9113, 4.2).
	frameSize = 16 << 10

	// The authorities of CONNECT requests.
	authorityStream = "stream"
	authorityOffer  = "offer"
)

// violation is the error about a peer that does what no peer of ours does.
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errProtocol}, args...)...)
}

// greetLocked says what an end says first.
func (s *session) greetLocked() {
	settings := []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: window}}
	if s.client {
		_, _ = io.WriteString(&s.out, http2.ClientPreface) // an outbox never fails
		settings = append(settings, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	}
	_ = s.framer.WriteSettings(settings...)
	_ = s.framer.WriteWindowUpdate(0, sessionWindow-(1<<16-1))
	if s.client {
		for range offers {
			s.offerLocked()
		}
	}
}

// read handles frames until it cannot; the error is never nil.
func (s *session) read() error {
	if !s.client {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(s.conn, preface); err != nil {
			return err
		}
		if string(preface) != http2.ClientPreface {
			return violation("it does not speak HTTP/2")
		}
	}
	for {
		f, err := s.framer.ReadFrame()
		if err != nil {
			return readError(err)
		}
		if err := s.handle(f); err != nil {
			return err
		}
		s.mu.Lock()
		fault := s.out.fault // the writer may be stuck
		s.mu.Unlock()
		if fault != nil {
			return fault
		}
	}
}

// readError tells a peer's fault from the connection's.
func readError(err error) error {
	var (
		ce http2.ConnectionError
		se http2.StreamError
	)
	if errors.As(err, &ce) || errors.As(err, &se) || errors.Is(err, http2.ErrFrameTooLarge) {
		return fmt.Errorf("%w: %w", errProtocol, err)
	}
	return err
}

// handle does what a frame asks for.
func (s *session) handle(f http2.Frame) error {
	settings, ok := f.(*http2.SettingsFrame)
	if !s.in.greeted && !ok {
		return violation("it does not begin with its settings")
	}
	s.in.greeted = true
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f := f.(type) {
	case *http2.DataFrame:
		return s.dataLocked(f)
	case *http2.MetaHeadersFrame:
		if s.client {
			return s.responseLocked(f)
		}
		return s.newStreamFromLocked(f)
	case *http2.RSTStreamFrame:
		return s.resetLocked(f)
	case *http2.WindowUpdateFrame:
		return s.windowLocked(f)
	case *http2.SettingsFrame:
		return s.settingsLocked(settings)
	case *http2.PingFrame:
		if !f.IsAck() {
			return s.framer.WritePing(true, f.Data)
		}
	case *http2.GoAwayFrame:
		if f.ErrCode != http2.ErrCodeNo {
			return fmt.Errorf("peer gave up: %v", f.ErrCode)
		}
	case *http2.PushPromiseFrame:
		return violation("it pushes")
	}
	return nil // RFC 9113, 4.1: what is unknown is ignored
}

// findLocked is the stream that a frame is about; nil if it is closed.
func (s *session) findLocked(f http2.Frame) (*stream, error) {
	id := f.Header().StreamID
	_, offered := s.offering[id]
	if offered || id >= s.next || id%2 == 0 {
		return nil, violation("%v for stream %d, which nobody has opened", f.Header().Type, id)
	}
	return s.streams[id], nil
}

func (s *session) newStreamLocked(id uint32) *stream {
	st := newStream(s, id)
	s.streams[id] = st
	return st
}

// newStreamFromLocked takes the client's request for a stream, or its offer of
// one.
func (s *session) newStreamFromLocked(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	switch {
	case id < s.next || id%2 == 0:
		return violation("headers for stream %d", id)
	case f.Truncated || f.PseudoValue("method") != "CONNECT":
		return violation("a request other than CONNECT")
	}
	s.next = id + 2
	switch f.PseudoValue("authority") {
	case authorityStream:
		if len(s.incoming) == backlog {
			return violation("more than %d streams wait to be accepted", backlog)
		}
		st := s.newStreamLocked(id)
		s.incoming = append(s.incoming, st)
		if f.StreamEnded() {
			st.endedLocked()
		}
		signal(s.came)
	case authorityOffer:
		if len(s.offers) == offers || f.StreamEnded() {
			return violation("an offer that is none")
		}
		s.offers = append(s.offers, id)
		signal(s.offered)
	default:
		return violation("a request for %q", f.PseudoValue("authority"))
	}
	return nil
}

// responseLocked takes the server's answer to a request: it has accepted the
// stream, or opened the one it was offered.
func (s *session) responseLocked(f *http2.MetaHeadersFrame) error {
	if f.Truncated || f.PseudoValue("status") != "200" || f.StreamEnded() {
		return violation("an answer of status %q", f.PseudoValue("status"))
	}
	if _, offered := s.offering[f.StreamID]; offered {
		delete(s.offering, f.StreamID)
		s.incoming = append(s.incoming, s.newStreamLocked(f.StreamID)) // no more than there were offers
		signal(s.came)
		return nil
	}
	st, err := s.findLocked(f)
	if st == nil {
		return err
	}
	if !st.waits {
		return violation("two answers for stream %d", f.StreamID)
	}
	s.answeredLocked(st)
	return nil
}

func (s *session) dataLocked(f *http2.DataFrame) error {
	size := int(f.Length)
	if s.in.window -= size; s.in.window < 0 {
		return violation("more than the session's window")
	}
	if s.in.window < sessionWindow/2 {
		_ = s.framer.WriteWindowUpdate(0, uint32(sessionWindow-s.in.window)) // an outbox never fails
		s.in.window = sessionWindow
	}
	st, err := s.findLocked(f)
	if st == nil {
		return err
	}
	switch {
	case st.waits:
		return violation("data before the answer")
	case st.ended:
		return violation("data behind the end of stream %d", f.StreamID)
	case size > st.in.window:
		return violation("more than the window of stream %d", f.StreamID)
	}
	st.in.window -= size
	st.receivedLocked(f.Data(), size)
	if f.StreamEnded() {
		st.endedLocked()
	}
	return nil
}

func (s *session) resetLocked(f *http2.RSTStreamFrame) error {
	st, err := s.findLocked(f)
	if st == nil {
		return err
	}
	s.forgetLocked(st)
	st.brokenLocked()
	return nil
}

func (s *session) windowLocked(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		if s.out.window += int(f.Increment); s.out.window > maxWindow {
			return violation("a window without end")
		}
		s.out.pass()
		return nil
	}
	st, err := s.findLocked(f)
	if st == nil {
		return err
	}
	if st.window += int(f.Increment); st.window > maxWindow {
		return violation("a window without end")
	}
	signal(st.writer.wake)
	return nil
}

func (s *session) settingsLocked(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
		if v > maxWindow {
			return violation("a window without end")
		}
		delta := int(v) - s.initial
		s.initial = int(v)
		for _, st := range s.streams {
			if st.window += delta; st.window > maxWindow {
				return violation("a window without end")
			}
			signal(st.writer.wake)
		}
	}
	if v, ok := f.Value(http2.SettingHeaderTableSize); ok {
		s.out.hpack.SetMaxDynamicTableSizeLimit(v)
	}
	return s.framer.WriteSettingsAck()
}

// lastSeenLocked is the highest stream of the peer's (RFC 9113, 6.8).
func (s *session) lastSeenLocked() uint32 {
	if s.client || s.next == 1 {
		return 0
	}
	return s.next - 2
}

var _ tunnel.Resumer = (*session)(nil)
