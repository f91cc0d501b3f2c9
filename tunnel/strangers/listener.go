// Steady: a listener that goes on after what accept(2) says of one connection.

package strangers

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// lowestPause and highestPause bound the pause after an Accept that failed.
	lowestPause  = 5 * time.Millisecond
	highestPause = time.Second
)

// Steady makes a listener of l, which it owns. Its Accept pauses and tries again if there is no
// file descriptor or memory for a connection, a firewall forbids one, or a client has left
// already: for 5 ms, and up to a second after more failures. One of them a minute is logged.
// Other errors are those of l.
func Steady(l net.Listener, log *slog.Logger) net.Listener {
	return &steady{Listener: l, log: log, closed: make(chan struct{})}
}

type steady struct {
	net.Listener
	log    *slog.Logger
	sparse LogLimiter
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (l *steady) Accept() (net.Conn, error) {
	for pause := lowestPause; ; pause = min(2*pause, highestPause) {
		c, err := l.Listener.Accept()
		if !passes(err) {
			return c, err
		}
		if others, now := l.sparse.Allow(l.Addr()); now {
			l.log.Warn("cannot accept a connection", "addr", l.Addr().String(), "err", err, "retry", pause, "others", others)
		}
		select {
		case <-time.After(pause):
		case <-l.closed: // which Accept says
		}
	}
}

// passes reports whether err is the system's, and not that the socket is unusable.
func passes(err error) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	return ok && errno != syscall.EBADF && errno != syscall.EINVAL && errno != syscall.ENOTSOCK
}

// Close implements net.Listener.
func (l *steady) Close() error {
	defer l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}
