// Framing: the frames of HTTP/2, and requests that stand for streams.

package overh2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hawser-project/hawser/tunnel/mux"
)

const (
	// sessionWindow is how much of all streams may be on its way. Each end opens
	// it with its first words and again when half of it has come, read or unread:
	// more than any link holds, so that nobody need count what it sends.
	sessionWindow = 1 << 30
	maxStreamID   = 1<<31 - 1

	// The authorities of CONNECT requests.
	authorityStream = "stream"
	authorityOffer  = "offer"
)

var errExhausted = errors.New("out of stream numbers")

// A framing is a mux.Framing.
type framing struct {
	session *mux.Session
	client  bool // HTTP/2's
	framer  *http2.Framer
	r       io.Reader

	// Owned by the reader.
	greeted bool // the peer's settings have come
	frame   http2.Frame

	// The session's mutex guards the following.
	next     uint32              // no stream of this number or above has been opened
	offers   []uint32            // at the server: streams to be opened
	offering map[uint32]struct{} // at the client: those held out to the server
	in       int                 // what the peer may still send in all
	hpack    *hpack.Encoder      // into block
	block    bytes.Buffer
}

func newFraming(s *mux.Session, r io.Reader, client bool) *framing {
	f := &framing{
		session: s, client: client, r: r, framer: http2.NewFramer(s, r),
		next: 1, offering: make(map[uint32]struct{}),
		in: sessionWindow,
	}
	f.framer.SetReuseFrames()
	f.framer.SetMaxReadFrameSize(mux.MaxFrame) // what HTTP/2 lets every peer send (RFC 9113, 4.2)
	f.framer.MaxHeaderListSize = 1 << 10
	f.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.hpack = hpack.NewEncoder(&f.block)
	return f
}

// Greet says what an end says first. As for all that follows: what a session
// writes never fails.
func (f *framing) Greet() {
	settings := []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: mux.Least}}
	if f.client {
		_, _ = io.WriteString(f.session, http2.ClientPreface)
		settings = append(settings, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	}
	_ = f.framer.WriteSettings(settings...)
	_ = f.framer.WriteWindowUpdate(0, sessionWindow-(1<<16-1))
	if f.client {
		for range offers {
			f.offer()
		}
	}
}

// request sends a CONNECT request; 0 if the session has run out of numbers, a
// thousand million of which there are: a new one starts from 1.
func (f *framing) request(authority string) uint32 {
	if f.next > maxStreamID {
		f.session.Fail(errExhausted)
		return 0
	}
	id := f.next
	f.next += 2
	f.headers(id, [][2]string{{":method", "CONNECT"}, {":authority", authority}})
	return id
}

// headers writes a header block.
func (f *framing) headers(id uint32, fields [][2]string) {
	f.block.Reset()
	for _, x := range fields {
		_ = f.hpack.WriteField(hpack.HeaderField{Name: x[0], Value: x[1]}) // a bytes.Buffer never fails
	}
	_ = f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block.Bytes(), EndHeaders: true})
}

// offer holds out a stream to the server.
func (f *framing) offer() {
	if id := f.request(authorityOffer); id != 0 {
		f.offering[id] = struct{}{}
	}
}

// Open opens a stream at the client, and takes one that was offered at the
// server.
func (f *framing) Open(credit int) (id uint32, waits, ok bool) {
	switch {
	case f.client:
		id = f.request(authorityStream)
	case len(f.offers) > 0:
		id = f.offers[0]
		f.offers = slices.Delete(f.offers, 0, 1)
		f.headers(id, [][2]string{{":status", "200"}})
	}
	if id == 0 {
		return 0, false, false
	}
	f.Credit(id, credit)
	return id, f.client, true
}

func (f *framing) Accept(id uint32, credit int) {
	if f.client {
		f.offer()
	} else {
		f.headers(id, [][2]string{{":status", "200"}})
	}
	f.Credit(id, credit)
}

func (f *framing) Forgotten(uint32) {
	if f.client {
		f.offer()
	}
}

func (f *framing) Data(id uint32, end bool, p []byte) {
	// The framer would copy p once more, to write it in one piece.
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	n := len(p)
	f.session.WriteFrame([]byte{
		byte(n >> 16), byte(n >> 8), byte(n), byte(http2.FrameData), byte(flags),
		byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id),
	}, p)
}

func (f *framing) Credit(id uint32, n int) {
	if n > 0 {
		_ = f.framer.WriteWindowUpdate(id, uint32(n))
	}
}

func (f *framing) Reset(id uint32, abandoned bool) {
	code := http2.ErrCodeNo
	if abandoned {
		code = http2.ErrCodeCancel
	}
	_ = f.framer.WriteRSTStream(id, code)
}

// Bye tells the highest stream of the peer's as well (RFC 9113, 6.8).
func (f *framing) Bye(peerAtFault bool) {
	var last uint32
	if !f.client && f.next > 1 {
		last = f.next - 2
	}
	code := http2.ErrCodeNo
	if peerAtFault {
		code = http2.ErrCodeProtocol
	}
	_ = f.framer.WriteGoAway(last, code, nil)
}

