// Each fault, seen by real sockets between the host and a node.

package lab

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

const (
	// patience is for what must come.
	patience = 20 * time.Second
	// silence is how long a test listens for what must not come.
	silence = 300 * time.Millisecond
)

// tcpPair returns both ends of a connection that the node has opened to the host.
func tcpPair(t testing.TB, l *Lab, n *Node) (node, host net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", net.JoinHostPort(l.HostIP(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	must(t, ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	if node, err = n.Dial(t.Context(), "tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	if host, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	return node, host
}

// udpPair returns a socket of the host and one of the node that sends to it.
func udpPair(t *testing.T, l *Lab, n *Node) (node net.Conn, host net.PacketConn) {
	t.Helper()
	host, err := net.ListenPacket("udp", net.JoinHostPort(l.HostIP(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	if node, err = n.Dial(t.Context(), "udp", host.LocalAddr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	return node, host
}

func send(t *testing.T, to net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(to, text); err != nil {
		t.Fatal(err)
	}
}

// receive waits for a text on a stream.
func receive(t *testing.T, from net.Conn, want string) {
	t.Helper()
	if err := from.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(want))
	if _, err := io.ReadFull(from, buf); err != nil || string(buf) != want {
		t.Fatalf("read %q, %v; want %q", buf, err, want)
	}
}

// receiveFrom waits for a datagram and returns where it came from.
func receiveFrom(t *testing.T, host net.PacketConn, want string) net.Addr {
	t.Helper()
	if err := host.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	size, from, err := host.ReadFrom(buf)
	if err != nil || string(buf[:size]) != want {
		t.Fatalf("received %q, %v; want %q", buf[:size], err, want)
	}
	return from
}

// nothing fails the test if something comes.
func nothing(t *testing.T, what string, from net.Conn) {
	t.Helper()
	if err := from.SetReadDeadline(time.Now().Add(silence)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	if size, err := from.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: read %q, %v", what, buf[:size], err)
	}
}

// must calls a fault and fails the test if it fails.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCutAndHeal(t *testing.T) {
	l := newLab(t, 2)
	n := l.Nodes()[0]
	node, host := tcpPair(t, l, n)
	other, otherHost := tcpPair(t, l, l.Nodes()[1])
	send(t, node, "before")
	receive(t, host, "before")
	must(t, n.Cut(t.Context()))
	send(t, node, "up")
	send(t, host, "down")
	nothing(t, "to the host of a cut link", host)
	nothing(t, "to the node of a cut link", node)
	send(t, other, "unharmed")
	receive(t, otherHost, "unharmed")
	must(t, n.Heal(t.Context()))
	receive(t, host, "up")
	receive(t, node, "down")
}

func TestCutOneWay(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	for _, d := range []Direction{In, Out} {
		t.Run(d.String(), func(t *testing.T) {
			node, host := udpPair(t, l, n)
			send(t, node, "hello")
			addr := receiveFrom(t, host, "hello")
			must(t, n.CutOneWay(t.Context(), d))
			send(t, node, "up")
			if d == In {
				receiveFrom(t, host, "up")
			} else {
				nothing(t, "out", host.(net.Conn))
			}
			if _, err := host.WriteTo([]byte("down"), addr); err != nil {
				t.Fatal(err)
			}
			if d == Out {
				receive(t, node, "down")
			} else {
				nothing(t, "in", node)
			}
			must(t, n.Heal(t.Context()))
			send(t, node, "healed")
			receiveFrom(t, host, "healed")
		})
	}
}

func TestLoss(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	node, host := udpPair(t, l, n)
	must(t, n.Loss(t.Context(), 1))
	send(t, node, "lost")
	nothing(t, "a loss of everything", host.(net.Conn))
	must(t, n.Loss(t.Context(), 0.5))
	const sent = 400
	for range sent {
		send(t, node, "x")
	}
	must(t, n.Loss(t.Context(), 0))
	send(t, node, "end")
	got := 0
	buf := make([]byte, 16)
	for {
		if err := host.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		size, _, err := host.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		if string(buf[:size]) == "end" {
			break
		}
		got++
	}
	if got < sent/4 || got > sent*3/4 { // ten standard deviations
		t.Errorf("%d of %d arrived over a link that loses half", got, sent)
	}
	for _, share := range []float64{-0.1, 1.1} {
		if n.Loss(t.Context(), share) == nil {
			t.Errorf("a loss of %v was taken", share)
		}
	}
}

func TestReset(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	node, host := tcpPair(t, l, n)
	idleNode, idleHost := tcpPair(t, l, n)
	must(t, n.setReset(t.Context(), true))
	send(t, node, "up")
	send(t, host, "down")
	for side, c := range map[string]net.Conn{"node": node, "host": host} {
		must(t, c.SetReadDeadline(time.Now().Add(patience)))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the %s read %v, want a reset", side, err)
		}
	}
	must(t, n.Reset(t.Context(), time.Millisecond)) // and so ends the one before
	send(t, idleNode, "alive")
	receive(t, idleHost, "alive")
}

func TestResetEndsWithContext(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	ctx, cancel := context.WithTimeout(t.Context(), silence)
	defer cancel()
	if err := n.Reset(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reset returned %v", err)
	}
	if n.faults.reset {
		t.Error("the fault is still in place")
	}
	if n.Reset(t.Context(), 0) == nil || n.Reset(t.Context(), 2*time.Hour) == nil {
		t.Error("a reset without an end was taken")
	}
}

// TestRate counts what a window of time lets through.
func TestRate(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	const rate = 250_000
	for _, way := range []string{"out", "in"} {
		t.Run(way, func(t *testing.T) {
			from, to := tcpPair(t, l, n)
			if way == "in" {
				from, to = to, from
			}
			must(t, n.Rate(t.Context(), rate))
			window := time.Second
			began := time.Now()
			must(t, from.SetWriteDeadline(began.Add(window)))
			must(t, to.SetReadDeadline(began.Add(window)))
			wrote := make(chan struct{})
			go func() {
				defer close(wrote)
				block := make([]byte, 64<<10)
				for {
					if _, err := from.Write(block); err != nil {
						return
					}
				}
			}()
			got, _ := io.Copy(io.Discard, to)
			<-wrote
			// The window may have been longer than it was meant to be.
			most := int64(time.Since(began).Seconds()*rate) + 64<<10
			if got > most || got < rate/4 {
				t.Errorf("%d bytes, want from %d to %d", got, rate/4, most)
			}
			must(t, n.Rate(t.Context(), 0))
		})
	}
	for _, bad := range []int64{-1, maxRate + 1} {
		if n.Rate(t.Context(), bad) == nil {
			t.Errorf("a rate of %d was taken", bad)
		}
	}
}

func TestRebind(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	node, host := udpPair(t, l, n)
	stream, streamHost := tcpPair(t, l, n)
	send(t, node, "hello")
	last := receiveFrom(t, host, "hello")
	var seen []string
	for range 3 {
		must(t, n.Rebind(t.Context()))
		// Nobody is at the old address any more.
		if _, err := host.WriteTo([]byte("old"), last); err != nil {
			t.Fatal(err)
		}
		nothing(t, "to the old binding", node)
		send(t, node, "hello")
		from := receiveFrom(t, host, "hello")
		if from.String() == last.String() || slices.Contains(seen, from.String()) {
			t.Errorf("still at %v after %v", from, seen)
		}
		seen, last = append(seen, from.String()), from
		if _, err := host.WriteTo([]byte("back"), from); err != nil {
			t.Fatal(err)
		}
		receive(t, node, "back")
	}
	// The host has no connection with where the stream now comes from.
	_, _ = io.WriteString(stream, "x")
	must(t, stream.SetReadDeadline(time.Now().Add(patience)))
	if _, err := stream.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the stream of a forgotten binding read %v, want a reset", err)
	}
	nothing(t, "the other end of that stream", streamHost)
}

