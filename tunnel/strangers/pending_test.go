package strangers

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel/memnet"
)

// Who is done leaves, who is slow makes room, and nobody is in a closed one.
func TestPending(t *testing.T) {
	p := NewPending(2)
	ends := make([]*memnet.Conn, 4)
	var leave []func()
	for i := range ends {
		var c *memnet.Conn
		c, ends[i] = memnet.Pipe(memnet.Addr("c"), memnet.Addr("d"))
		if i == 2 {
			leave[1]() // the second is done; the first is still at it
		}
		leave = append(leave, p.Enter(c))
	}
	open := func(i int) bool {
		_ = ends[i].SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		_, err := ends[i].Read(make([]byte, 1))
		return errors.Is(err, os.ErrDeadlineExceeded)
	}
	for i, want := range []bool{false, true, true, true} {
		if open(i) != want {
			t.Errorf("connection %d: open %v", i, !want)
		}
	}
	leave[0]() // has lost its place; nothing happens
	p.Close()
	for i, want := range []bool{false, true, false, false} {
		if open(i) != want {
			t.Errorf("after Close, connection %d: open %v", i, !want)
		}
	}
	leave[3]() // likewise
	p.Close()
	late, end := memnet.Pipe(memnet.Addr("c"), memnet.Addr("d"))
	p.Enter(late)()
	if _, err := end.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("late comer: %v", err)
	}
}

// from is a connection's end with a remote address of that network.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// One source has all places while nobody else wants them, and never keeps anybody
// out; a client that has one place loses it to nobody who has more.
func TestPendingIsFair(t *testing.T) {
	const limit = 100
	p := NewPending(limit)
	lost := make(map[string]int)
	enter := func(addr net.Addr) {
		near, far := memnet.Pipe(memnet.Addr("c"), memnet.Addr("d"))
		t.Cleanup(func() { _ = far.Close() })
		p.Enter(watched{from{near, addr}, func() { lost[addr.(*net.TCPAddr).IP.String()]++ }})
	}
	tcp := func(ip string, port int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: port} }
	for i := range 10_000 {
		enter(tcp("192.0.2.1", i))
		if i%100 == 0 {
			enter(tcp("::ffff:192.0.2.1", i)) // the same
		}
	}
	if inside, cut := p.Count(), lost["192.0.2.1"]; inside != limit || cut != 10_000 {
		t.Errorf("%d inside, %d lost their places", inside, cut)
	}
	for i := range 40 {
		enter(tcp(fmt.Sprintf("198.51.100.%d", i), 1))
		enter(tcp(fmt.Sprintf("2001:db8:0:1::%x", i), 1)) // one host's
		for j := range 100 {
			enter(tcp("192.0.2.1", j))
		}
	}
	for i := range 40 {
		if n := lost[fmt.Sprintf("198.51.100.%d", i)]; n != 0 {
			t.Errorf("an honest client lost its place %d times", n)
		}
	}
	if inside := p.Count(); inside != limit {
		t.Errorf("%d inside", inside)
	}
	p.Close()
	if inside := p.Count(); inside != 0 {
		t.Errorf("%d inside a closed pending", inside)
	}
}

// watched is a connection that tells when it is aborted.
type watched struct {
	net.Conn
	aborted func()
}

func (w watched) Abort() error { w.aborted(); return w.Close() }
