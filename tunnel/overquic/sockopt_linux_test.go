package overquic

import (
	"net"

	"golang.org/x/sys/unix"
)

func canSegment(c *net.UDPConn) (ok bool) {
	control(c, func(fd int) {
		_, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
		ok = err == nil
	})
	return ok
}
