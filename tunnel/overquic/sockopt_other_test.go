//go:build !linux

package overquic

import "net"

func canSegment(*net.UDPConn) bool { return false }
