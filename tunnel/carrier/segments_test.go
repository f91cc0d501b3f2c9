package carrier

import (
	"net"
	"syscall"
	"testing"
)

// TestNetDialer looks at the segments of connections.
func TestNetDialer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, small := range []bool{false, true} {
		c, err := NetDialer(small).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		for end, conn := range map[string]net.Conn{"dialing": c, "accepting": far} {
			if size := segment(t, conn); (size <= smallSegment) != small {
				t.Errorf("small packets: %t, segments of the %s end: %d", small, end, size)
			}
		}
	}
}

func segment(t *testing.T, c net.Conn) (size int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) {
		size, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG)
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return size
}
