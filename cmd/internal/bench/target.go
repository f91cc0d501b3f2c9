// The target: what is at the far end of every connection.

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The first byte of a connection says what the target does with it.
const (
	modeEcho    = 'e' // sends back what it gets
	modeSource  = 's' // sends as fast as it can
	modeDiscard = 'd' // reads as fast as it can
)

// chunk is how much is written or read at a time in bulk.
const chunk = 64 << 10

// settleTime bounds how long a way may take to pass on that its connections have
// been closed.
const settleTime = 2 * time.Minute

// A target accepts connections on loopback.
type target struct {
	listener net.Listener
	received atomic.Int64 // bytes of connections in discard mode
	sourcing atomic.Bool  // those in source mode go on
	serving  sync.WaitGroup

	mu     sync.Mutex            // guards the following
	conns  map[net.Conn]struct{} // open ones
	closed bool
	empty  chan struct{} // closed and forgotten when conns next becomes empty
}

func startTarget(ctx context.Context) (*target, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen as target: %w", err)
	}
	t := &target{listener: l, conns: make(map[net.Conn]struct{})}
	t.serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			if t.enter(c) {
				t.serving.Go(func() {
					defer t.leave(c)
					t.serve(c)
				})
			}
		}
	})
	return t, nil
}

func (t *target) addr() string { return t.listener.Addr().String() }

func (t *target) enter(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = c.Close()
		return false
	}
	t.conns[c] = struct{}{}
	return true
}

func (t *target) leave(c net.Conn) {
	_ = c.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	if len(t.conns) == 0 && t.empty != nil {
		close(t.empty)
		t.empty = nil
	}
}

// settle waits until no connection is open, so that what one measurement leaves
// behind does not disturb the next.
func (t *target) settle(ctx context.Context) error {
	t.mu.Lock()
	if len(t.conns) == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.empty == nil {
		t.empty = make(chan struct{})
	}
	empty, n := t.empty, len(t.conns)
	t.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, settleTime, fmt.Errorf("of %d connections to the target some are still open %s after they were closed", n, settleTime))
	defer cancel()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// close ends every connection.
func (t *target) close() {
	_ = t.listener.Close()
	t.mu.Lock()
	t.closed = true
	for c := range t.conns {
		_ = c.Close()
	}
	t.mu.Unlock()
	t.serving.Wait()
}

func (t *target) serve(c net.Conn) {
	var mode [1]byte
	if _, err := io.ReadFull(c, mode[:]); err != nil {
		return
	}
	switch mode[0] {
	case modeEcho:
		echo(c)
	case modeSource:
		b := filler()
		for t.sourcing.Load() {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	case modeDiscard:
		b := make([]byte, chunk)
		for {
			n, err := c.Read(b)
			t.received.Add(int64(n))
			if err != nil {
				return
			}
		}
	}
}

// echo does not use io.Copy, which would splice in the kernel where the tunnel's
// far end cannot.
func echo(c net.Conn) {
	b := make([]byte, 1024)
	for {
		n, err := c.Read(b)
		if n > 0 {
			if _, werr := c.Write(b[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// filler is what bulk consists of. Nothing on the way compresses.
func filler() []byte {
	b := make([]byte, chunk)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// errEcho is an echo that is none.
var errEcho = errors.New("the target's echo differs from what was sent")
