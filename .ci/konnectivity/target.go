// The target: what every connection leads to.

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// The first byte of a connection says what the target does with it.
const (
	echoes   = 'e' // sends back what it gets
	sources  = 's' // sends as fast as it can while sending is true
	discards = 'd' // reads as fast as it can
)

// piece is how much is written at a time, which is what io.Copy writes.
const piece = 32 << 10

// A target accepts connections on loopback.
type target struct {
	listener net.Listener
	port     string
	received atomic.Int64 // bytes to discard
	sending  atomic.Bool
	open     atomic.Int64 // connections
}

func startTarget(ctx context.Context) (*target, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, err
	}
	t := &target{listener: l, port: port}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			t.open.Add(1)
			go t.serve(c)
		}
	}()
	return t, nil
}

func (t *target) serve(c net.Conn) {
	defer t.open.Add(-1)
	defer c.Close()
	var what [1]byte
	if _, err := io.ReadFull(c, what[:]); err != nil {
		return // it is gone
	}
	switch what[0] {
	case echoes:
		_, _ = io.Copy(c, c)
	case sources:
		for b := make([]byte, 64<<10); t.sending.Load(); {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	case discards:
		for b := make([]byte, 64<<10); ; {
			n, err := c.Read(b)
			if t.received.Add(int64(n)); err != nil {
				return
			}
		}
	}
}

// settle waits until no connection is open, so that one measurement does not disturb the
// next.
func (t *target) settle() error {
	for end := time.Now().Add(time.Minute); t.open.Load() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%d connections to the target are still open a minute after they were closed", t.open.Load())
		}
	}
	return nil
}
