// The wire: how a transport is greeted, and the frames on it.

package link

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// Each transport starts with one message of the dialing end and one answer:
//
//	version u8 = 1 | kind u8 | length u16 of the body | body
//
// Integers are big-endian. Then frames follow both ways:
//
//	kind u8 | length u24 of the body | offset u64 | ack u64 | body
//
// save for some that have to be short, since an idle link sends nothing else:
//
//	ping: kind u8 | allowed u24 ms | round trip u32 µs
//	pong: kind u8 | 0 u24
//	deaf: kind u8 | 0 u24
//
// Offset is that of the body's first byte or, in a frame without one, of the
// next byte to come. Ack says how many bytes the sender's user has taken from
// Read: the peer may forget those. A receiver skips what it has already and
// ends the link if there is a gap. A decoder accepts exactly what the encoder
// writes.
const (
	wireVersion   = 1
	messageHeader = 4
	frameHeader   = 20
	pingSize      = 8
	pongSize      = 4

	maxBody = 256 << 10 // of a frame
	maxText = 256       // of a refusal

	// minBuffer and maxBuffer are what a peer's ring may hold.
	minBuffer = 64 << 10
	maxBuffer = 64 << 20
)

// Kinds of messages. Values are never reused.
const (
	kindOpen    = 1 // terms; asks for a new link
	kindOpened  = 2 // id [16], secret [32], terms that now hold
	kindResume  = 3 // id [16], secret [32], attempt u64, received u64, ack u64
	kindResumed = 4 // secret [32] for the next time, received u64, ack u64
	kindRefused = 5 // code u8, text: the rest
)

// Kinds of frames. Values are never reused.
const (
	frameData = 1 // the only one with a body
	frameAck  = 2
	// A ping is to be answered by a pong at once. If it is the dialing end's, it
	// says how long that end may be silent from now on, and the latest round
	// trip, or 0.
	framePing = 3
	// A bye says that the sender has closed the link, or has heard that its peer
	// has. It is the last frame; to one a bye is the answer.
	frameBye  = 4
	framePong = 5
	// A deaf says that the sender has heard nothing for too long and is about to
	// close the transport: one that works in this direction only would look as if
	// its other end had died.
	frameDeaf = 6
)

// terms are buffer u32 bytes, keepalive u32 ms, window u32 ms.
type terms struct {
	buffer            int // of the sender of this message
	keepalive, window time.Duration
}

const (
	termsSize  = 12
	idSize     = 16
	secretSize = 32
)

type (
	linkID [idSize]byte
	secret [secretSize]byte
)

func (id linkID) String() string { return hex.EncodeToString(id[:4]) }

// A message is one of those above; which fields count depends on its kind.
type message struct {
	kind    uint8
	id      linkID
	secret  secret
	attempt uint64
	// received is the offset up to which the sender has everything.
	received uint64
	ack      uint64
	terms    terms
	code     tunnel.Code
	text     string
}

// encode is m's spelling. Fields out of range are a bug of the caller's.
func (m *message) encode() []byte {
	b := []byte{wireVersion, m.kind, 0, 0}
	switch m.kind {
	case kindOpen:
		b = m.terms.append(b)
	case kindOpened:
		b = append(append(b, m.id[:]...), m.secret[:]...)
		b = m.terms.append(b)
	case kindResume:
		b = append(append(b, m.id[:]...), m.secret[:]...)
		b = binary.BigEndian.AppendUint64(b, m.attempt)
		b = m.appendOffsets(b)
	case kindResumed:
		b = append(b, m.secret[:]...)
		b = m.appendOffsets(b)
	case kindRefused:
		b = append(b, byte(m.code))
		b = append(b, m.text[:min(len(m.text), maxText)]...)
	}
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-messageHeader))
	return b
}

func (m *message) appendOffsets(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.received)
	return binary.BigEndian.AppendUint64(b, m.ack)
}

func (t terms) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(t.buffer))
	b = binary.BigEndian.AppendUint32(b, uint32(t.keepalive.Milliseconds()))
	return binary.BigEndian.AppendUint32(b, uint32(t.window.Milliseconds()))
}

// readMessage reads one message and nothing beyond it.
func readMessage(r io.Reader) (message, error) {
	var buf [messageHeader + idSize + secretSize + maxText]byte
	if _, err := io.ReadFull(r, buf[:messageHeader]); err != nil {
		return message{}, err
	}
	n := int(binary.BigEndian.Uint16(buf[2:]))
	if n > len(buf)-messageHeader {
		return message{}, fmt.Errorf("%w: message of %d bytes", ErrProtocol, n)
	}
	b := buf[:messageHeader+n]
	if _, err := io.ReadFull(r, b[messageHeader:]); err != nil {
		return message{}, err
	}
	return decodeMessage(b)
}

