// Links of a shape: delay, loss, size and rate, seen by real sockets.

package lab

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

func TestShapeDelays(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	node, host := tcpPair(t, l, n)
	send(t, node, "before")
	receive(t, host, "before")
	slow := emulator.Shape{Delay: 50 * time.Millisecond}
	must(t, n.Shape(t.Context(), slow, slow))
	began := time.Now()
	send(t, node, "ping")
	receive(t, host, "ping")
	send(t, host, "pong")
	receive(t, node, "pong")
	if rtt := time.Since(began); rtt < 100*time.Millisecond {
		t.Errorf("round trip of %v over a link of 100 ms", rtt)
	}
	out, in, ok := n.Shaped()
	if !ok || out.Delivered == 0 || in.Delivered == 0 {
		t.Errorf("counts %+v, %+v, %v", out, in, ok)
	}
	if _, from := tcpPair(t, l, n); !strings.HasPrefix(from.RemoteAddr().String(), n.NATIP()+":") {
		t.Errorf("a new connection comes from %v: not through the NAT", from.RemoteAddr())
	}
	must(t, n.Shape(t.Context(), noShape, noShape))
	if _, _, ok := n.Shaped(); ok {
		t.Error("the emulator is still there")
	}
	send(t, node, "after")
	receive(t, host, "after")
}

// TestShapeLosesAndReorders numbers datagrams: some are missing, some are late.
func TestShapeLosesAndReorders(t *testing.T) {
	l := newLab(t, 1)
	l.Seed = 7
	n := l.Nodes()[0]
	node, host := udpPair(t, l, n)
	must(t, n.Shape(t.Context(), emulator.Shape{Loss: 0.2, Reorder: 0.2, Rate: 1 << 20}, noShape))
	const sent = 300
	for i := range uint32(sent) {
		send(t, node, string(binary.BigEndian.AppendUint32(nil, i)))
	}
	var got []uint32
	for {
		must(t, host.SetReadDeadline(time.Now().Add(time.Second)))
		buf := make([]byte, 16)
		if _, _, err := host.ReadFrom(buf); err != nil {
			break
		}
		got = append(got, binary.BigEndian.Uint32(buf))
	}
	counts, _, _ := n.Shaped()
	if len(got) != int(counts.Delivered) || counts.Sent != sent || len(got) > sent*9/10 || len(got) < sent/2 {
		t.Errorf("%d of %d arrived; counts %+v", len(got), sent, counts)
	}
	if slices.IsSorted(got) {
		t.Error("everything came in order")
	}
}

// TestShapeMTU is a black hole for large packets that tells nobody.
func TestShapeMTU(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	node, host := udpPair(t, l, n)
	must(t, n.Shape(t.Context(), emulator.Shape{MTU: 1280}, emulator.Shape{MTU: 1280}))
	send(t, node, strings.Repeat("x", 1280-28+1)) // IP and UDP take 28 bytes
	small := strings.Repeat("y", 1280-28)
	send(t, node, small)
	receiveFrom(t, host, small)
}

// TestShapeCarriesAStream sends a megabyte through everything at once.
func TestShapeCarriesAStream(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	node, host := tcpPair(t, l, n)
	rough := emulator.Shape{
		Delay: 2 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.01, Duplicate: 0.01,
		Reorder: 0.01, Hold: time.Millisecond, Rate: 10 << 20,
	}
	must(t, n.Shape(t.Context(), rough, rough))
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * i >> 7)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := node.Write(want)
		wrote <- err
	}()
	receive(t, host, string(want))
	must(t, <-wrote)
	out, _, _ := n.Shaped()
	if out.Lost == 0 || out.Duplicated == 0 || out.Reordered == 0 {
		t.Errorf("the link was not rough: %+v", out)
	}
}
