// Holding back a target that speaks first. The egress selector takes a byte that
// comes with the 200 for an error, so the answer has to arrive by itself.

package connect

import (
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A held is a target of which nothing is read until the client has spoken, which
// shows that it has read its answer, or until it has had the time to.
type held struct {
	net.Conn
	once  sync.Once
	ready chan struct{}
}

// holdBack holds target back for at most d. The caller calls stop when it is done
// with the connection.
func holdBack(target net.Conn, d time.Duration) (h *held, stop func()) {
	h = &held{Conn: target, ready: make(chan struct{})}
	if d <= 0 {
		h.release()
		return h, func() {}
	}
	timer := time.AfterFunc(d, h.release)
	return h, func() { timer.Stop() }
}

func (h *held) release() { h.once.Do(func() { close(h.ready) }) }

func (h *held) Read(p []byte) (int, error) {
	<-h.ready
	return h.Conn.Read(p)
}

// InnerReader implements tunnel.Wrapper.
func (h *held) InnerReader() tunnel.Inner {
	<-h.ready
	return tunnel.Inner{Conn: h.Conn}
}

// InnerWriter implements tunnel.Wrapper.
func (h *held) InnerWriter() tunnel.Inner {
	return tunnel.Inner{Conn: h.Conn, Moved: func(int) { h.release() }}
}

func (h *held) Write(p []byte) (int, error) {
	h.release()
	return h.Conn.Write(p)
}

// CloseWrite passes the half-close on.
func (h *held) CloseWrite() error {
	h.release()
	return tunnel.CloseWrite(h.Conn)
}

// Close ends the connection, and a Read that waits.
func (h *held) Close() error {
	h.release()
	return h.Conn.Close()
}

// Abort gives the connection up.
func (h *held) Abort() error {
	h.release()
	return tunnel.Abort(h.Conn)
}
