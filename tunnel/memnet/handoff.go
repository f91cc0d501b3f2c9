// Handoff: a net.Listener without a port.

package memnet

import (
	"context"
	"net"

	"github.com/hawser-project/hawser/tunnel"
)

// A Handoff is a net.Listener whose connections are handed to it in process. It
// joins a tunnel to a server that knows only listeners, without a port and
// without a copy.
type Handoff struct {
	addr  net.Addr
	conns chan net.Conn
	open  context.Context // until Close
	close func()
}

// NewHandoff makes a Handoff that calls itself addr and in which up to backlog
// connections wait to be accepted.
func NewHandoff(addr net.Addr, backlog int) *Handoff {
	open, end := context.WithCancel(context.Background())
	return &Handoff{addr: addr, conns: make(chan net.Conn, max(backlog, 0)), open: open, close: end}
}

// Inject hands c over: it waits for room and then, if it returns nil, never
// touches c again. On error c is still the caller's.
func (h *Handoff) Inject(ctx context.Context, c net.Conn) error {
	if h.open.Err() != nil { // a closed Handoff takes nothing, even while it has room
		return net.ErrClosed
	}
	select {
	case h.conns <- c:
	case <-h.open.Done():
		return net.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if h.open.Err() != nil { // closed meanwhile: nobody will accept what lies in the queue
		h.drop()
	}
	return nil
}

// Accept waits for the next connection.
func (h *Handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.open.Done():
		return nil, &net.OpError{Op: "accept", Net: h.addr.Network(), Addr: h.addr, Err: net.ErrClosed}
	}
}

// Close ends Accept and Inject and closes what nobody has accepted.
func (h *Handoff) Close() error {
	h.close()
	h.drop()
	return nil
}

// Addr is what NewHandoff was told.
func (h *Handoff) Addr() net.Addr { return h.addr }

func (h *Handoff) drop() {
	for {
		select {
		case c := <-h.conns:
			_ = tunnel.Abort(c) // its end is what matters
		default:
			return
		}
	}
}
