package lab

import (
	"io"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

// BenchmarkShape is what one TCP stream gets over an emulated link, and over the bare
// one: the lab must not be what limits what is measured in it.
func BenchmarkShape(b *testing.B) {
	for _, c := range []struct {
		name  string
		shape emulator.Shape
	}{
		{"none", noShape},
		{"1ms", emulator.Shape{Delay: time.Millisecond / 2}},
		{"100ms,100mbit", emulator.Shape{Delay: 50 * time.Millisecond, Rate: 12_500_000}},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLab(b, 1)
			n := l.Nodes()[0]
			if err := n.Shape(b.Context(), c.shape, c.shape); err != nil {
				b.Fatal(err)
			}
			node, host := tcpPair(b, l, n)
			block := make([]byte, 64<<10)
			wrote := make(chan error, 1)
			b.SetBytes(int64(len(block)))
			b.ResetTimer()
			go func() {
				for range b.N {
					if _, err := node.Write(block); err != nil {
						wrote <- err
						return
					}
				}
				wrote <- nil
			}()
			if _, err := io.CopyN(io.Discard, host, int64(b.N)*int64(len(block))); err != nil {
				b.Error(err)
			}
			if err := <-wrote; err != nil {
				b.Error(err)
			}
		})
	}
}
