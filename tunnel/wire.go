// The wire: the frames of this package, their limits, and how they are encoded.

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

// All frames have one layout. Integers are big-endian; a string is its length, then its
// bytes.
//
//	version u8 = 1 | kind u8 | length u16 of the body | body
//
// The version changes only with the layout; extensions use metadata, whose unknown keys are
// ignored. A decoder accepts exactly what the encoder writes: keys sorted and unique, nothing
// after the last field. So each frame has one encoding.
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

// ErrFrame is wrapped by errors about malformed frames.
var ErrFrame = errors.New("malformed frame")

// Meta is metadata of a dial, an answer, a hello or a welcome: at most 16 entries, keys of at
// most 64 bytes, values of at most 512.
type Meta map[string]string

// A frame has the fields of its kind. The others are zero.
type frame struct {
	kind          uint8
	network, addr string        // dial
	timeout       time.Duration // dial
	code          Code          // answer, goodbye, drain
	text          string        // answer, goodbye, drain
	retry         time.Duration // goodbye, drain
	meta          Meta          // dial, answer
	hello         Hello
	welcome       Welcome
	number        uint64 // ping, pong
}

// fields makes c encode or decode the fields of f's kind, in their order.
func (f *frame) fields(c *codec) {
	switch f.kind {
	case kindDial:
		c.text("network", &f.network, 1, maxNetwork)
		c.text("address", &f.addr, 2, maxAddr)
		c.millis(&f.timeout)
		c.metadata(&f.meta)
	case kindAnswer:
		c.code(&f.code)
		c.text("text", &f.text, 2, maxText)
		c.metadata(&f.meta)
	case kindHello:
		c.text("node name", &f.hello.Node, 1, maxName)
		c.number(&f.hello.Instance, 8)
		c.number(&f.hello.Sequence, 8)
		c.metadata(&f.hello.Meta)
	case kindWelcome:
		c.number(&f.welcome.Session, 8)
		c.millis(&f.welcome.interval)
		c.millis(&f.welcome.timeout)
		c.metadata(&f.welcome.Meta)
	case kindGoodbye, kindDrain:
		c.code(&f.code)
		c.millis(&f.retry)
		c.text("text", &f.text, 2, maxText)
	case kindPing, kindPong:
		c.number(&f.number, 8)
	default:
		c.fail("kind %d", f.kind)
	}
}

// goodbye is the Goodbye in a frame of that kind.
func (f *frame) goodbye() *Goodbye {
	return &Goodbye{Code: f.code, Text: f.text, Retry: min(f.retry, maxRetryAfter)}
}

// appendFrame appends f's encoding to b. It fails if f exceeds a limit.
func appendFrame(b []byte, f frame) ([]byte, error) {
	start := len(b)
	c := codec{b: append(b, wireVersion, f.kind, 0, 0)}
	f.fields(&c)
	n := len(c.b) - start - headerSize
	if n > maxBody {
		c.fail("body of %d bytes, at most %d", n, maxBody)
	}
	if c.err != nil {
		return nil, c.err
	}
	binary.BigEndian.PutUint16(c.b[start+2:], uint16(n))
	return c.b, nil
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

// readFrame reads one frame and no byte beyond it. io.EOF means that the stream has ended
// before the first byte.
func readFrame(r io.Reader) (frame, error) { return (&frameReader{r: r}).next() }

// A frameReader reads frames from r, and no byte beyond the one that it returns. After an
// error of r, such as a deadline's, next continues where it was.
type frameReader struct {
	r  io.Reader
	in []byte // what was read of the frame
}

func (r *frameReader) next() (frame, error) {
	if err := r.fill(); err != nil {
		return frame{}, err
	}
	return r.decode()
}

// fill reads until decode has a whole frame. While it waits it needs much less of the stack than
// a frame does.
func (r *frameReader) fill() error {
	if r.in == nil {
		r.in = make([]byte, 0, 64) // most frames have less
	}
	for {
		want, err := r.want()
		if err != nil || len(r.in) == want {
			return err
		}
		at := len(r.in)
		r.in = slices.Grow(r.in, want-at)
		n, err := r.r.Read(r.in[at:want])
		if r.in = r.in[:at+n]; n > 0 || err == nil {
			continue
		}
		if errors.Is(err, io.EOF) && at > 0 {
			return io.ErrUnexpectedEOF
		}
		return err
	}
}

// want is the size of the frame, as far as it is known.
func (r *frameReader) want() (int, error) {
	if len(r.in) < headerSize {
		return headerSize, nil
	}
	n := int(binary.BigEndian.Uint16(r.in[2:]))
	switch {
	case r.in[0] != wireVersion:
		return 0, fmt.Errorf("%w: version %d, this end speaks %d", ErrFrame, r.in[0], wireVersion)
	case n > maxBody:
		return 0, fmt.Errorf("%w: body of %d bytes, at most %d", ErrFrame, n, maxBody)
	}
	return headerSize + n, nil
}

// decode returns the frame that fill has read.
func (r *frameReader) decode() (frame, error) {
	f, c := frame{kind: r.in[1]}, codec{b: r.in[headerSize:], reads: true}
	r.in = nil
	if f.fields(&c); len(c.b) > 0 {
		c.fail("kind %d with %d bytes too many", f.kind, len(c.b))
	}
	return f, c.err
}

// A codec encodes fields to the end of b, or decodes them from its start.
type codec struct {
	b     []byte
	reads bool
	err   error // the first error; fields after it are not valid
}

func (c *codec) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: "+format, append([]any{ErrFrame}, args...)...)
	}
}

