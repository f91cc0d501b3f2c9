// Dials: from an address to a stream.

package server

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// DialContext connects to addr through the node that has it. It has the shape
// of net.Dialer's method. Errors are *tunnel.DialError. The connection is a
// tunnel.Stream; the caller owns it.
func (h *Hub) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	start := time.Now()
	c, err := h.dial(ctx, network, addr)
	h.metrics.dialed(err, time.Since(start))
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (h *Hub) dial(ctx context.Context, network, addr string) (*conn, error) {
	node, target, err := h.routes.resolve(network, addr)
	if err != nil {
		return nil, err
	}
	if h.draining.Load() {
		return nil, &tunnel.DialError{Addr: addr, Code: tunnel.Draining, Text: "server is shutting down"}
	}
	var tried *member
	for {
		m := h.registry.find(node)
		switch {
		case m == nil && err != nil:
			return nil, err // lost under the dial, and nothing has come since
		case m == nil:
			return h.beyond(ctx, node, addr, target)
		case m == tried:
			return nil, err
		case m.leaving():
			return nil, &tunnel.DialError{Addr: addr, Code: tunnel.Draining, Text: "node " + node + " is leaving"}
		}
		var c *conn
		if c, err = h.connect(ctx, m, addr, target); err == nil {
			return c, nil
		}
		// A session that was replaced under the dial carried no byte of the
		// caller's: the new one may be tried, once.
		if tried != nil || ctx.Err() != nil || !errors.Is(err, tunnel.Lost) {
			return nil, err
		}
		tried = m
	}
}

func (h *Hub) connect(ctx context.Context, m *member, addr, target string) (*conn, error) {
	s, err := tunnel.Connect(ctx, m.session, "tcp", target)
	if err == nil {
		return h.track(m, openerServer, s, tunnel.Addr(addr)), nil
	}
	var de *tunnel.DialError
	if errors.As(err, &de) {
		de.Addr = addr // as the caller knows it
	}
	return nil, err
}

// beyond dials into a node that has no session.
func (h *Hub) beyond(ctx context.Context, node, addr, target string) (*conn, error) {
	if h.config.Beyond != nil {
		if dial, ok := h.config.Beyond(node); ok {
			c, err := dial(ctx, "tcp", target)
			if err != nil {
				return nil, &tunnel.DialError{Addr: addr, Code: tunnel.CodeOf(err), Text: err.Error()}
			}
			return h.track(nil, openerServer, asStream(c), tunnel.Addr(addr)), nil
		}
	}
	return nil, &tunnel.DialError{Addr: addr, Code: tunnel.NoNode, Text: "node " + node + " is not connected"}
}

// asStream makes a stream of c, which closes both directions where it cannot
// close one.
func asStream(c net.Conn) tunnel.Stream {
	if s, ok := c.(tunnel.Stream); ok {
		return s
	}
	return whole{c}
}

// A whole connection is a stream without half-close.
type whole struct{ net.Conn }

func (w whole) CloseWrite() error { return w.Close() }

// Abort gives the connection up.
func (w whole) Abort() error { return tunnel.Abort(w.Conn) }
