// Closing and moving: what the other end learns, and in what time.

package qmux

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// closes closes a session, and says how long that took.
func closes(s *Session) time.Duration {
	began := time.Now()
	_ = s.Close() // never fails
	return time.Since(began)
}

// swallows makes a connection that swallows everything.
func swallows(c *memnet.Conn) net.Conn {
	c.Stall(true)
	return c
}

// Close is told, so that neither end waits, whichever it is.
func TestCloseIsTold(t *testing.T) {
	for name, swap := range map[string]bool{"dialing end": false, "accepting end": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(tunnel.Options{})
				d, a := n.pair(t, tunnel.Options{})
				closing, other := d, a
				if swap {
					closing, other = a, d
				}
				near, far := opened(t, closing, other)
				began := time.Now()
				if took := closes(closing); took != 0 {
					t.Errorf("it took %v", took)
				}
				if err := why(other); !errors.Is(err, tunnel.Lost) || time.Since(began) != 0 {
					t.Errorf("the other end: %v after %v", err, time.Since(began))
				}
				if err := why(closing); !errors.Is(err, tunnel.ErrSessionClosed) {
					t.Errorf("the closing end: %v", err)
				}
				if _, err := near.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
					t.Errorf("read at the closing end: %v", err)
				}
				if _, err := far.Write([]byte("x")); err == nil || errors.Is(err, syscall.EPIPE) {
					t.Errorf("write at the other end: %v", err)
				}
				synctest.Wait() // the other end needs no Close to be forgotten
				if k := n.registry.len(); k != 0 {
					t.Errorf("%d sessions are left", k)
				}
				n.close(t, d, a)
			})
		})
	}
}

// Two ends that close at once do not wait for each other.
func TestCloseBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		var wg sync.WaitGroup
		for _, s := range []*Session{d, a} {
			wg.Go(func() {
				if took := closes(s); took != 0 {
					t.Errorf("it took %v", took)
				}
			})
		}
		wg.Wait()
		n.close(t, d, a)
	})
}

// A peer that reads nothing delays Close by closeTimeout at most, and CONNECTION_CLOSE
// after a protocol error does not wait either.
func TestCloseIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		bad  func(*network)
		most time.Duration
	}{
		"swallowed": {(*network).stall, closeTimeout + lingerTimeout},
		"cut":       {(*network).cut, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(tunnel.Options{})
				d, a := n.pair(t, tunnel.Options{})
				near, _ := opened(t, a, d)
				n.set(func() { n.down = errNoWay })
				tc.bad(n)
				_ = near.SetWriteDeadline(time.Now().Add(time.Millisecond))
				_, _ = near.Write(make([]byte, 1<<20)) // some of it is on its way
				if took := closes(a); took > tc.most {
					t.Errorf("it took %v", took)
				}
				n.set(func() { n.down = nil })
				began := time.Now()
				// The dialing end learns as soon as it asks again.
				if err := why(d); !errors.Is(err, tunnel.Lost) || time.Since(began) > 20*time.Second {
					t.Errorf("the other end: %v after %v", err, time.Since(began))
				}
				n.close(t, d, a)
			})
		})
	}
}

// A session that the accepting end closes while it is parked is over at once there, and
// at the dialing end as soon as it tries.
func TestAccepterClosesWhileParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		n.set(func() { n.down = errNoWay })
		n.cut()
		time.Sleep(10 * time.Second)
		if took := closes(a); took != 0 {
			t.Errorf("it took %v", took)
		}
		n.set(func() { n.down = nil })
		began := time.Now()
		if err := why(d); !errors.Is(err, tunnel.Lost) || time.Since(began) > maxBackoff {
			t.Errorf("the dialing end: %v after %v", err, time.Since(began))
		}
		n.close(t, d, a)
	})
}

// The dialing end that closes a parked session makes one attempt to say so, whatever the
// wait before the next would have been. A network that refuses or swallows everything
// does not hold it up.
func TestDialerClosesWhileParked(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(*network)
		took time.Duration
		told bool
	}{
		"works again": {func(n *network) { n.down = nil }, 0, true},
		"refused":     {func(*network) {}, 0, false},
		"swallowed":   {func(n *network) { n.down, n.wrap = nil, swallows }, closeTimeout, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(tunnel.Options{})
				d, a := n.pair(t, tunnel.Options{})
				n.set(func() { n.down = errNoWay })
				n.cut()
				time.Sleep(tunnel.DefaultDetachWindow / 2) // it waits between two attempts
				n.set(func() { tc.then(n) })
				began := time.Now()
				if took := closes(d); took != tc.took {
					t.Errorf("it took %v", took)
				}
				err := why(a)
				if took := time.Since(began); !errors.Is(err, tunnel.Lost) || (took == 0) != tc.told || took > tunnel.DefaultDetachWindow/2 {
					t.Errorf("the accepting end: %v after %v", err, took)
				}
				n.close(t, d, a)
			})
		})
	}
}

// Move leaves the connections alone until another one has been taken, and for good if
// there is none to be had.
func TestMoveInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		n.set(func() { n.down = errNoWay })
		if err := d.Move(t.Context()); !errors.Is(err, errNoWay) {
			t.Errorf("moved nowhere: %v", err)
		}
		n.set(func() { n.down, n.wrap = nil, swallows })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		moved := make(chan error)
		go func() { moved <- d.Move(ctx) }()
		synctest.Wait() // the attempt is under way
		says(t, near, "as before")
		hears(t, far, "as before")
		if err := <-moved; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("move: %v", err)
		}
		says(t, far, "and after")
		hears(t, near, "and after")
		if l := d.Link(); l.Parks+l.Resumes != 0 {
			t.Errorf("%+v", l)
		}
		n.set(func() { n.wrap = nil })
		n.close(t, d, a)
	})
}

// errCut is what a TLS connection reads that ends without close_notify.
var errCut = errors.New("connection was cut")

// A cuttable connection is below TLS, which takes an io.EOF there for close_notify.
type cuttable struct{ net.Conn }

func (c cuttable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		err = errCut
	}
	return n, err
}

// TestCloseNotify: CONNECTION_CLOSE is followed by close_notify (RFC 8446, 6.1), so that the
// peer can tell the end of the connection from a cut.
func TestCloseNotify(t *testing.T) {
	for name, end := range map[string]func(*Session, *handmade){
		"closed":             func(s *Session, _ *handmade) { go func() { _ = s.Close() }() }, // joined below
		"protocol violation": func(_ *Session, p *handmade) { p.say([]byte{0x02}) },           // ACK, which QMux prohibits
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			made := make(chan tunnel.Session, 1)
			go func() {
				s, err := Dial(waiting(t), ln.Addr().String(), tunnel.Options{TLS: tunneltest.TLS(t)})
				if err != nil {
					t.Error(err)
				}
				made <- s
			}()
			raw, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			conf := tunneltest.TLS(t)
			conf.NextProtos = []string{ALPN}
			p := newHandmade(t, tls.Server(cuttable{raw}, conf))
			p.greet(nil)
			s, ok := (<-made).(*Session)
			if !ok {
				t.Fatal("no session")
			}
			end(s, p)
			for f := p.hear(); f.kind != frameClose && f.kind != frameApplicationClose; {
				f = p.hear()
			}
			if _, err := p.conn.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // exactly that
				t.Errorf("after CONNECTION_CLOSE: %v", err)
			}
			_ = raw.Close() // the other end waits for it
			_ = s.Close()   // never fails
		})
	}
}