// What was forgotten is silent at both ends; what is new works.
func TestForget(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	stream, streamHost := tcpPair(t, l, n)
	must(t, n.Forget(t.Context()))
	_, _ = io.WriteString(stream, "up")
	_, _ = io.WriteString(streamHost, "down")
	nothing(t, "the node's end", stream)
	nothing(t, "the host's end", streamHost)
	node, host := tcpPair(t, l, n)
	send(t, node, "up")
	receive(t, host, "up")
	send(t, host, "down")
	receive(t, node, "down")
}

func TestMove(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	for range 2 {
		old, oldHost := tcpPair(t, l, n)
		ip, outer := n.IP(), n.NATIP()
		must(t, n.Move(t.Context()))
		if n.IP() == ip || n.NATIP() == outer {
			t.Fatalf("the node is still %s behind %s", n.IP(), n.NATIP())
		}
		_, _ = io.WriteString(old, "lost")
		nothing(t, "a stream of the old address", oldHost)
		node, host := tcpPair(t, l, n)
		if got := node.LocalAddr().(*net.TCPAddr).IP.String(); got != n.IP() {
			t.Errorf("the node speaks from %s, want %s", got, n.IP())
		}
		if got := host.RemoteAddr().(*net.TCPAddr).IP.String(); got != n.NATIP() {
			t.Errorf("the node seems to be %s, want %s", got, n.NATIP())
		}
		send(t, node, "moved")
		receive(t, host, "moved")
	}
}

