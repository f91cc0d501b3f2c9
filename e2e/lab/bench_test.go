package lab

import (
	"io"
	"testing"
	"time"

	"github.com/hawser-project/hawser/e2e/lab/emulator"
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

// TestLabsAreApart makes a fault in one of two labs of one process.
func TestLabsAreApart(t *testing.T) {
	var labs []*Lab
	for _, name := range []string{"one", "two"} {
		// Not a subtest: both labs must live until the end.
		l, err := New(t.Context(), t.Name()+name)
		if err != nil {
			t.Skipf("SKIPPED: no network lab here: %v", err)
		}
		t.Cleanup(func() { must(t, l.Close(t.Context())) })
		if _, err := l.AddNode(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
		labs = append(labs, l)
	}
	if labs[0].HostIP() == labs[1].HostIP() {
		t.Fatalf("both labs are %s", labs[0].HostIP())
	}
	must(t, labs[0].Nodes()[0].Cut(t.Context()))
	slow := emulator.Shape{Delay: time.Millisecond}
	must(t, labs[0].Nodes()[0].Shape(t.Context(), slow, slow))
	must(t, labs[1].Nodes()[0].Shape(t.Context(), slow, slow))
	node, host := tcpPair(t, labs[1], labs[1].Nodes()[0])
	send(t, node, "unharmed")
	receive(t, host, "unharmed")
}
