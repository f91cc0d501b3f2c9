// A gate: connections that can be made to stand still, and cut.

package fleet

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// errDown is what dials through a gate get while whoever dials is down.
var errDown = errors.New("the simulated machine is down")

// A dialFunc makes a connection.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// A gate stands in the way of a node's connections. While it is shut nothing
// passes in either direction, no connection ends and none is made, as when packets
// are dropped on the way; once it is open again all goes on where it stood. While
// it is down no connection can be made at all. The zero gate is open.
type gate struct {
	mu    sync.Mutex           // guards the following
	shut  chan struct{}        // closed when the gate opens; nil while it is open
	down  bool                 // dials fail
	conns map[aborter]struct{} // that have not been closed
	left  []net.Conn           // closed at this end while the gate was shut
}

// An aborter is what passes a gate: a connection, or a socket for packets.
type aborter interface {
	Abort() error
}

// stop shuts the gate. Shutting it twice is as good as once.
func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

// resume opens the gate. The far ends of connections that were closed meanwhile
// learn of it now, as they would from the first packet that gets through.
func (g *gate) resume() {
	g.mu.Lock()
	left := g.left
	g.left = nil
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
	g.mu.Unlock()
	for _, c := range left {
		_ = tunnel.Abort(c) // nobody uses it any more
	}
}

// set shuts the gate or opens it.
func (g *gate) set(shut bool) {
	if shut {
		g.stop()
	} else {
		g.resume()
	}
}

// setDown says whether dials fail.
func (g *gate) setDown(down bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = down
}

// cut breaks all connections at once, as a reset would, and says how many there
// were.
func (g *gate) cut() int {
	g.mu.Lock()
	all := slices.Collect(maps.Keys(g.conns))
	g.mu.Unlock()
	for _, c := range all {
		_ = c.Abort() // that is the point
	}
	return len(all)
}

// through makes dial's connections pass the gate.
func (g *gate) through(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := g.pass(ctx); err != nil {
			return nil, err
		}
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		gc := &gated{Conn: c, gate: g, closed: make(chan struct{}), turned: make(chan struct{})}
		if !g.add(gc) {
			_ = tunnel.Abort(c) // it came too late
			return nil, &net.OpError{Op: "dial", Net: network, Err: errDown}
		}
		return gc, nil
	}
}

// add has what passes the gate be known; false while the gate is down.
func (g *gate) add(a aborter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down {
		return false
	}
	if g.conns == nil {
		g.conns = make(map[aborter]struct{})
	}
	g.conns[a] = struct{}{}
	return true
}

// remove has a be forgotten.
func (g *gate) remove(a aborter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, a)
}

// isShut says whether nothing passes now.
func (g *gate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut != nil
}

// pass waits until the gate is open.
func (g *gate) pass(ctx context.Context) error {
	for {
		g.mu.Lock()
		shut, down := g.shut, g.down
		g.mu.Unlock()
		switch {
		case down:
			return &net.OpError{Op: "dial", Net: "tcp", Err: errDown}
		case shut == nil:
			return nil
		}
		select {
		case <-shut:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// gated is a connection that passes a gate.
type gated struct {
	net.Conn
	gate   *gate
	closed chan struct{} // closed by the first Close
	once   sync.Once

	reading sync.Mutex // held by Read; guards the following
	held    []byte     // read, and not passed on yet
	failed  error      // what came after it

	mu          sync.Mutex    // guards the following
	read, write time.Time     // deadlines
	turned      chan struct{} // closed, and replaced, when a deadline is set
}

// wait returns once the gate is open, the connection closed or the deadline past.
func (c *gated) wait(deadline *time.Time) error {
	for {
		c.gate.mu.Lock()
		shut := c.gate.shut
		c.gate.mu.Unlock()
		if shut == nil {
			return nil
		}
		c.mu.Lock()
		at, turned := *deadline, c.turned
		c.mu.Unlock()
		if err := c.waitOnce(shut, at, turned); err != nil {
			return err
		}
	}
}

func (c *gated) waitOnce(shut chan struct{}, at time.Time, turned chan struct{}) error {
	var late <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-shut:
	case <-turned:
	case <-late:
		return os.ErrDeadlineExceeded
	case <-c.closed:
		return net.ErrClosed
	}
	return nil
}

// Read reads; what has come while the gate is shut is held back until it opens.
func (c *gated) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(c.held) == 0 && c.failed == nil {
		n, err := c.Conn.Read(b)
		late := c.wait(&c.read)
		if late == nil {
			return n, err
		}
		// For whoever reads when the deadline is another one.
		c.held, c.failed = append(c.held[:0], b[:n]...), err
		return 0, late
	}
	if err := c.wait(&c.read); err != nil {
		return 0, err
	}
	n := copy(b, c.held)
	c.held = c.held[n:]
	if len(c.held) > 0 {
		return n, nil
	}
	err := c.failed
	c.failed = nil
	return n, err
}

// Write writes once the gate is open.
func (c *gated) Write(b []byte) (int, error) {
	if err := c.wait(&c.write); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close closes the connection. The far end hears nothing of it through a shut gate.
func (c *gated) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.gate.mu.Lock()
	_, open := c.gate.conns[c]
	delete(c.gate.conns, c)
	kept := open && c.gate.shut != nil
	if kept {
		c.gate.left = append(c.gate.left, c.Conn)
	}
	c.gate.mu.Unlock()
	if kept {
		return c.Conn.SetDeadline(time.Unix(1, 0)) // who waits in it wakes up
	}
	return c.Conn.Close()
}

// Abort resets the connection, through a shut gate, too.
func (c *gated) Abort() error {
	c.once.Do(func() { close(c.closed) })
	c.gate.remove(c)
	return tunnel.Abort(c.Conn)
}

// CloseWrite ends the direction that is written, where there are two.
func (c *gated) CloseWrite() error { return tunnel.CloseWrite(c.Conn) }

// NetConn is what the transports tune.
func (c *gated) NetConn() net.Conn { return c.Conn }

// InnerReader and InnerWriter implement tunnel.Wrapper: nothing may go past the gate.
func (c *gated) InnerReader() tunnel.Inner { return tunnel.Inner{} }

// InnerWriter is InnerReader for writing.
func (c *gated) InnerWriter() tunnel.Inner { return tunnel.Inner{} }

// SetDeadline sets both deadlines.
func (c *gated) SetDeadline(t time.Time) error {
	c.note(t, true, true)
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline bounds pending and later Reads.
func (c *gated) SetReadDeadline(t time.Time) error {
	c.note(t, true, false)
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline bounds pending and later Writes.
func (c *gated) SetWriteDeadline(t time.Time) error {
	c.note(t, false, true)
	return c.Conn.SetWriteDeadline(t)
}

func (c *gated) note(t time.Time, read, write bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if read {
		c.read = t
	}
	if write {
		c.write = t
	}
	close(c.turned)
	c.turned = make(chan struct{})
}