// ReadFrame reads a frame.
func (f *framing) ReadFrame() error {
	if !f.greeted && !f.client {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(f.r, preface); err != nil {
			return err
		}
		if string(preface) != http2.ClientPreface {
			return mux.Violation("it does not speak HTTP/2")
		}
	}
	frame, err := f.framer.ReadFrame()
	if err != nil {
		return readError(err)
	}
	if _, ok := frame.(*http2.SettingsFrame); !ok && !f.greeted {
		return mux.Violation("it does not begin with its settings")
	}
	f.greeted, f.frame = true, frame
	return nil
}

// readError tells a peer's fault from the connection's.
func readError(err error) error {
	var (
		ce http2.ConnectionError
		se http2.StreamError
	)
	if errors.As(err, &ce) || errors.As(err, &se) || errors.Is(err, http2.ErrFrameTooLarge) {
		return fmt.Errorf("%w: %w", mux.ErrProtocol, err)
	}
	return err
}

// HandleFrame does what the frame asks for.
func (f *framing) HandleFrame() error {
	switch x := f.frame.(type) {
	case *http2.DataFrame:
		return f.data(x)
	case *http2.MetaHeadersFrame:
		if f.client {
			return f.response(x)
		}
		return f.requested(x)
	case *http2.RSTStreamFrame:
		err := f.known(x)
		if err == nil {
			f.session.ResetByPeer(x.StreamID)
		}
		return err
	case *http2.WindowUpdateFrame:
		return f.credited(x)
	case *http2.SettingsFrame:
		return f.settings(x)
	case *http2.PingFrame:
		if !x.IsAck() {
			return f.framer.WritePing(true, x.Data)
		}
	case *http2.GoAwayFrame:
		if x.ErrCode != http2.ErrCodeNo {
			return fmt.Errorf("peer gave up: %v", x.ErrCode)
		}
	case *http2.PushPromiseFrame:
		return mux.Violation("it pushes")
	}
	return nil // RFC 9113, 4.1: what is unknown is ignored
}

// known says what is wrong with a frame for a stream that nobody has opened.
func (f *framing) known(x http2.Frame) error {
	id := x.Header().StreamID
	if _, offered := f.offering[id]; offered || id >= f.next || id%2 == 0 {
		return mux.Violation("%v for stream %d, which nobody has opened", x.Header().Type, id)
	}
	return nil
}

// requested takes the client's request for a stream, or its offer of one.
func (f *framing) requested(x *http2.MetaHeadersFrame) error {
	id := x.StreamID
	switch {
	case id < f.next || id%2 == 0:
		return mux.Violation("headers for stream %d", id)
	case x.Truncated || x.PseudoValue("method") != "CONNECT":
		return mux.Violation("a request other than CONNECT")
	}
	f.next = id + 2
	switch x.PseudoValue("authority") {
	case authorityStream:
		err := f.session.Opened(id)
		if err == nil && x.StreamEnded() {
			err = f.session.Received(id, nil, nil, true)
		}
		return err
	case authorityOffer:
		if len(f.offers) == offers || x.StreamEnded() {
			return mux.Violation("an offer that is none")
		}
		f.offers = append(f.offers, id)
		f.session.Retry()
		return nil
	default:
		return mux.Violation("a request for %q", x.PseudoValue("authority"))
	}
}

// response takes the server's answer to a request: it has accepted the stream, or
// opened the one it was offered.
func (f *framing) response(x *http2.MetaHeadersFrame) error {
	id := x.StreamID
	if x.Truncated || x.PseudoValue("status") != "200" || x.StreamEnded() {
		return mux.Violation("an answer of status %q", x.PseudoValue("status"))
	}
	if _, offered := f.offering[id]; offered {
		delete(f.offering, id)
		return f.session.Opened(id) // no more than there were offers
	}
	if err := f.known(x); err != nil {
		return err
	}
	return f.session.Answered(id)
}

func (f *framing) data(x *http2.DataFrame) error {
	if f.in -= int(x.Length); f.in < 0 {
		return mux.Violation("more than the session's window")
	}
	if f.in < sessionWindow/2 {
		_ = f.framer.WriteWindowUpdate(0, uint32(sessionWindow-f.in))
		f.in = sessionWindow
	}
	if int(x.Length) != len(x.Data()) {
		return mux.Violation("padding")
	}
	if err := f.known(x); err != nil {
		return err
	}
	return f.session.Received(x.StreamID, x.Data(), nil, x.StreamEnded())
}

func (f *framing) credited(x *http2.WindowUpdateFrame) error {
	if x.StreamID == 0 {
		return nil // see sessionWindow
	}
	if err := f.known(x); err != nil {
		return err
	}
	return f.session.Credited(x.StreamID, int(x.Increment))
}

func (f *framing) settings(x *http2.SettingsFrame) error {
	if x.IsAck() {
		return nil
	}
	if v, ok := x.Value(http2.SettingInitialWindowSize); !ok || v != mux.Least {
		return mux.Violation("an initial window of %d", v)
	}
	if v, ok := x.Value(http2.SettingHeaderTableSize); ok {
		f.hpack.SetMaxDynamicTableSizeLimit(v)
	}
	return f.framer.WriteSettingsAck()
}

var _ mux.Framing = (*framing)(nil)
