// Dials: from an address to a stream.

package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// DialContext connects to addr through the node that has it. It has the shape
// of net.Dialer's method. Errors are *tunnel.DialError. The connection is a
// tunnel.Stream; the caller owns it.
//
// It waits up to Config.ParkedPatience for a node that is reconnecting, and up to
// Config.RestartPatience for one whose agent announced that it leaves.
func (h *Hub) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return h.counted(ctx, addr, func() (*conn, way, error) {
		return h.dial(ctx, tunnel.Dial{Network: network, Addr: addr}, h.connect)
	})
}

// DialSpare is DialContext for clients who are strangers: it fails with Busy if a session, with
// the node or with another server, has an eighth of its streams left, or less. The server's own
// dials, and those of its users, find a place then.
func (h *Hub) DialSpare(ctx context.Context, network, addr string) (net.Conn, error) {
	return h.counted(ctx, addr, func() (*conn, way, error) {
		return h.dial(ctx, tunnel.Dial{Network: network, Addr: addr, Spare: true}, h.connect)
	})
}

// DialEarly is DialContext without waiting for the answer. What the caller writes first is
// sent with the dial, which saves a round trip, and is discarded if the dial fails. Read,
// Write and CloseWrite then return the dial's error.
func (h *Hub) DialEarly(ctx context.Context, network, addr string) (net.Conn, error) {
	return h.counted(ctx, addr, func() (*conn, way, error) {
		return h.dial(ctx, tunnel.Dial{Network: network, Addr: addr}, h.start)
	})
}

// A Dialed is a dial that has succeeded or failed.
type Dialed struct {
	Addr      string // as in the dial
	Node      string // empty if no node has the address
	Transport string
	Code      string // ok, or the name of the tunnel.Code
	Began     time.Time
	Took      time.Duration
}

// An attempt is a dial into one session. It counts success, once known; the function that
// returns an error to the caller counts that.
type attempt func(ctx context.Context, m *member, d tunnel.Dial) (*conn, error)

