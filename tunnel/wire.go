// The wire: every frame, its limits, and how it is written and read.

package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// All frames look alike. Integers are big-endian; a string is its length, then
// its bytes.
//
//	version u8 = 1 | kind u8 | length u16 of the body | body
//
// Version changes only with the layout; what is new goes into metadata, whose
// unknown keys are ignored. A decoder accepts exactly what the encoder writes:
// keys sorted and unique, nothing after the last field. So each frame has one
// spelling.
const (
	wireVersion = 1
	headerSize  = 4

	maxBody     = 8 << 10 // of a frame
	maxNetwork  = 16
	maxAddr     = 600 // a DNS name, a node's name, a port and their separators
	maxName     = 253
	maxText     = 1024
	maxMeta     = 16 // entries
	maxMetaKey  = 64
	maxMetaText = 512
)

// Kinds of frames. Values are never reused.
const (
	kindDial    = 1 // network str8, addr str16, timeout u32 ms (0: the answering end's own), metadata
	kindAnswer  = 2 // code u8 (0: connected), text str16, metadata
	kindHello   = 3 // node str8, instance u64, sequence u64, metadata
	kindWelcome = 4 // session u64, interval u32 ms, timeout u32 ms, metadata
	kindGoodbye = 5 // code u8, retry u32 ms (0: not said), text str16
	kindPing    = 6 // number u64
	kindPong    = 7 // number u64, of the ping
	kindDrain   = 8 // as goodbye
)

// ErrFrame is wrapped by every error about bytes that are no frame.
var ErrFrame = errors.New("malformed frame")

// Meta is what travels beside a dial, an answer, a hello or a welcome. At most
// 16 entries, keys of at most 64 bytes, values of at most 512.
type Meta map[string]string

// A frame is one of the types below.
type frame interface {
	kind() uint8
	append(b []byte) []byte
	check() error
}

type dialFrame struct {
	network, addr string
	timeout       time.Duration
	meta          Meta
}

type answerFrame struct {
	code Code
	text string
	meta Meta
}

type helloFrame Hello

type welcomeFrame Welcome

// A noteFrame is a code and a text: goodbye, which ends the session, or drain,
// which says that its end is near.
type noteFrame struct {
	k     uint8
	code  Code
	retry time.Duration
	text  string
}

func (f *noteFrame) goodbye() *Goodbye {
	return &Goodbye{Code: f.code, Text: f.text, Retry: min(f.retry, maxRetryAfter)}
}

// A beatFrame is a ping or a pong.
type beatFrame struct {
	k      uint8
	number uint64
}

func (*dialFrame) kind() uint8    { return kindDial }
func (*answerFrame) kind() uint8  { return kindAnswer }
func (*helloFrame) kind() uint8   { return kindHello }
func (*welcomeFrame) kind() uint8 { return kindWelcome }
func (f *noteFrame) kind() uint8  { return f.k }
func (f *beatFrame) kind() uint8  { return f.k }

func (f *dialFrame) append(b []byte) []byte {
	b = appendString8(b, f.network)
	b = appendString16(b, f.addr)
	b = binary.BigEndian.AppendUint32(b, millis(f.timeout))
	return appendMeta(b, f.meta)
}

func (f *answerFrame) append(b []byte) []byte {
	b = append(b, byte(f.code))
	b = appendString16(b, f.text)
	return appendMeta(b, f.meta)
}

func (f *helloFrame) append(b []byte) []byte {
	b = appendString8(b, f.Node)
	b = binary.BigEndian.AppendUint64(b, f.Instance)
	b = binary.BigEndian.AppendUint64(b, f.Sequence)
	return appendMeta(b, f.Meta)
}

func (f *welcomeFrame) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, f.Session)
	b = binary.BigEndian.AppendUint32(b, millis(f.Interval))
	b = binary.BigEndian.AppendUint32(b, millis(f.Timeout))
	return appendMeta(b, f.Meta)
}

func (f *noteFrame) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, byte(f.code)), millis(f.retry))
	return appendString16(b, f.text)
}

func (f *beatFrame) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(b, f.number)
}

func (f *dialFrame) check() error {
	return firstError(limit("network", f.network, maxNetwork), limit("address", f.addr, maxAddr), f.meta.check())
}

func (f *answerFrame) check() error {
	return firstError(limit("text", f.text, maxText), f.meta.check())
}

func (f *helloFrame) check() error {
	return firstError(limit("node name", f.Node, maxName), f.Meta.check())
}

func (f *welcomeFrame) check() error { return f.Meta.check() }
func (f *noteFrame) check() error    { return limit("text", f.text, maxText) }
func (f *beatFrame) check() error    { return nil }

func (m Meta) check() error {
	if len(m) > maxMeta {
		return fmt.Errorf("%w: %d metadata entries, at most %d", ErrFrame, len(m), maxMeta)
	}
	for k, v := range m {
		if err := firstError(limit("metadata key", k, maxMetaKey), limit("metadata value", v, maxMetaText)); err != nil {
			return err
		}
	}
	return nil
}

