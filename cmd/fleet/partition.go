// A partition: connections that can be blocked, and cut.

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

// errDown is the error of dials while the simulated machine is down.
var errDown = errors.New("the simulated machine is down")

// A dialFunc makes a connection.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// A partition affects the connections of a node. While it is blocked nothing
// passes in either direction, no connection ends and none is made, as when packets
// are dropped on the way; once healed, all goes on where it stood. While
// it is down no connection can be made at all. The zero partition blocks nothing.
type partition struct {
	mu      sync.Mutex            // guards the following
	blocked chan struct{}         // closed when the partition heals; nil while there is none
	down    bool                  // dials fail
	conns   map[resetter]struct{} // that have not been closed
	left    []net.Conn            // closed at this end during the partition
}

// A resetter is what a partition blocks: a connection, or a socket for packets.
type resetter interface {
	// reset ends it at both ends, also during a partition.
	reset() error
}

// stop blocks the connections. A second call does nothing.
func (g *partition) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.blocked == nil {
		g.blocked = make(chan struct{})
	}
}

// resume heals the partition. The far ends of connections that were closed meanwhile
// learn of it now, as they would from the first packet that gets through.
func (g *partition) resume() {
	g.mu.Lock()
	left := g.left
	g.left = nil
	if g.blocked != nil {
		close(g.blocked)
		g.blocked = nil
	}
	g.mu.Unlock()
	for _, c := range left {
		_ = tunnel.Abort(c) // nobody uses it any more
	}
}

// set starts the partition or heals it.
func (g *partition) set(blocked bool) {
	if blocked {
		g.stop()
	} else {
		g.resume()
	}
}

// setDown says whether dials fail.
func (g *partition) setDown(down bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = down
}

// cut breaks all connections at once, as a reset would, and says how many there
// were.
func (g *partition) cut() int {
	g.mu.Lock()
	all := slices.Collect(maps.Keys(g.conns))
	g.mu.Unlock()
	for _, c := range all {
		_ = c.reset() // that is the point
	}
	return len(all)
}

// wrapDial makes dial's connections subject to the partition.
func (g *partition) wrapDial(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := g.pass(ctx); err != nil {
			return nil, err
		}
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		gc := &partitionedConn{Conn: c, partition: g, closed: make(chan struct{}), turned: make(chan struct{})}
		if !g.add(gc) {
			_ = tunnel.Abort(c) // it came too late
			return nil, &net.OpError{Op: "dial", Net: network, Err: errDown}
		}
		return gc, nil
	}
}

// add registers a connection; false while the machine is down.
func (g *partition) add(r resetter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down {
		return false
	}
	if g.conns == nil {
		g.conns = make(map[resetter]struct{})
	}
	g.conns[r] = struct{}{}
	return true
}

// remove unregisters a connection.
func (g *partition) remove(r resetter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, r)
}

// isBlocked says whether connections are blocked.
func (g *partition) isBlocked() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.blocked != nil
}

// pass waits until the partition has healed.
func (g *partition) pass(ctx context.Context) error {
	for {
		g.mu.Lock()
		blocked, down := g.blocked, g.down
		g.mu.Unlock()
		switch {
		case down:
			return &net.OpError{Op: "dial", Net: "tcp", Err: errDown}
		case blocked == nil:
			return nil
		}
		select {
		case <-blocked:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A partitionedConn is a connection that a partition blocks.
type partitionedConn struct {
	net.Conn
	partition *partition
	closed    chan struct{} // closed by the first Close
	once      sync.Once

	reading sync.Mutex // held by Read; guards the following
	held    []byte     // read, and not passed on yet
	failed  error      // what came after it

	mu          sync.Mutex    // guards the following
	read, write time.Time     // deadlines
	turned      chan struct{} // closed, and replaced, when a deadline is set
}

// wait returns once the partition has healed, the connection is closed or the deadline past.
func (c *partitionedConn) wait(deadline *time.Time) error {
	for {
		c.partition.mu.Lock()
		blocked := c.partition.blocked
		c.partition.mu.Unlock()
		if blocked == nil {
			return nil
		}
		c.mu.Lock()
		at, turned := *deadline, c.turned
		c.mu.Unlock()
		if err := c.waitOnce(blocked, at, turned); err != nil {
			return err
		}
	}
}

func (c *partitionedConn) waitOnce(blocked chan struct{}, at time.Time, turned chan struct{}) error {
	var late <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(time.Until(at))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-blocked:
	case <-turned:
	case <-late:
		return os.ErrDeadlineExceeded
	case <-c.closed:
		return net.ErrClosed
	}
	return nil
}

// Read reads; data that arrives during a partition is held back until it heals.
func (c *partitionedConn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(c.held) == 0 && c.failed == nil {
		n, err := c.Conn.Read(b)
		late := c.wait(&c.read)
		if late == nil {
			return n, err
		}
		// For a Read with a later deadline.
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

// Write writes once the partition has healed.
func (c *partitionedConn) Write(b []byte) (int, error) {
	if err := c.wait(&c.write); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close closes the connection. During a partition the far end does not learn of it.
func (c *partitionedConn) Close() error { return c.end(net.Conn.Close) }

// Abort resets the connection. During a partition the far end does not learn of it either: what
// gives a silent connection up resets it.
func (c *partitionedConn) Abort() error { return c.end(tunnel.Abort) }

// end ends the connection in one of two ways, or leaves that to the end of the partition. A
// second call does nothing: the far end would learn of it.
func (c *partitionedConn) end(how func(net.Conn) error) error {
	first := false
	c.once.Do(func() { close(c.closed); first = true })
	if !first {
		return net.ErrClosed
	}
	c.partition.mu.Lock()
	_, open := c.partition.conns[c]
	delete(c.partition.conns, c)
	kept := open && c.partition.blocked != nil
	if kept {
		c.partition.left = append(c.partition.left, c.Conn)
	}
	c.partition.mu.Unlock()
	if kept {
		return c.Conn.SetDeadline(time.Unix(1, 0)) // who waits in it wakes up
	}
	return how(c.Conn)
}

// reset implements resetter.
func (c *partitionedConn) reset() error {
	c.once.Do(func() { close(c.closed) })
	c.partition.remove(c)
	return tunnel.Abort(c.Conn)
}

// CloseWrite ends the direction that is written, where there are two.
func (c *partitionedConn) CloseWrite() error { return tunnel.CloseWrite(c.Conn) }

// NetConn is what the transports tune.
func (c *partitionedConn) NetConn() net.Conn { return c.Conn }

// InnerReader and InnerWriter implement tunnel.Wrapper: the partition may not be bypassed.
func (c *partitionedConn) InnerReader() tunnel.Inner { return tunnel.Inner{} }

// InnerWriter is InnerReader for writing.
func (c *partitionedConn) InnerWriter() tunnel.Inner { return tunnel.Inner{} }

// SetDeadline sets both deadlines.
func (c *partitionedConn) SetDeadline(t time.Time) error {
	c.note(t, true, true)
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline bounds pending and later Reads.
func (c *partitionedConn) SetReadDeadline(t time.Time) error {
	c.note(t, true, false)
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline bounds pending and later Writes.
func (c *partitionedConn) SetWriteDeadline(t time.Time) error {
	c.note(t, false, true)
	return c.Conn.SetWriteDeadline(t)
}

func (c *partitionedConn) note(t time.Time, read, write bool) {
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