// counted dials and counts what fails.
func (h *Hub) counted(ctx context.Context, addr string, dial func() (*conn, way, error)) (net.Conn, error) {
	began := time.Now()
	c, w, err := dial()
	if err != nil {
		h.dialed(ctx, w, addr, began, err)
	}
	if h.config.Ended != nil {
		if s := h.audit(ctx, addr, w, began, c, err); err == nil {
			return s, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// A way is the route of a dial: a session, or a path without a tunnel.
type way struct {
	transport string
	node      string  // empty if the address leads to none
	member    *member // nil if it was no session
}

func (m *member) way() way { return way{m.transport, m.node, m} }

// dial finds the session for the address and tries it. It returns the route that was tried also
// with an error.
func (h *Hub) dial(ctx context.Context, d tunnel.Dial, try attempt) (*conn, way, error) {
	node, target, err := h.routes.resolve(d.Network, d.Addr)
	switch {
	case tunnel.CodeOf(err) == tunnel.NoNode:
		return h.dialThrough(ctx, d, err)
	case err != nil:
		return nil, way{transport: "none"}, err
	}
	d.Network, d.Addr, d.Name = "tcp", target, d.Addr
	return h.dialWaiting(ctx, node, d, func() (*conn, way, error) { return h.dialNow(ctx, node, d, try) })
}

// dialNow tries the sessions that there are now.
func (h *Hub) dialNow(ctx context.Context, node string, d tunnel.Dial, try attempt) (*conn, way, error) {
	if h.stopping.Load() {
		return nil, way{transport: "none", node: node}, &tunnel.DialError{Addr: d.Name, Code: tunnel.Draining, Text: textLeaving}
	}
	m := h.registry.find(node)
	first := m == nil || m.leaving() || !m.parked().IsZero() // another server may be quicker
	if first {
		c, other, eerr := h.dialElsewhere(ctx, node, d)
		code := tunnel.CodeOf(eerr)
		if other.transport != "" && (!mayRetry(eerr) || m == nil && (code == tunnel.Parked || code == tunnel.Busy)) {
			return c, other, eerr
		}
		c, w, err := h.dialSessions(ctx, node, d, try, h.dialBeyond)
		if code == tunnel.Draining && tunnel.CodeOf(err) == tunnel.NoNode {
			return nil, other, eerr
		}
		return c, w, err
	}
	c, w, err := h.dialSessions(ctx, node, d, try, h.dialBeyond)
	if ctx.Err() != nil || !mayRetry(err) {
		return c, w, err
	}
	if c, other, eerr := h.dialElsewhere(ctx, node, d); other.transport != "" && !mayRetry(eerr) {
		return c, other, eerr
	}
	return nil, w, err
}

// mayRetry reports whether another session of the node may do what failed with err: one with a
// connection, or with streams left.
func mayRetry(err error) bool {
	code := tunnel.CodeOf(err)
	return code.Away() || code == tunnel.Busy
}

// dialSessions tries this server's sessions of node. If a session is lost during the dial it tries
// the next one, once. If there is none it calls otherwise.
func (h *Hub) dialSessions(ctx context.Context, node string, d tunnel.Dial, try attempt,
	otherwise func(context.Context, string, tunnel.Dial) (*conn, way, error),
) (*conn, way, error) {
	var (
		tried *member
		err   error
	)
	for {
		m := h.registry.find(node)
		switch {
		case m == nil && err != nil && !h.expected(node):
			return nil, tried.way(), err // lost during the dial, and there is no newer session
		case m == nil:
			return otherwise(ctx, node, d)
		case m.leaving():
			return nil, m.way(), &tunnel.DialError{Addr: d.Name, Code: tunnel.Draining, Text: "node " + node + " is leaving"}
		case m == tried:
			return nil, m.way(), err
		}
		var c *conn
		if c, err = try(ctx, m, d); err == nil {
			return c, m.way(), nil
		}
		// A session that was replaced during the dial carried none of the caller's bytes,
		// so the new one may be tried, once.
		if tried != nil || ctx.Err() != nil || !errors.Is(err, tunnel.Lost) {
			return nil, m.way(), err
		}
		tried = m
	}
}

// connect dials and waits for the answer.
func (h *Hub) connect(ctx context.Context, m *member, d tunnel.Dial) (*conn, error) {
	began := time.Now()
	patient, cancel := h.withParkedTimeout(ctx, m)
	defer cancel()
	s, err := d.Connect(patient, m.session)
	if err != nil {
		return nil, m.explain(d.Name, err)
	}
	h.dialed(ctx, m.way(), d.Name, began, nil)
	return m.track(openerServer, s, tunnel.Addr(d.Name)), nil
}

// start dials without waiting for the answer, unless the session is parked.
func (h *Hub) start(ctx context.Context, m *member, d tunnel.Dial) (*conn, error) {
	if !m.parked().IsZero() {
		return h.connect(ctx, m, d)
	}
	began := time.Now()
	opened := false // if so the outcome is reported by the stream, not to the caller
	s, err := d.Start(ctx, m.session, func(err error) {
		if opened {
			h.dialed(ctx, m.way(), d.Name, began, err)
		}
	})
	if err != nil {
		return nil, m.explain(d.Name, err)
	}
	opened = true
	c := m.track(openerServer, s, tunnel.Addr(d.Name))
	c.Failed = func(err error) error {
		if _, ok := errors.AsType[*tunnel.DialError](err); ok {
			return m.explain(d.Name, err)
		}
		return m.reason(err)
	}
	return c, nil
}

// parkedCheck is how often a dial checks whether its session has been parked, if ParkedPatience is
// shorter.
const parkedCheck = time.Second

// withParkedTimeout ends a dial into a session once that has been parked for ParkedPatience of the
// dial's time.
func (h *Hub) withParkedTimeout(ctx context.Context, m *member) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	patience := h.config.ParkedPatience
	first := patience
	if m.parked().IsZero() {
		first = max(patience, parkedCheck)
	}
	var t *time.Timer
	t = time.AfterFunc(math.MaxInt64, func() { // set below, so that it finds t
		since := m.parked()
		switch left := patience - time.Since(since); {
		case ctx.Err() != nil:
		case since.IsZero():
			t.Reset(max(patience, parkedCheck))
		case left > 0:
			t.Reset(left)
		default:
			cancel(&reconnecting{m.node, since})
		}
	})
	t.Reset(first)
	return ctx, func() {
		t.Stop()
		cancel(nil)
	}
}

// parked is since when the node is reconnecting; zero if it is not.
func (m *member) parked() time.Time { return m.session.Link().Parked }

// explain returns err. If a timeout was caused by a node that is reconnecting, it returns an
// error with that reason.
func (m *member) explain(addr string, err error) error {
	var (
		since = m.parked()
		away  *reconnecting
	)
	switch {
	case errors.As(err, &away):
	case tunnel.CodeOf(err) == tunnel.Timeout && !since.IsZero():
		away = &reconnecting{m.node, since}
	default:
		return err
	}
	return &tunnel.DialError{Addr: addr, Code: tunnel.Parked, Text: away.Error()}
}

// reconnecting is the error for a node that lost its connection and may reconnect.
type reconnecting struct {
	node  string
	since time.Time
}

func (e *reconnecting) Error() string {
	return fmt.Sprintf("node %s has been reconnecting for %v", e.node, time.Since(e.since).Round(time.Second))
}

func (e *reconnecting) Unwrap() error { return tunnel.Parked }

// dialBeyond dials into a node that has no session.
func (h *Hub) dialBeyond(ctx context.Context, node string, d tunnel.Dial) (*conn, way, error) {
	if h.config.Beyond != nil {
		if dial, ok := h.config.Beyond(node); ok {
			w, began := way{transport: h.config.BeyondName, node: node}, time.Now()
			c, err := dial(ctx, d)
			if err != nil {
				return nil, w, renamed(d, err)
			}
			h.dialed(ctx, w, d.Name, began, nil)
			return h.ledger.around.track(openerServer, c, tunnel.Addr(d.Name)), w, nil
		}
	}
	return h.noSession(ctx, node, d)
}

// noSession is the outcome of a dial into a node that has no session here.
func (h *Hub) noSession(_ context.Context, node string, d tunnel.Dial) (*conn, way, error) {
	err := &tunnel.DialError{Addr: d.Name, Code: tunnel.NoNode, Text: "node " + node + " is not connected"}
	if h.expected(node) {
		err = HasLeft(node, d)
	}
	return nil, way{transport: "none", node: node}, err
}

// renamed is err of dialing d.Addr as a dial's to d.Name.
func renamed(d tunnel.Dial, err error) *tunnel.DialError {
	return &tunnel.DialError{Addr: d.Name, Code: tunnel.CodeOf(err), Text: tunnel.Reason(d.Addr, err)}
}