// decodeMessage decodes all of b.
func decodeMessage(b []byte) (message, error) {
	malformed := func(what string) (message, error) {
		return message{}, fmt.Errorf("%w: %s in a message", ErrProtocol, what)
	}
	if len(b) < messageHeader || b[0] != wireVersion || int(binary.BigEndian.Uint16(b[2:])) != len(b)-messageHeader {
		return malformed("bad header")
	}
	m := message{kind: b[1]}
	b = b[messageHeader:]
	if size, ok := m.size(); !ok || (m.kind != kindRefused && len(b) != size) || len(b) < size {
		return malformed("bad kind or length")
	}
	if m.kind == kindOpened || m.kind == kindResume {
		b = b[copy(m.id[:], b):]
	}
	if m.kind == kindOpened || m.kind == kindResume || m.kind == kindResumed {
		b = b[copy(m.secret[:], b):]
	}
	switch m.kind {
	case kindOpen, kindOpened:
		m.terms = decodeTerms(b)
		if m.terms.buffer < minBuffer || m.terms.buffer > maxBuffer {
			return malformed("bad buffer size")
		}
		if m.terms.keepalive <= 0 || m.terms.window <= 0 {
			return malformed("bad interval")
		}
	case kindResume:
		m.attempt, b = binary.BigEndian.Uint64(b), b[8:]
		fallthrough
	case kindResumed:
		m.received, m.ack = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
		if m.ack > m.received {
			return malformed("bad offset")
		}
	case kindRefused:
		m.code, m.text = tunnel.Code(b[0]), string(b[1:])
		if len(m.text) > maxText || m.code == 0 {
			return malformed("bad refusal")
		}
	}
	return m, nil
}

// size is how long the body is; of a refusal, at least.
func (m *message) size() (int, bool) {
	switch m.kind {
	case kindOpen:
		return termsSize, true
	case kindOpened:
		return idSize + secretSize + termsSize, true
	case kindResume:
		return idSize + secretSize + 24, true
	case kindResumed:
		return secretSize + 16, true
	case kindRefused:
		return 1, true
	default:
		return 0, false
	}
}

func decodeTerms(b []byte) terms {
	ms := func(b []byte) time.Duration { return time.Duration(binary.BigEndian.Uint32(b)) * time.Millisecond }
	return terms{buffer: int(binary.BigEndian.Uint32(b)), keepalive: ms(b[4:]), window: ms(b[8:])}
}

// A head is a frame without its body.
type head struct {
	kind   uint8
	length int // of the body
	offset uint64
	ack    uint64

	allowed, rtt time.Duration // of a ping only
}

// size is how long h is on the wire.
func (h head) size() int { return headSize(h.kind) }

// headSize is how long the head of a frame of some kind is.
func headSize(kind uint8) int {
	switch kind {
	case framePing:
		return pingSize
	case framePong, frameDeaf:
		return pongSize
	default:
		return frameHeader
	}
}

// put writes h to the start of b.
func (h head) put(b []byte) {
	const most = 1<<24 - 1
	switch h.kind {
	case framePing:
		ms := min(max(h.allowed.Milliseconds(), 0), most)
		binary.BigEndian.PutUint32(b, framePing<<24|uint32(ms))
		binary.BigEndian.PutUint32(b[4:], uint32(min(max(h.rtt.Microseconds(), 0), math.MaxUint32)))
	case framePong, frameDeaf:
		binary.BigEndian.PutUint32(b, uint32(h.kind)<<24)
	default:
		binary.BigEndian.PutUint32(b, uint32(h.kind)<<24|uint32(h.length))
		binary.BigEndian.PutUint64(b[4:], h.offset)
		binary.BigEndian.PutUint64(b[12:], h.ack)
	}
}

// decodeHead decodes the start of b, which holds as much as headSize of its first
// byte says, at least.
func decodeHead(b []byte) (head, error) {
	first := binary.BigEndian.Uint32(b)
	h := head{kind: uint8(first >> 24)}
	rest := int(first & 0xffffff)
	switch h.kind {
	case framePing:
		h.allowed = time.Duration(rest) * time.Millisecond
		h.rtt = time.Duration(binary.BigEndian.Uint32(b[4:])) * time.Microsecond
		return h, nil
	case framePong, frameDeaf:
		if rest != 0 {
			return head{}, fmt.Errorf("%w: frame of kind %d with %d bytes", ErrProtocol, h.kind, rest)
		}
		return h, nil
	}
	h.length, h.offset, h.ack = rest, binary.BigEndian.Uint64(b[4:]), binary.BigEndian.Uint64(b[12:])
	switch {
	case h.kind < frameData || h.kind > frameBye:
		return head{}, fmt.Errorf("%w: frame of kind %d", ErrProtocol, h.kind)
	case (h.kind == frameData) != (h.length > 0) || h.length > maxBody:
		return head{}, fmt.Errorf("%w: frame of kind %d with %d bytes", ErrProtocol, h.kind, h.length)
	case h.offset > math.MaxUint64-maxBody:
		return head{}, fmt.Errorf("%w: offset out of range", ErrProtocol)
	}
	return h, nil
}
