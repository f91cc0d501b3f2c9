// The size of TCP segments, where it can be limited.

//go:build unix

package carrier

import "syscall"

// limitSegments limits the segments of both directions, if that is called before the
// connection is made (RFC 9293, 3.7.1).
func limitSegments(fd uintptr, size int) {
	// What the system does not know of, it does without.
	_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, size)
}
