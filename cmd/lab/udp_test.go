// Links that let one protocol through and not the other, and that damage packets.

package lab

import (
	"net"
	"testing"

	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

func TestBlockUDP(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	node, host := udpPair(t, l, n)
	over, overHost := tcpPair(t, l, n)
	send(t, node, "before")
	addr := receiveFrom(t, host, "before")
	must(t, n.BlockUDP(t.Context(), true))
	send(t, node, "up")
	nothing(t, "UDP to the host", host.(net.Conn))
	if _, err := host.WriteTo([]byte("down"), addr); err != nil {
		t.Fatal(err)
	}
	nothing(t, "UDP to the node", node)
	send(t, over, "TCP is not UDP")
	receive(t, overHost, "TCP is not UDP")
	must(t, n.BlockUDP(t.Context(), false))
	send(t, node, "after")
	receiveFrom(t, host, "after")
}

// A damaged packet does not reach anybody: sums are checked on the way or in the
// end.
func TestShapeDamages(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	node, host := udpPair(t, l, n)
	damage := emulator.Shape{Corrupt: 1}
	must(t, n.Shape(t.Context(), damage, damage))
	for range 20 {
		send(t, node, "damaged")
	}
	nothing(t, "damaged packets", host.(net.Conn))
	out, _, ok := n.Shaped()
	if !ok || out.Corrupted != 20 || out.Delivered != 20 {
		t.Errorf("%+v", out)
	}
	must(t, n.Shape(t.Context(), noShape, noShape))
	send(t, node, "whole")
	receiveFrom(t, host, "whole")
}
