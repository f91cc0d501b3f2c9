// Socket options: short queues, early timeouts, and congestion control that tolerates loss.

package carrier

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// notSentLowat is how many unsent bytes a socket may hold: later data waits behind them.
	// It is the size of a batch of package qmux. Less would cause more wake-ups, and save no
	// delay on a path that carries this much in a millisecond or two. LimitUnsent lowers it
	// for slower paths.
	notSentLowat = 128 << 10
	// userTimeout is how long sent data may stay unacknowledged before the kernel closes
	// the connection (tcp(7), TCP_USER_TIMEOUT). Its default is about fifteen minutes.
	userTimeout = 20 * time.Second

	// The values of LinkOptions.Congestion besides the kernel's names.
	congestionAuto   = "auto"
	congestionSystem = "system"
	// preferredCongestion is what auto uses: it does not treat every loss as congestion.
	preferredCongestion = "bbr"
)

// tune sets the options of the TCP connection that c is or wraps, as far as the kernel
// supports them: a connection works without them.
func tune(c net.Conn, o tunnel.Options) {
	name := o.Link.Congestion
	if name == "" || name == congestionAuto {
		name = preferredCongestion
	}
	onTCP(c, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0) // transports have their own
		setTCP(fd, unix.TCP_NODELAY, 1)
		setTCP(fd, unix.TCP_NOTSENT_LOWAT, notSentLowat)
		setTCP(fd, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
		// A sender of little data, such as heartbeats beside a download on a thin link,
		// retransmits at a constant interval up to six times before the interval doubles.
		setTCP(fd, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
		if name == congestionSystem {
			return
		}
		if err := setCongestion(fd, name); err != nil {
			o.Logger().Debug("congestion control stays the system's", "wanted", name, "err", err)
		}
	})
}

// setTCP sets an option of TCP. If that fails the kernel is older than the option, or the
// connection is broken, which its user notices.
func setTCP(fd, option, value int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value) }

func setCongestion(fd int, name string) error {
	return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name)
}

// checkCongestion fails if this process may not use the congestion control of that name.
func checkCongestion(name string) error {
	if name == "" || name == congestionAuto || name == congestionSystem {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("congestion control %q: open a socket: %w", name, err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only used to ask
	if err := setCongestion(fd, name); err != nil {
		allowed, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control") // the error is complete without it
		return fmt.Errorf("congestion control %q: %w: the kernel allows auto, system and %s", name, err, strings.TrimSpace(string(allowed)))
	}
	return nil
}

// LimitUnsent bounds the unsent bytes that the TCP connection that c is or wraps holds, if
// there is one.
func LimitUnsent(c net.Conn, bytes int) {
	onTCP(c, func(fd int) { setTCP(fd, unix.TCP_NOTSENT_LOWAT, bytes) })
}

// DropUnsent makes the close of the TCP connection that c is or wraps, if there is one, drop what is
// unsent and reset the connection (RFC 9293, section 3.10.5). Without it the kernel goes on
// sending, and competes with the connection that replaces this one.
func DropUnsent(c net.Conn) {
	if tcp := tcpBelow(c); tcp != nil {
		_ = tcp.SetLinger(0) // it fails on a broken connection, which has nothing left to send
	}
}

// QuickAck makes the kernel acknowledge at once what the TCP connection that c is or wraps
// has received, if there is one.
func QuickAck(c net.Conn) { onTCP(c, func(fd int) { setTCP(fd, unix.TCP_QUICKACK, 1) }) }

// Acknowledges says whether the peer of the TCP connection that c is or wraps has
// acknowledged something within d: then it works, even if it is slow. False if that is unknown.
func Acknowledges(c net.Conn, d time.Duration) bool {
	tcp := infoOf(c)
	return tcp != nil && milliseconds(tcp.Last_ack_recv) < d
}

// Delivered says whether the peer's system has acknowledged everything that was written to
// the TCP connection that c is or wraps. False if that is unknown.
func Delivered(c net.Conn) bool {
	tcp := infoOf(c)
	return tcp != nil && tcp.Unacked == 0 && tcp.Notsent_bytes == 0
}

// Undelivered says whether the TCP connection that c is or wraps ended, however it did, while what
// was sent was sent again because no acknowledgement came: the retransmission timer (RFC 6298) has
// run out since the last. It follows the round trip, also that of a link whose queue is full. False
// if that is unknown.
func Undelivered(c net.Conn) bool {
	tcp := infoOf(c)
	return tcp != nil && tcp.Retransmits > 0 && tcp.Bytes_sent > tcp.Bytes_retrans+tcp.Bytes_acked
}

// Stuck says whether sent data is unacknowledged and no acknowledgement was received for d: then it
// does not work, if d is no less than AckTime. False if that is unknown.
func Stuck(c net.Conn, d time.Duration) bool {
	tcp := infoOf(c)
	return tcp != nil && tcp.Unacked > 0 && milliseconds(tcp.Last_ack_recv) >= d
}

// RoundTrip is the smoothed round trip of the TCP connection that c is or wraps, with the queues in
// front of the path (RFC 6298), and the shortest of the last five minutes; zero if that is unknown.
func RoundTrip(c net.Conn) (smoothed, shortest time.Duration) {
	tcp := infoOf(c)
	if tcp == nil {
		return 0, 0
	}
	return microseconds(tcp.Rtt), microseconds(tcp.Min_rtt)
}

// AckTime is how long an acknowledgement of data that is sent on the TCP connection that c is or
// wraps may take from then on; zero if that is unknown.
func AckTime(c net.Conn) time.Duration {
	tcp := infoOf(c)
	if tcp == nil {
		return 0
	}
	return ackTime(tcp)
}

// ackTime is how long an acknowledgement may take after a segment was lost: until it is sent again
// (RFC 6298), and once there and back. TCP knows of a queue that has come to be in front of the path
// with its first acknowledgement; while none comes, the time does not change.
func ackTime(tcp *unix.TCPInfo) time.Duration {
	return microseconds(tcp.Rto>>tcp.Backoff) + microseconds(tcp.Rtt)
}

// unanswered says whether the peer's system has acknowledged something at least d after the last
// data was received from it, no segment was larger than smallSegment, and less than maxUnanswered
// was sent. False if that is unknown.
func unanswered(c net.Conn, d time.Duration) bool {
	tcp := infoOf(c)
	return tcp != nil && tcp.Rcv_mss <= smallSegment && tcp.Bytes_acked < maxUnanswered &&
		milliseconds(tcp.Last_data_recv) >= d+milliseconds(tcp.Last_ack_recv)
}

// infoOf is what the system knows of the TCP connection that c is or wraps (tcp(7), TCP_INFO); nil
// if nothing.
func infoOf(c net.Conn) (info *unix.TCPInfo) {
	onTCP(c, func(fd int) {
		if tcp, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			info = tcp
		}
	})
	return info
}

func milliseconds(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }
func microseconds(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }

// onTCP calls f with the file descriptor of the TCP connection that c is or wraps, if there is
// one that is not closed.
func onTCP(c net.Conn, f func(fd int)) {
	tcp := tcpBelow(c)
	if tcp == nil {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) }) // an error means that f was not called
	}
}

// tcpBelow finds the TCP connection that c is or wraps; nil if there is none.
func tcpBelow(c net.Conn) *net.TCPConn {
	for range 8 { // connections are wrapped less often than that
		switch x := c.(type) {
		case *net.TCPConn:
			return x
		case interface{ NetConn() net.Conn }:
			c = x.NetConn()
		default:
			return nil
		}
	}
	return nil
}
