// Quick acknowledgements: what sshd's side of Nagle's algorithm waits for.

package overssh

import (
	"net"
	"syscall"
)

// acknowledger returns what has the kernel acknowledge at once what it has
// received on c, if that is a TCP connection. sshd turns Nagle's algorithm off
// only for sessions with a terminal or a command (RFC 896): here its answer to an
// open and the first bytes of the target are two small segments, and without an
// acknowledgement of the first, the second waits until the kernel's delayed one,
// some 40 ms.
func acknowledger(c net.Conn) func() {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return func() {}
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return func() {}
	}
	set := func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 1) // it is only slower without
	}
	return func() { _ = raw.Control(set) } // fails only when c is closed
}
