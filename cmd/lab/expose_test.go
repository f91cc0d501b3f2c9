package lab

import (
	"context"
	"io"
	"net"
	"strconv"
	"testing"
	"time"
)

// One port of a node can be reached, and no other.
func TestExpose(t *testing.T) {
	l := newLab(t, 1)
	n := l.nodes[0]
	listen := func() (ln net.Listener, port uint16) {
		t.Helper()
		must(t, n.Do(func() (err error) {
			ln, err = net.Listen("tcp", "0.0.0.0:0")
			return err
		}))
		t.Cleanup(func() { _ = ln.Close() })
		return ln, uint16(ln.Addr().(*net.TCPAddr).Port)
	}
	dial := func(port uint16, patience time.Duration) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(n.NATIP(), strconv.Itoa(int(port))))
	}
	open, port := listen()
	_, other := listen()
	must(t, n.Expose(t.Context(), port))
	c, err := dial(port, time.Minute)
	if err != nil {
		t.Fatalf("the port is not forwarded: %v", err)
	}
	defer c.Close()
	far, err := open.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if _, err := far.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	var got [5]byte
	if _, err := io.ReadFull(c, got[:]); err != nil || string(got[:]) != "hello" {
		t.Errorf("read %q, %v", got, err)
	}
	if c, err := dial(other, time.Second); err == nil {
		_ = c.Close()
		t.Error("another port is forwarded too")
	}
	must(t, n.Cut(t.Context()))
	if c, err := dial(port, time.Second); err == nil {
		_ = c.Close()
		t.Error("a link that is cut lets somebody in")
	}
	must(t, n.Heal(t.Context()))
}
