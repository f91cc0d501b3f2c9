//go:build !linux

package overquic

import "net"

func canSegment(*net.UDPConn) bool { return false }

func cutBy(uint16) []byte { return nil }