// take removes n bytes from the start of b.
func (c *codec) take(n int) []byte {
	if len(c.b) < n {
		c.fail("cut short")
		return make([]byte, n)
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

// number is an integer of size bytes.
func (c *codec) number(v *uint64, size int) {
	var wide [8]byte
	if c.reads {
		copy(wide[8-size:], c.take(size))
		*v = binary.BigEndian.Uint64(wide[:])
		return
	}
	binary.BigEndian.PutUint64(wide[:], *v)
	c.b = append(c.b, wide[8-size:]...)
}

func (c *codec) code(v *Code) {
	n := uint64(*v)
	c.number(&n, 1)
	*v = Code(n) //nolint:gosec // of one byte
}

func (c *codec) millis(d *time.Duration) {
	n := uint64(millis(*d))
	if c.number(&n, 4); c.reads {
		*d = time.Duration(n) * time.Millisecond //nolint:gosec // of four bytes
	}
}

// text is a string of at most most bytes, after its length in size bytes.
func (c *codec) text(what string, s *string, size, most int) {
	n := uint64(len(*s))
	c.number(&n, size)
	switch {
	case n > uint64(most): //nolint:gosec // a constant
		c.fail("%s of %d bytes, at most %d", what, n, most)
	case c.reads:
		*s = string(c.take(int(n))) //nolint:gosec // at most most
	default:
		c.b = append(c.b, *s...)
	}
}

// metadata is the number of entries, and each entry.
func (c *codec) metadata(m *Meta) {
	n := uint64(len(*m))
	c.number(&n, 1)
	switch {
	case n > maxMeta:
		c.fail("%d metadata entries, at most %d", n, maxMeta)
		return
	case n == 0:
		return
	}
	entry := func(k, v *string) {
		c.text("metadata key", k, 1, maxMetaKey)
		c.text("metadata value", v, 2, maxMetaText)
	}
	if !c.reads {
		for _, k := range slices.Sorted(maps.Keys(*m)) {
			v := (*m)[k]
			entry(&k, &v)
		}
		return
	}
	*m = make(Meta, n)
	last := ""
	for i := range n {
		var k, v string
		if entry(&k, &v); i > 0 && k <= last {
			c.fail("metadata keys out of order")
		}
		(*m)[k], last = v, k
	}
}

// millis rounds up, so that a short time does not become zero.
func millis(d time.Duration) uint32 {
	return uint32(min((max(d, 0)+time.Millisecond-1)/time.Millisecond, 1<<32-1))
}

// clip cuts text to what a frame may carry.
func clip(s string) string { return s[:min(len(s), maxText)] }
