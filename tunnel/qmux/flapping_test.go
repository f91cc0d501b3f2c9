// A thin link whose connections are cut again and again, while data moves on each.

package qmux

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A thin connection takes 64 KB at once and passes 1 KB on each 25 ms.
type thinConn struct {
	*memnet.Conn
	queue chan []byte
	ended chan struct{}
	end   sync.Once
}

func newThinConn(c *memnet.Conn) *thinConn {
	f := &thinConn{Conn: c, queue: make(chan []byte, 64), ended: make(chan struct{})}
	go func() { // ends with the connection
		for {
			select {
			case p := <-f.queue:
				time.Sleep(25 * time.Millisecond) // the bubble's clock
				if _, err := f.Conn.Write(p); err != nil {
					f.stop()
					return
				}
			case <-f.ended:
				return
			}
		}
	}()
	return f
}

func (f *thinConn) stop() { f.end.Do(func() { close(f.ended) }) }

func (f *thinConn) Write(p []byte) (n int, err error) {
	for len(p) > n {
		next := append([]byte(nil), p[n:min(len(p), n+1000)]...)
		select {
		case f.queue <- next:
			n += len(next)
		case <-f.ended:
			return n, net.ErrClosed
		}
	}
	return n, nil
}

func (f *thinConn) Close() error {
	f.stop()
	return f.Conn.Close()
}

// TestFlappingLink: of two streams that send as much as they can only one moves in the 0.8 s that a
// connection lives. That is no reason to wait before the next one.
func TestFlappingLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		n.set(func() {
			n.wrap = func(c *memnet.Conn) net.Conn {
				f := newThinConn(c)
				time.AfterFunc(800*time.Millisecond, func() {
					f.stop()
					_ = c.Abort() // never fails
				})
				return f
			}
		})
		d, a := n.pairBy(t, tunnel.Options{Link: tunnel.LinkOptions{Connections: 1}}, func(ctx context.Context) (secured, error) {
			time.Sleep(300 * time.Millisecond) // the bubble's clock
			return n.dial(ctx)
		})
		var got atomic.Int64
		for range 2 {
			near, far := opened(t, d, a)
			go func() { // until the session ends
				for err := error(nil); err == nil; {
					_, err = near.Write(make([]byte, 64<<10))
				}
			}()
			go func() {
				b := make([]byte, 32<<10)
				for k, err := far.Read(b); err == nil; k, err = far.Read(b) {
					got.Add(int64(k))
				}
			}()
		}
		time.Sleep(2 * time.Minute) // the bubble's clock
		if n.made() < 100 || got.Load() < 1<<20 {
			t.Errorf("%d connections and %d KB in 2 minutes", n.made(), got.Load()>>10)
		}
		n.close(t, d, a)
		time.Sleep(time.Second) // the bubble's clock: the connections' goroutines end
	})
}

// TestAddsAfterShortLivedConnections: bulk waits for a connection of its own until the first one
// has lived for a second, and no longer.
func TestAddsAfterShortLivedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		d.mu.Lock()
		d.paths.rejoin.shortLived = 2
		d.mu.Unlock()
		go func() { // until the session ends
			for err := error(nil); err == nil; {
				_, err = far.Write(make([]byte, 64<<10))
				time.Sleep(50 * time.Millisecond) // the bubble's clock
			}
		}()
		go func() {
			b := make([]byte, 32<<10)
			for err := error(nil); err == nil; {
				_, err = near.Read(b)
			}
		}()
		time.Sleep(2 * time.Second) // the bubble's clock
		if made := n.made(); made != 2 {
			t.Errorf("%d connections, want 2", made)
		}
		n.close(t, d, a)
		time.Sleep(time.Second) // the bubble's clock
	})
}

// TestBulkOfBriefConnections: data moves though a connection breaks before it has carried a full
// record, which takes it 0.4 s.
func TestBulkOfBriefConnections(t *testing.T) {
	const size = 100 << 10
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		n.set(func() {
			n.wrap = func(c *memnet.Conn) net.Conn {
				f := newThinConn(c)
				time.AfterFunc(350*time.Millisecond, func() {
					f.stop()
					_ = c.Abort() // never fails
				})
				return f
			}
		})
		d, a := n.pair(t, tunnel.Options{Link: tunnel.LinkOptions{Connections: 1}})
		near, far := opened(t, d, a)
		got := make(chan int64, 1)
		go func() { _, _ = near.Write(make([]byte, size)) }()
		go func() { k, _ := io.CopyN(io.Discard, far, size); got <- k }()
		time.Sleep(2 * time.Minute) // the bubble's clock
		n.close(t, d, a)
		if moved := <-got; moved < size {
			t.Errorf("%d bytes of %d on %d connections in 2 minutes", moved, size, n.made())
		}
		time.Sleep(time.Second) // the bubble's clock: the connections' goroutines end
	})
}
