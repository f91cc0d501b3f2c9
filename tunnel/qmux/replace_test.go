// Connections that take the place of others.

package qmux

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A hooked connection has something done before each write.
type hooked struct {
	secured
	before *atomic.Pointer[func()]
}

func (h hooked) Write(p []byte) (int, error) {
	if f := h.before.Swap(nil); f != nil {
		(*f)()
	}
	return h.secured.Write(p)
}

// The last of the old connections may be lost just when a new one takes the place of all.
func TestLostWhileReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		var hook atomic.Pointer[func()]
		n.far = func(c *memnet.Conn) secured { return hooked{bare{newBatch(c)}, &hook} }
		id, key, _ := n.hand(t).begin(usual)
		s := <-n.accepted
		n.set(func() { n.far = nil })
		beside := n.hand(t)
		beside.greet(&joining{kind: kindJoin, id: id, secret: key, attempt: 1, insteadOf: insteadOfNone})
		f := beside.await(frameSession)
		_, key, _ = f.session()
		synctest.Wait()
		if l := s.Link(); l.Connections != 2 || l.Resumes != 0 {
			t.Errorf("with one more connection, in place of none: %+v", l)
		}
		lose := func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lostLocked(s.firstLocked(), errNoWay)
		}
		hook.Store(&lose)
		p := n.hand(t)
		p.join(id, key, 2)
		p.say(streamFrame(0, 0, "here", false))
		st, err := s.Accept(waiting(t))
		if err != nil {
			t.Fatal(err)
		}
		hears(t, st, "here")
		if l := s.Link(); !l.Parked.IsZero() || l.Resumes != 1 {
			t.Errorf("%+v", l)
		}
		n.close(t, s)
	})
}

// A write that is blocked on a connection does not hold up what goes on on the one that takes its
// place.
func TestBlockedWriteHoldsUpNothing(t *testing.T) {
	for name, ends := range map[string]func(d, a *Session) (from, to *Session){
		"of the dialing end":   func(d, a *Session) (from, to *Session) { return d, a },
		"of the accepting end": func(d, a *Session) (from, to *Session) { return a, d },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := tunnel.Options{Link: tunnel.LinkOptions{Connections: 1}}
				n := newNetwork(o)
				d, a := n.pair(t, o)
				from, to := ends(d, a)
				near, far := opened(t, from, to)
				var group sync.WaitGroup
				var read atomic.Int64
				group.Go(func() { sendBulk(near, 10*time.Millisecond) })
				group.Go(func() {
					for b := make([]byte, 64<<10); ; {
						k, err := far.Read(b)
						if read.Add(int64(k)); err != nil {
							return
						}
					}
				})
				time.Sleep(3 * time.Second)
				n.near[0].Stall(true)
				for d.Link().Resumes == 0 {
					time.Sleep(time.Millisecond)
				}
				before, since := read.Load(), time.Now()
				for read.Load() == before && time.Since(since) < time.Minute {
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(since); took > 100*time.Millisecond {
					t.Errorf("the stream went on %v after the session", took)
				}
				n.close(t, d, a)
				group.Wait()
			})
		})
	}
}

// What was in front of a path on a replaced connection does not go on to take the path from the
// connection that has its place.
func TestReplacedSendsNothingMore(t *testing.T) {
	o := tunnel.Options{TLS: tunneltest.TLS(t), Link: tunnel.LinkOptions{Connections: 1}}
	addr, accepted := overTLS(t, o)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	var stopped atomic.Bool
	path := make(chan *net.TCPConn, 8)
	go func() { // a path that holds little, and of which nothing comes out any more
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			_ = near.(*net.TCPConn).SetReadBuffer(4 << 10)
			far, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _, _ = near.Close(), far.Close() })
			first := len(path) == 0
			path <- near.(*net.TCPConn)
			go func() { _, _ = io.Copy(near, far) }()
			go func() {
				for b := make([]byte, 4<<10); !first || !stopped.Load(); {
					n, err := near.Read(b)
					if _, werr := far.Write(b[:n]); err != nil || werr != nil {
						return
					}
				}
			}()
		}
	}()
	d := dialed(t, ln.Addr().String(), o)
	near, far := opened(t, d, sessionOf(t, accepted))
	go func() { _, _ = io.Copy(io.Discard, far) }() // it ends with the session
	d.mu.Lock()
	old := d.firstLocked()
	d.mu.Unlock()
	stopped.Store(true)
	go func() { _, _ = near.Write(make([]byte, 4<<20)) }() // it ends with the session
	tunneltest.Eventually(t, "data is in front of the path", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return old.inFlight >= 48<<10
	})
	if err := d.Move(waiting(t)); err != nil {
		t.Fatal(err)
	}
	tunneltest.Eventually(t, "the replaced connection is closed", func() bool {
		return !carrier.Acknowledges(old.tls, time.Hour) // nothing is known of a socket that is closed
	})
	if n, err := io.Copy(io.Discard, <-path); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after it was closed, %d bytes came, and %v", n, err)
	}
}
