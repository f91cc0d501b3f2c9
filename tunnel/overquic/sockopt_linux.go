// Socket options, as Linux has them.

package overquic

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"
)

// setOptions sets what the library sets on the one socket that it knows: packets
// are not to be fragmented, of whatever length they are, and their ECN bits are
// told. What a kernel does not know it does without.
func setOptions(c *net.UDPConn) {
	control(c, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
	})
}

// segment is the length of each packet but the last of what is written with oob, or
// whole if that is one packet (UDP_SEGMENT).
func segment(oob []byte, whole int) int {
	for len(oob) > 0 {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		switch {
		case err != nil:
			return whole
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_SEGMENT && len(data) >= 2:
			return int(binary.NativeEndian.Uint16(data))
		}
		oob = rest
	}
	return whole
}

// setReceiveBuffer makes c's receive buffer as large as bytes if it can, beyond
// the system's limit if this process may, and returns how large it is.
func setReceiveBuffer(c *net.UDPConn, bytes int) int {
	return setBuffer(c, bytes, c.SetReadBuffer, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE)
}

// setSendBuffer is setReceiveBuffer for the other direction.
func setSendBuffer(c *net.UDPConn, bytes int) int {
	return setBuffer(c, bytes, c.SetWriteBuffer, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE)
}

func setBuffer(c *net.UDPConn, bytes int, set func(int) error, option, force int) (got int) {
	look := func(fd int) {
		// The kernel counts its own overhead and says twice what was asked for.
		n, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
		got = n / 2
	}
	if control(c, look); got >= bytes {
		return got
	}
	_ = set(bytes) // what came of it is looked at
	if control(c, look); got >= bytes {
		return got
	}
	control(c, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bytes)
		look(fd)
	})
	return got
}

func control(c *net.UDPConn, f func(fd int)) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { f(int(fd)) }) // fails only on a closed socket
}
