// The wire: what is written at home, on lane 0, and how a leg begins.

package lanes

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/hawser-project/hawser/tunnel"
)

// At home each direction of a stream is a sequence of items. Numbers are
// unsigned varints (as in encoding/binary) in their shortest form.
//
//	direction = [number of the stream] *item    the opener's direction has the number
//	item      = size, from 1                    followed by that many bytes of the stream
//	          | 0 moved, number of the lane     the bytes that follow come on a leg there; then here
//	          | 0 wanted, how many              the peer should see that there are that many lanes
//
// The end of the child stream is the end of the direction, wherever it comes.
//
// On a further lane each child stream begins with nine bytes:
//
//	leg     = kindLeg u8    | number of the stream u64                | the stream's bytes
//	retire  = kindRetire u8 | legs that this end has begun there u32  |
//	          legs of the peer's that it has seen there u32           | answer: u8
const (
	itemMoved  = 1
	itemWanted = 2

	kindLeg    = 1
	kindRetire = 2
	prefixSize = 9

	retireYes = 1 // the answer: the lane may go, and no leg will begin on it
	retireNo  = 0

	// maxItem is the largest size that is written, and maxSize the largest that
	// is read.
	maxItem = 32 << 10
	maxSize = 1 << 20

	maxNumber = math.MaxInt64 // of a stream
	maxLane   = math.MaxInt32
	maxWanted = 255
)

// Kinds of marks.
const (
	markNone   = iota
	markNumber // the number of the stream
	markMoved  // the number of the lane
	markWanted // how many lanes
)

// A mark is what an incoming direction says beside its bytes.
type mark struct {
	kind  int
	value uint64
}

// Where a decoder is.
const (
	atSize = iota
	atNumber
	atKind
	atLane
	atWanted
)

// states says of each number the largest value that may be read, and the kind of
// mark that it makes.
var states = [...]struct {
	limit uint64
	mark  int
}{
	atSize:   {maxSize, markNone},
	atNumber: {maxNumber, markNumber},
	atLane:   {maxLane, markMoved},
	atWanted: {maxWanted, markWanted},
}

// A decoder reads one direction. Its zero value expects an item.
type decoder struct {
	left  int    // bytes of the stream before the next item
	at    int    // what is read when left is 0
	value uint64 // of the number being read
	shift uint
}

// decode moves the stream's bytes in b to its front, says how many there are, and
// stops after the first mark. What it has not looked at is rest.
func (d *decoder) decode(b []byte) (n int, rest []byte, m mark, err error) {
	for i := 0; i < len(b); {
		if d.left > 0 {
			size := min(d.left, len(b)-i)
			copy(b[n:], b[i:i+size])
			n, i, d.left = n+size, i+size, d.left-size
			continue
		}
		m, err = d.step(b[i])
		i++
		if err != nil || m.kind != markNone {
			return n, b[i:], m, err
		}
	}
	return n, nil, mark{}, nil
}

// step takes one byte that is not the stream's.
func (d *decoder) step(c byte) (mark, error) {
	if d.at == atKind {
		switch c {
		case itemMoved:
			d.at = atLane
		case itemWanted:
			d.at = atWanted
		default:
			return mark{}, fmt.Errorf("%w: item of kind %d", tunnel.ErrFrame, c)
		}
		return mark{}, nil
	}
	d.value |= uint64(c&0x7f) << d.shift
	limit := states[d.at].limit
	if d.value > limit || d.shift > 56 || c == 0 && d.shift > 0 {
		return mark{}, fmt.Errorf("%w: number above %d or not in its shortest form", tunnel.ErrFrame, limit)
	}
	if c >= 0x80 {
		d.shift += 7
		return mark{}, nil
	}
	return d.number()
}

// number takes the number that is complete.
func (d *decoder) number() (mark, error) {
	m := mark{kind: states[d.at].mark, value: d.value}
	d.value, d.shift = 0, 0
	switch {
	case d.at != atSize && m.value == 0:
		return mark{}, fmt.Errorf("%w: mark without a value", tunnel.ErrFrame)
	case d.at == atSize && m.value == 0:
		d.at = atKind
	case d.at == atSize:
		d.left = int(m.value)
	default:
		d.at = atSize
	}
	return m, nil
}

func appendNumber(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }

func appendSize(b []byte, size int) []byte { return binary.AppendUvarint(b, uint64(size)) }

func appendMoved(b []byte, lane int) []byte {
	return binary.AppendUvarint(append(b, 0, itemMoved), uint64(lane))
}

func appendWanted(b []byte, lanes int) []byte {
	return binary.AppendUvarint(append(b, 0, itemWanted), uint64(lanes))
}

// A prefix is how a child stream on a further lane begins.
type prefix struct {
	kind       byte
	stream     uint64 // kindLeg
	begun, met uint32 // kindRetire
}

func (p prefix) encode() [prefixSize]byte {
	b := [prefixSize]byte{p.kind}
	if p.kind == kindLeg {
		binary.BigEndian.PutUint64(b[1:], p.stream)
	} else {
		binary.BigEndian.PutUint32(b[1:], p.begun)
		binary.BigEndian.PutUint32(b[5:], p.met)
	}
	return b
}

func decodePrefix(b [prefixSize]byte) (prefix, error) {
	switch p := (prefix{kind: b[0]}); p.kind {
	case kindLeg:
		p.stream = binary.BigEndian.Uint64(b[1:])
		if p.stream == 0 || p.stream > maxNumber {
			return prefix{}, fmt.Errorf("%w: a leg of stream %d", tunnel.ErrFrame, p.stream)
		}
		return p, nil
	case kindRetire:
		p.begun, p.met = binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint32(b[5:])
		return p, nil
	default:
		return prefix{}, fmt.Errorf("%w: kind %d at the beginning of a leg", tunnel.ErrFrame, p.kind)
	}
}