func TestClear(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	slow := emulator.Shape{Delay: time.Minute}
	must(t, n.Shape(t.Context(), slow, slow))
	must(t, n.Cut(t.Context()))
	must(t, n.Loss(t.Context(), 1))
	must(t, n.Rate(t.Context(), 1000))
	must(t, n.setReset(t.Context(), true))
	must(t, n.BlockUDP(t.Context(), true))
	must(t, n.Clear(t.Context()))
	node, host := tcpPair(t, l, n)
	send(t, node, "clear")
	receive(t, host, "clear")
	packets, packetsHost := udpPair(t, l, n)
	send(t, packets, "clear")
	receiveFrom(t, packetsHost, "clear")
}

// TestOpen makes faults in a lab that somebody else has made.
func TestOpen(t *testing.T) {
	l := newLab(t, 2)
	must(t, l.Nodes()[1].Move(t.Context()))
	must(t, l.Nodes()[1].Rebind(t.Context()))
	if _, err := Open(t.Context(), t.Name()+" not"); err == nil || !strings.Contains(err.Error(), "there is no lab") {
		t.Errorf("opened a lab that is not there: %v", err)
	}
	opened, err := Open(t.Context(), t.Name())
	must(t, err)
	if opened.HostIP() != l.HostIP() || len(opened.Nodes()) != 2 {
		t.Fatalf("opened a lab at %s with %d nodes", opened.HostIP(), len(opened.Nodes()))
	}
	n, err := opened.Node("node-2")
	must(t, err)
	if n.IP() != l.Nodes()[1].IP() || n.NATIP() != l.Nodes()[1].NATIP() {
		t.Errorf("node-2 is %s behind %s, which is not where it has moved to", n.IP(), n.NATIP())
	}
	node, host := udpPair(t, l, n)
	send(t, node, "hello")
	before := receiveFrom(t, host, "hello")
	must(t, n.Rebind(t.Context()))
	send(t, node, "hello")
	if after := receiveFrom(t, host, "hello"); after.String() == before.String() {
		t.Errorf("still at %v", after)
	}
	must(t, n.Cut(t.Context()))
	send(t, node, "cut")
	nothing(t, "a cut link", host.(net.Conn))
	must(t, opened.Close(t.Context()))
	send(t, node, "healed")
	receiveFrom(t, host, "healed")
	if _, err := opened.Node("node-3"); err == nil || !strings.Contains(err.Error(), "node-1, node-2") {
		t.Errorf("found a node that is not there: %v", err)
	}
}
