// Socket options where there is no way to look at what came of them.

//go:build !linux

package overquic

import "net"

func setOptions(*net.UDPConn) {}

// segment is whole: packets are written one at a time.
func segment(_ []byte, whole int) int { return whole }

func setReceiveBuffer(c *net.UDPConn, bytes int) int {
	_ = c.SetReadBuffer(bytes) // a smaller one does, only slower
	return bytes
}

func setSendBuffer(c *net.UDPConn, bytes int) int {
	_ = c.SetWriteBuffer(bytes) // as above
	return bytes
}