func limit(what, s string, n int) error {
	if len(s) > n {
		return fmt.Errorf("%w: %s of %d bytes, at most %d", ErrFrame, what, len(s), n)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// appendFrame adds f's encoding to b, or says which limit it breaks.
func appendFrame(b []byte, f frame) ([]byte, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	start := len(b)
	b = f.append(append(b, wireVersion, f.kind(), 0, 0))
	n := len(b) - start - headerSize
	if n > maxBody {
		return nil, fmt.Errorf("%w: body of %d bytes, at most %d", ErrFrame, n, maxBody)
	}
	binary.BigEndian.PutUint16(b[start+2:], uint16(n))
	return b, nil
}

// writeFrame writes f in one Write.
func writeFrame(w io.Writer, f frame) error {
	b, err := appendFrame(nil, f)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// readFrame reads one frame and not a byte more. io.EOF means that the stream
// ended before the first byte.
func readFrame(r io.Reader) (frame, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	kind, n, err := parseHeader(head[:])
	if err != nil {
		return nil, err
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return decodeBody(kind, body)
}

// decodeFrame reads one frame from the start of b and says how long it was. A
// nil frame without an error means that b holds only part of one.
func decodeFrame(b []byte) (frame, int, error) {
	if len(b) < headerSize {
		return nil, 0, nil
	}
	kind, n, err := parseHeader(b)
	if err != nil {
		return nil, 0, err
	}
	if len(b) < headerSize+n {
		return nil, 0, nil
	}
	f, err := decodeBody(kind, b[headerSize:headerSize+n])
	return f, headerSize + n, err
}

func parseHeader(b []byte) (kind uint8, n int, err error) {
	n = int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case b[0] != wireVersion:
		return 0, 0, fmt.Errorf("%w: version %d, this end speaks %d", ErrFrame, b[0], wireVersion)
	case n > maxBody:
		return 0, 0, fmt.Errorf("%w: body of %d bytes, at most %d", ErrFrame, n, maxBody)
	}
	return b[1], n, nil
}

func decodeBody(kind uint8, body []byte) (frame, error) {
	d := decoder{b: body}
	var f frame
	switch kind {
	case kindDial:
		f = &dialFrame{network: d.string8(), addr: d.string16(), timeout: d.millis(), meta: d.meta()}
	case kindAnswer:
		f = &answerFrame{code: Code(d.uint8()), text: d.string16(), meta: d.meta()}
	case kindHello:
		f = &helloFrame{Node: d.string8(), Instance: d.uint64(), Sequence: d.uint64(), Meta: d.meta()}
	case kindWelcome:
		f = &welcomeFrame{Session: d.uint64(), Interval: d.millis(), Timeout: d.millis(), Meta: d.meta()}
	case kindGoodbye, kindDrain:
		f = &noteFrame{k: kind, code: Code(d.uint8()), retry: d.millis(), text: d.string16()}
	case kindPing, kindPong:
		f = &beatFrame{k: kind, number: d.uint64()}
	default:
		return nil, fmt.Errorf("%w: kind %d", ErrFrame, kind)
	}
	switch {
	case d.bad:
		return nil, fmt.Errorf("%w: kind %d is cut short or out of order", ErrFrame, kind)
	case len(d.b) > 0:
		return nil, fmt.Errorf("%w: kind %d with %d bytes too many", ErrFrame, kind, len(d.b))
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f, nil
}

func appendString8(b []byte, s string) []byte {
	return append(append(b, byte(len(s))), s...)
}

func appendString16(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func appendMeta(b []byte, m Meta) []byte {
	b = append(b, byte(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b = appendString16(appendString8(b, k), m[k])
	}
	return b
}

// millis rounds up, so that a short time does not become none.
func millis(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(min((d+time.Millisecond-1)/time.Millisecond, 1<<32-1))
}

// A decoder takes fields off b and remembers whether one was missing.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad = true
		return make([]byte, min(n, 8))
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) uint8() uint8 { return d.take(1)[0] }

func (d *decoder) uint64() uint64 { return binary.BigEndian.Uint64(d.take(8)) }

func (d *decoder) millis() time.Duration {
	return time.Duration(binary.BigEndian.Uint32(d.take(4))) * time.Millisecond
}

func (d *decoder) string8() string { return d.text(int(d.uint8())) }

func (d *decoder) string16() string { return d.text(int(binary.BigEndian.Uint16(d.take(2)))) }

func (d *decoder) text(n int) string {
	p := d.take(n)
	if d.bad {
		return ""
	}
	return string(p)
}

func (d *decoder) meta() Meta {
	n := int(d.uint8())
	if d.bad || n == 0 {
		return nil
	}
	if n > maxMeta {
		d.bad = true
		return nil
	}
	m := make(Meta, n)
	last := ""
	for i := range n {
		k, v := d.string8(), d.string16()
		if d.bad || (i > 0 && k <= last) {
			d.bad = true
			return nil
		}
		m[k], last = v, k
	}
	return m
}

// clip keeps text within what a frame may carry.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return s[:maxText]
}
