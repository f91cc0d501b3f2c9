// Socket options: a connection that holds back little, ends in time, and keeps
// its speed where packets get lost.

package carrier

import (
	"fmt"
	"net"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// unsent is how many bytes a socket may hold that TCP has not sent yet: what
	// lies there cannot be unsent, and whatever comes later waits behind it. It
	// is what a batch holds; less makes for more wake-ups, and no delay is saved
	// once it is below what a path carries within a millisecond or two. A link
	// lowers it where a path carries less.
	unsent = 128 << 10
	// unacknowledged is how long what was sent may go without an answer before
	// the kernel gives the connection up, which by itself it does after a
	// quarter of an hour.
	unacknowledged = 20 * time.Second

	// The names that LinkOptions.Congestion knows besides the kernel's own.
	congestionAuto   = "auto"
	congestionSystem = "system"
	// lossless is what auto prefers: it does not take loss for a full queue.
	lossless = "bbr"
)

// tune sets the options of the TCP connection that c is or wraps. It does what
// the kernel lets it: all of them are about speed, and a connection works without.
func tune(c net.Conn, o tunnel.Options) {
	name := o.Link.Congestion
	if name == "" || name == congestionAuto {
		name = lossless
	}
	control(c, func(tcp *net.TCPConn, fd int) {
		// Whatever fails, the connection is slower or broken, and if it is broken its user
		// finds out.
		_ = tcp.SetNoDelay(true)
		_ = tcp.SetKeepAlive(false) // who is dead is found out above
		tuneSocket(fd)
		if name == congestionSystem {
			return
		}
		if err := setCongestion(fd, name); err != nil {
			o.Logger().Debug("congestion control stays the system's", "wanted", name, "err", err)
		}
	})
}

// checkCongestion says whether this process may use a congestion control that
// was asked for by name.
func checkCongestion(name string) error {
	if name == "" || name == congestionAuto || name == congestionSystem {
		return nil
	}
	if err := tryCongestion(name); err != nil {
		return fmt.Errorf("congestion control %q: %w", name, err)
	}
	return nil
}

// LimitUnsent bounds in bytes what the TCP connection that c is or wraps holds unsent, if
// there is one and the system can.
func LimitUnsent(c net.Conn, bytes int) {
	control(c, func(_ *net.TCPConn, fd int) { setUnsent(fd, bytes) })
}

// QuickAck has the system acknowledge at once what has come on the TCP connection that c is
// or wraps, if there is one and the system can.
func QuickAck(c net.Conn) { control(c, func(_ *net.TCPConn, fd int) { quickAck(fd) }) }

// Acknowledges says whether the far end of the TCP connection that c is or wraps has
// acknowledged something within d: then the path is there, however slow. False where
// that cannot be known.
func Acknowledges(c net.Conn, d time.Duration) bool {
	_, ago, ok := acknowledged(c)
	return ok && ago < d
}

// Stuck says whether something that was sent on it has not been acknowledged, and
// nothing else has for d: then the path is not there. False where that cannot be known.
func Stuck(c net.Conn, d time.Duration) bool {
	outstanding, ago, ok := acknowledged(c)
	return ok && outstanding && ago >= d
}

func acknowledged(c net.Conn) (outstanding bool, ago time.Duration, ok bool) {
	control(c, func(_ *net.TCPConn, fd int) { outstanding, ago, ok = acknowledgement(fd) })
	return outstanding, ago, ok
}

// control calls f with the TCP connection that c is or wraps and its socket, if there is
// one that is not closed.
func control(c net.Conn, f func(tcp *net.TCPConn, fd int)) {
	tcp := TCPBelow(c)
	if tcp == nil {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(tcp, int(fd)) }) // or f is not called
	}
}

// TCPBelow finds the TCP connection that c is or wraps; nil if there is none.
func TCPBelow(c net.Conn) *net.TCPConn {
	for range 8 { // no stack of ours is deeper
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
