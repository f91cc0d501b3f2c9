// Socket options: short queues, early timeouts, and congestion control that tolerates loss.

package carrier

import (
	"fmt"
	"net"
	"time"

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
	onTCP(c, func(tcp *net.TCPConn, fd int) {
		// If one of these fails the connection is slower, or broken, which its user notices.
		_ = tcp.SetNoDelay(true)
		_ = tcp.SetKeepAlive(false) // transports have their own
		tuneSocket(fd)
		if name == congestionSystem {
			return
		}
		if err := setCongestion(fd, name); err != nil {
			o.Logger().Debug("congestion control stays the system's", "wanted", name, "err", err)
		}
	})
}

// checkCongestion fails if this process may not use the congestion control of that name.
func checkCongestion(name string) error {
	if name == "" || name == congestionAuto || name == congestionSystem {
		return nil
	}
	if err := tryCongestion(name); err != nil {
		return fmt.Errorf("congestion control %q: %w", name, err)
	}
	return nil
}

// LimitUnsent bounds the unsent bytes that the TCP connection that c is or wraps holds, if
// there is one and the system supports it.
func LimitUnsent(c net.Conn, bytes int) {
	onTCP(c, func(_ *net.TCPConn, fd int) { setUnsent(fd, bytes) })
}

// QuickAck makes the system acknowledge at once what the TCP connection that c is or wraps
// has received, if there is one and the system supports it.
func QuickAck(c net.Conn) { onTCP(c, func(_ *net.TCPConn, fd int) { quickAck(fd) }) }

// Acknowledges says whether the peer of the TCP connection that c is or wraps has
// acknowledged something within d: then the path works, even if it is slow. False if that
// is unknown.
func Acknowledges(c net.Conn, d time.Duration) bool {
	info, ok := acknowledged(c)
	return ok && info.ago < d
}

// Delivered says whether the peer's system has acknowledged everything that was written to
// the TCP connection that c is or wraps. False if that is unknown.
func Delivered(c net.Conn) bool {
	info, ok := acknowledged(c)
	return ok && !info.outstanding && !info.unsent
}

// Stuck says whether sent data is unacknowledged and no acknowledgement was received for d:
// then the path does not work. False if that is unknown.
func Stuck(c net.Conn, d time.Duration) bool {
	info, ok := acknowledged(c)
	return ok && info.outstanding && info.ago >= d
}

// An acknowledgement is what the system knows of the peer's.
type acknowledgement struct {
	outstanding bool          // sent data is unacknowledged
	unsent      bool          // data waits to be sent
	ago         time.Duration // since the last one was received
}

func acknowledged(c net.Conn) (info acknowledgement, ok bool) {
	onTCP(c, func(_ *net.TCPConn, fd int) { info, ok = acknowledgementOf(fd) })
	return info, ok
}

// onTCP calls f with the TCP connection that c is or wraps and its file descriptor, if there
// is one that is not closed.
func onTCP(c net.Conn, f func(tcp *net.TCPConn, fd int)) {
	tcp := TCPBelow(c)
	if tcp == nil {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(tcp, int(fd)) }) // an error means that f was not called
	}
}

// TCPBelow finds the TCP connection that c is or wraps; nil if there is none.
func TCPBelow(c net.Conn) *net.TCPConn {
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
