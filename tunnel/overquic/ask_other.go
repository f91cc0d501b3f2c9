//go:build !linux

// Asking, where the system does not tell what ICMP says of a port: a silent peer is silent.

package overquic

import "net"

func share(net.PacketConn) bool { return false }

func vacant(_, _ net.Addr) bool { return false }
