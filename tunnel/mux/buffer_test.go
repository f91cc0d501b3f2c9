package mux

import (
	"bytes"
	"testing"
)

// A buffer gives back what it was given, and no memory when it is empty.
func FuzzBuffer(f *testing.F) {
	f.Add([]byte{200, 100, 7, 0, 255, 255})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var (
			b         buffer
			want      []byte
			next, max byte = 0, 255
		)
		for i, step := range steps[:min(len(steps), 64)] {
			n := int(step) * 300
			if i%2 == 0 {
				p := make([]byte, min(n, MaxFrame))
				for j := range p {
					p[j] = next
					next = (next + 1) % max
				}
				if step%2 == 0 {
					b.write(p)
				} else {
					x := NewBlock()
					b.add(x[:copy(x[:], p)], x)
				}
				want = append(want, p...)
				continue
			}
			p := make([]byte, n)
			m := b.read(p)
			if m != min(n, len(want)) || !bytes.Equal(p[:m], want[:m]) {
				t.Fatalf("step %d: read %d of %d", i, m, len(want))
			}
			want = want[m:]
			if b.bytes != len(want) || b.empty() != (len(want) == 0) {
				t.Fatalf("step %d: size %d, want %d", i, b.bytes, len(want))
			}
		}
		for i := 1; i < len(b.parts); i++ {
			if x, y := b.parts[i-1], b.parts[i]; x.end+y.end <= MaxFrame {
				t.Errorf("%d and %d bytes in two blocks", x.end, y.end)
			}
		}
		b.drop()
	})
}
