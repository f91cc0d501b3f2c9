// Socket options of Linux.

package carrier

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func tuneSocket(fd int) {
	// Older kernels lack some of these; see tune.
	setUnsent(fd, notSentLowat)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	// A sender of little data, such as heartbeats beside a download on a thin link, retransmits
	// at a constant interval up to six times before the interval doubles.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
}

func setUnsent(fd, bytes int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes) // as above
}

func quickAck(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) // as above
}

// limitSegments limits the segments of both directions, if that is called before the
// connection is made (RFC 9293, 3.7.1).
func limitSegments(fd, size int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, size) // as above
}

// acknowledgementOf asks the system (tcp(7), TCP_INFO).
func acknowledgementOf(fd int) (acknowledgement, bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return acknowledgement{}, false
	}
	return acknowledgement{info.Unacked > 0, info.Notsent_bytes > 0, time.Duration(info.Last_ack_recv) * time.Millisecond}, true
}

func setCongestion(fd int, name string) error {
	return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
}

// tryCongestion says whether this process may use a congestion control.
func tryCongestion(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only used to ask
	if err := setCongestion(fd, name); err != nil {
		allowed, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control") // the error is complete without it
		return fmt.Errorf("%w: the kernel allows auto, system and %s", err, strings.TrimSpace(string(allowed)))
	}
	return nil
}
