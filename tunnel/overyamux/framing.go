// Framing: the frames of yamux.

package overyamux

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hawser-project/hawser/tunnel/mux"
)

// A frame's header: version u8 = 0, type u8, flags u16, stream u32, length u32.
// Only data frames have a body, of that length. Of a window update the length is
// how much more the peer may send.
const (
	frameHeader = 12

	typeData   = 0
	typeWindow = 1
	typePing   = 2
	typeGoAway = 3

	flagSYN = 1 // the first frame of the end that opens a stream
	flagACK = 2 // the first frame of the other end
	flagFIN = 4
	flagRST = 8
	flags   = flagSYN | flagACK | flagFIN | flagRST

	// Of a goaway the length is why.
	goAwayNormal   = 0
	goAwayProtocol = 1

	// readAhead is how much is read at a time where frames are short. The bodies
	// of long ones go straight into blocks, but for what has been read with the head.
	readAhead = short
	// short is the longest body that is not worth a block.
	short = 2 << 10

	maxStreamID = 1<<32 - 1
)

var errExhausted = errors.New("out of stream numbers")

// A header is a frame's.
type header [frameHeader]byte

func newHeader(kind byte, flags uint16, id uint32, length int) (h header) {
	h[1] = kind
	binary.BigEndian.PutUint16(h[2:], flags)
	binary.BigEndian.PutUint32(h[4:], id)
	binary.BigEndian.PutUint32(h[8:], uint32(length))
	return h
}

func (h *header) version() byte  { return h[0] }
func (h *header) kind() byte     { return h[1] }
func (h *header) flags() uint16  { return binary.BigEndian.Uint16(h[2:]) }
func (h *header) stream() uint32 { return binary.BigEndian.Uint32(h[4:]) }
func (h *header) length() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// has says whether all of these flags are set.
func (h *header) has(flag uint16) bool { return h.flags()&flag == flag }

// A framing is a mux.Framing.
type framing struct {
	session *mux.Session
	odd     bool   // this end opens odd streams
	next    uint32 // the number of the next that it opens; the session's mutex guards it

	// Owned by the reader.
	br    *bufio.Reader
	last  uint32     // the highest stream that the peer has opened
	head  header     // of the frame being read
	rest  uint32     // bytes of its body still to come
	more  bool       // what is to be handled is not the first part of its frame
	part  []byte     // of the body, to be handled
	block *mux.Block // in which that lies; nil if it lies in br
}

func newFraming(s *mux.Session, r io.Reader, odd bool) *framing {
	f := &framing{session: s, odd: odd, next: 2, br: bufio.NewReaderSize(r, readAhead)}
	if odd {
		f.next = 1
	}
	return f
}

// put spells a frame.
func (f *framing) put(kind byte, flags uint16, id uint32, length int, body []byte) {
	h := newHeader(kind, flags, id, length)
	f.session.WriteFrame(h[:], body)
}

func (f *framing) Greet() {}

func (f *framing) Open(credit int) (id uint32, waits, ok bool) {
	if f.next > maxStreamID-2 { // a new session starts from the first number again
		f.session.Fail(errExhausted)
		return 0, false, false
	}
	id = f.next
	f.next += 2
	f.put(typeWindow, flagSYN, id, credit, nil)
	return id, true, true
}

func (f *framing) Accept(id uint32, credit int) { f.put(typeWindow, flagACK, id, credit, nil) }

func (f *framing) Forgotten(uint32) {}

func (f *framing) Data(id uint32, end bool, p []byte) {
	var flags uint16
	if end {
		flags = flagFIN
	}
	f.put(typeData, flags, id, len(p), p)
}

func (f *framing) Credit(id uint32, n int) { f.put(typeWindow, 0, id, n, nil) }

func (f *framing) Reset(id uint32, _ bool) { f.put(typeWindow, flagRST, id, 0, nil) }

func (f *framing) Bye(peerAtFault bool) {
	why := goAwayNormal
	if peerAtFault {
		why = goAwayProtocol
	}
	f.put(typeGoAway, 0, 0, why, nil)
}

// ReadFrame reads a header, and of a body as much as goes into one block.
func (f *framing) ReadFrame() error {
	if f.part != nil && f.block == nil {
		_, _ = f.br.Discard(len(f.part)) // it is there
	}
	f.part, f.block = nil, nil
	f.more = f.rest > 0
	if !f.more {
		if _, err := io.ReadFull(f.br, f.head[:]); err != nil {
			return cut(err, false)
		}
		if f.head.version() != 0 {
			return mux.Violation("version %d", f.head.version())
		}
		if f.head.kind() == typeData {
			f.rest = f.head.length()
		}
	}
	n := min(f.rest, mux.MaxFrame)
	switch {
	case n == 0:
		return nil
	case n <= short:
		p, err := f.br.Peek(int(n))
		if err != nil {
			return cut(err, true)
		}
		f.part = p
	default:
		f.block = mux.NewBlock()
		if _, err := io.ReadFull(f.br, f.block[:n]); err != nil {
			f.block.Free()
			return cut(err, true)
		}
		f.part = f.block[:n]
	}
	f.rest -= n
	return nil
}

// cut is err, of which io.EOF only means what it says between two frames.
func cut(err error, inside bool) error {
	if inside && errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// HandleFrame tells the session what the frame says.
func (f *framing) HandleFrame() error {
	h := &f.head
	switch h.kind() {
	case typeData, typeWindow:
	case typeGoAway:
		if h.length() != goAwayNormal {
			return fmt.Errorf("peer gave up: code %d", h.length())
		}
		return nil
	default:
		return mux.Violation("frame of type %d", h.kind())
	}
	if !f.more {
		if err := f.begin(h); err != nil {
			f.block.Free()
			return err
		}
	}
	id, end := h.stream(), h.has(flagFIN) && f.rest == 0
	switch {
	case h.kind() == typeData && (len(f.part) > 0 || end):
		return f.session.Received(id, f.part, f.block, end)
	case h.kind() == typeWindow:
		if err := f.session.Credited(id, int(h.length())); err != nil {
			return err
		}
		if end {
			return f.session.Received(id, nil, nil, true)
		}
	}
	return nil
}

// begin does what the flags say that come before what a frame carries.
func (f *framing) begin(h *header) error {
	id := h.stream()
	ours := (id%2 == 1) == f.odd
	switch {
	case h.flags()&^flags != 0:
		return mux.Violation("flags %#x", h.flags())
	case id == 0 || ours && id >= f.next || !ours && id > f.last && !h.has(flagSYN):
		return mux.Violation("frame for stream %d, which nobody has opened", id)
	case h.has(flagSYN) && (ours || id <= f.last):
		return mux.Violation("it opens stream %d, which is not its to open", id)
	case h.has(flagACK) && !ours:
		return mux.Violation("it accepts stream %d, which is its own", id)
	}
	if h.has(flagSYN) {
		f.last = id
		if err := f.session.Opened(id); err != nil {
			return err
		}
	}
	if h.has(flagACK) {
		if err := f.session.Answered(id); err != nil {
			return err
		}
	}
	if h.has(flagRST) {
		f.session.ResetByPeer(id)
	}
	return nil
}

var _ mux.Framing = (*framing)(nil)
