package carrier

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func tcpPair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// option reads an option of a socket.
func option[T any](t *testing.T, c *net.TCPConn, get func(fd int) (T, error)) (v T) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var gerr error
	if err := raw.Control(func(fd uintptr) { v, gerr = get(int(fd)) }); err != nil || gerr != nil {
		t.Fatal(err, gerr)
	}
	return v
}

func congestion(t *testing.T, c *net.TCPConn) string {
	return option(t, c, func(fd int) (string, error) { return unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
}

func TestTune(t *testing.T) {
	near, _ := tcpPair(t)
	// However it is wrapped.
	tune(&handshake{Conn: near}, tunnel.Options{})
	for name, tc := range map[string]struct{ level, option, want int }{
		"TCP_NODELAY":              {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		"SO_KEEPALIVE":             {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0},
		"TCP_THIN_LINEAR_TIMEOUTS": {unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1},
		"TCP_NOTSENT_LOWAT":        {unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentLowat},
		"TCP_USER_TIMEOUT":         {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds())},
	} {
		got := option(t, near, func(fd int) (int, error) { return unix.GetsockoptInt(fd, tc.level, tc.option) })
		if got != tc.want {
			t.Errorf("%s is %d, want %d", name, got, tc.want)
		}
	}
	tune(nil, tunnel.Options{}) // nothing to do
}

func TestCongestion(t *testing.T) {
	allowed, err := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
	if err != nil {
		t.Skipf("the kernel does not tell what it allows: %v", err)
	}
	names := strings.Fields(string(allowed))
	for _, name := range names {
		near, _ := tcpPair(t)
		tune(near, tunnel.Options{Link: tunnel.LinkOptions{Congestion: name}})
		if got := congestion(t, near); got != name {
			t.Errorf("asked for %s, got %s", name, got)
		}
		if err := checkCongestion(name); err != nil {
			t.Error(err)
		}
	}
	near, far := tcpPair(t)
	for _, name := range []string{"system", "carrier-pigeon"} { // what is not there is passed over, and nobody has to be told
		tune(near, tunnel.Options{Link: tunnel.LinkOptions{Congestion: name}})
	}
	if got, want := congestion(t, near), congestion(t, far); got != want {
		t.Errorf("system is %s, want %s", got, want)
	}
	ca := tunneltest.NewAuthority(t, "ca")
	o := tunnel.Options{TLS: ca.Client(t, "a"), Link: tunnel.LinkOptions{Congestion: "carrier-pigeon"}}
	if _, err := reach(t, "127.0.0.1:1", o); err == nil || !strings.Contains(err.Error(), `"carrier-pigeon"`) || !strings.Contains(err.Error(), names[0]) {
		t.Errorf("an unknown name: %v", err)
	}
}

// TestUndelivered: what the peer's system has acknowledged has arrived, also if nobody has read it
// and the peer has reset the connection. One-way outages are tried end to end.
func TestUndelivered(t *testing.T) {
	a, b := tcpPair(t)
	if _, err := a.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for !Delivered(a) {
		runtime.Gosched()
	}
	if err := errors.Join(b.SetLinger(0), b.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("not reset: %v", err)
	}
	if Undelivered(a) {
		t.Error("acknowledged data counts as undelivered")
	}
}

// An acknowledgement is awaited for as long as the path takes to lose a segment and to deliver it the
// second time, whatever was lost since.
func TestAckTime(t *testing.T) {
	for want, tcp := range map[time.Duration]unix.TCPInfo{
		204 * time.Millisecond: {Rto: 203_500, Rtt: 500},
		8 * time.Second:        {Rto: 6_000_000, Rtt: 2_000_000},
		7 * time.Second:        {Rto: 48_000_000, Backoff: 3, Rtt: 1_000_000},
	} {
		if got := ackTime(&tcp); got != want {
			t.Errorf("%v, want %v: %+v", got, want, tcp)
		}
	}
}
