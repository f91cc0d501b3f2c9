package lanes

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// decodeAll feeds b to a decoder, a piece at a time.
func decodeAll(d *decoder, b []byte, piece int) (payload []byte, marks []mark, err error) {
	for part := range slices.Chunk(slices.Clone(b), piece) {
		for len(part) > 0 {
			n, rest, m, derr := d.decode(part)
			payload = append(payload, part[:n]...)
			if derr != nil {
				return payload, marks, derr
			}
			if m.kind != markNone {
				marks = append(marks, m)
			}
			part = rest
		}
	}
	return payload, marks, nil
}

func TestDecoder(t *testing.T) {
	item := func(s string) []byte { return append(appendSize(nil, len(s)), s...) }
	long := string(bytes.Repeat([]byte("x"), maxItem))
	for _, c := range []struct {
		name    string
		in      []byte
		payload string
		marks   []mark
		bad     bool
	}{
		{name: "nothing", in: appendNumber(nil, 7), marks: []mark{{markNumber, 7}}},
		{
			name: "all", in: slices.Concat(appendNumber(nil, maxNumber), item("ab"), appendWanted(nil, 3), item(long), appendMoved(nil, 200), item("c")),
			payload: "ab" + long + "c", marks: []mark{{markNumber, maxNumber}, {markWanted, 3}, {markMoved, 200}},
		},
		{name: "number zero", in: []byte{0}, bad: true},
		{name: "number too large", in: []byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 1}, bad: true},
		{name: "size too large", in: append(appendNumber(nil, 2), appendSize(nil, maxSize+1)...), bad: true},
		{name: "size not in its shortest form", in: append(appendNumber(nil, 2), 0x81, 0), bad: true},
		{name: "unknown kind", in: append(appendNumber(nil, 2), 0, 9), bad: true},
		{name: "lane zero", in: append(appendNumber(nil, 2), appendMoved(nil, 0)...), bad: true},
		{name: "lane too large", in: append(appendNumber(nil, 2), appendMoved(nil, maxLane+1)...), bad: true},
		{name: "too many wanted", in: append(appendNumber(nil, 2), appendWanted(nil, maxWanted+1)...), bad: true},
	} {
		for _, piece := range []int{1, 2, 3, 1 << 20} {
			payload, marks, err := decodeAll(&decoder{at: atNumber}, c.in, piece)
			if c.bad {
				if !errors.Is(err, tunnel.ErrFrame) {
					t.Errorf("%s, %d at a time: error %v", c.name, piece, err)
				}
				continue
			}
			if err != nil || string(payload) != c.payload || !slices.Equal(marks, c.marks) {
				t.Errorf("%s, %d at a time: %d bytes, marks %v, error %v", c.name, piece, len(payload), marks, err)
			}
		}
	}
}

func TestPrefix(t *testing.T) {
	for _, p := range []prefix{{kind: kindLeg, stream: 3}, {kind: kindLeg, stream: maxNumber}, {kind: kindRetire}, {kind: kindRetire, begun: 1, met: 1<<32 - 1}} {
		if got, err := decodePrefix(p.encode()); err != nil || got != p {
			t.Errorf("%+v came back as %+v, %v", p, got, err)
		}
	}
	for _, b := range [][prefixSize]byte{{}, {kindLeg}, {9}, {kindLeg, 255}} {
		if got, err := decodePrefix(b); !errors.Is(err, tunnel.ErrFrame) {
			t.Errorf("%v is %+v, %v", b, got, err)
		}
	}
}

// However a direction is cut into pieces it means the same, and what it means has
// one spelling.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte{3, 2, 'a', 'b', 0, itemMoved, 1, 0, itemWanted, 2, 1, 'c'}, byte(1))
	f.Add([]byte{3, 0x80, 0x80, 1}, byte(2))
	f.Add([]byte{0x80, 0}, byte(1))
	f.Fuzz(func(t *testing.T, in []byte, piece byte) {
		whole, marks, err := decodeAll(&decoder{at: atNumber}, in, len(in)+1)
		payload, again, perr := decodeAll(&decoder{at: atNumber}, in, int(piece)+1)
		if !bytes.Equal(payload, whole) || !slices.Equal(marks, again) || (err == nil) != (perr == nil) {
			t.Fatalf("%d at a time: %q %v %v; at once: %q %v %v", piece, payload, again, perr, whole, marks, err)
		}
		if err != nil {
			return
		}
		if out := respell(in); !bytes.HasPrefix(in, out) || len(in)-len(out) >= 10 {
			t.Fatalf("%x is spelled %x", in, out)
		}
	})
}

// respell decodes a direction and encodes what it says, as far as it is complete.
func respell(in []byte) (out []byte) {
	d := decoder{at: atNumber}
	b := slices.Clone(in)
	for len(b) > 0 {
		if d.left > 0 {
			n := min(d.left, len(b))
			out, b, d.left = append(out, b[:n]...), b[n:], d.left-n
			continue
		}
		_, rest, m, err := d.decode(b[:1])
		if err != nil {
			return out
		}
		b = b[1-len(rest):]
		switch {
		case m.kind == markNumber:
			out = appendNumber(out, m.value)
		case m.kind == markMoved:
			out = appendMoved(out, int(m.value))
		case m.kind == markWanted:
			out = appendWanted(out, int(m.value))
		case d.left > 0:
			out = appendSize(out, d.left)
		}
	}
	return out
}

func FuzzPrefix(f *testing.F) {
	f.Add([]byte{kindLeg, 0, 0, 0, 0, 0, 0, 0, 3})
	f.Add([]byte{kindRetire, 0, 0, 0, 0, 0, 0, 0, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) != prefixSize {
			return
		}
		p, err := decodePrefix([prefixSize]byte(in))
		if err != nil {
			return
		}
		if b := p.encode(); !bytes.Equal(b[:], in) {
			t.Fatalf("%x is spelled %x", in, b)
		}
	})
}
