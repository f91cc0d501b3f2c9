package carrier

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A hole is a way to a server on which large packets vanish while it is open.
type hole struct {
	open  atomic.Bool
	large atomic.Int64 // connections with such packets
	small atomic.Int64
}

func (h *hole) dialSmall(ctx context.Context, network, addr string) (net.Conn, error) {
	h.small.Add(1)
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

func (h *hole) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	h.large.Add(1)
	if !h.open.Load() {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }() // ends with near
	return near, nil
}

// A server whose answers do not fit is reached all the same, at first and later.
func TestLargePacketsVanish(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	for name, from := range map[string]bool{"from the first": true, "later on": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := serve(t, tunnel.Options{TLS: ca.Server(t)})
			relay := tunneltest.NewRelay(t, srv.addr)
			var h hole
			h.open.Store(from)
			d, first, err := dialFirst(within(t), relay.Addr(), tunnel.Options{TLS: ca.Client(t, "a"), Dial: h.dial, DialSmall: h.dialSmall})
			if err != nil {
				t.Fatal(err)
			}
			defer first.Close()
			if err := heard(first); err != nil {
				t.Fatal(err)
			}
			said(t, first, srv.next(t), "hello")
			if (h.small.Load() > 0) != from {
				t.Errorf("%d connections with small packets", h.small.Load())
			}
			h.open.Store(true)
			again := func(what string) {
				relay.Cut()
				for {
					ctx, cancel := context.WithTimeout(within(t), time.Second)
					c, err := d.Again(ctx)
					cancel()
					if err == nil {
						defer c.Close()
						if err := heard(c); err != nil {
							t.Fatal(err)
						}
						said(t, c, srv.next(t), what)
						return
					}
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Fatal(err)
					}
				}
			}
			again("after a cut")
			before := h.large.Load()
			again("after another")
			if n := h.large.Load() - before; n != 0 {
				t.Errorf("what was known about the path was tried again %d times", n)
			}
		})
	}
}

func TestPackets(t *testing.T) {
	at := func(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }
	var p packetSize
	if p.next(at(time.Hour)) {
		t.Error("small packets though nobody has been reached")
	}
	p.connected(at(time.Minute))
	if p.next(at(time.Minute + smallAfter - 1)) {
		t.Error("small packets too early")
	}
	if !p.next(at(time.Minute + smallAfter)) {
		t.Error("no small packets for a handshake without an answer")
	}
	p.handshakeDone(false)
	for _, lasted := range []time.Duration{shortLifetime - 1, shortLifetime, minLifetime - 1, minLifetime} {
		if p.closed(at(lasted), at(0), false); p.next(at(time.Hour)) {
			t.Errorf("small packets after a connection that was there for %v", lasted)
		}
	}
	if p.closed(at(shortLifetime-1), at(0), false); !p.next(at(time.Hour)) {
		t.Error("large packets after two that have failed")
	}
	if p.closed(at(time.Hour), at(0), false); !p.next(at(time.Hour)) {
		t.Error("large packets on a path that is known")
	}
}

// TestPacketsOfMoves: connections that are replaced because the way is another one say nothing of it,
// nor does a handshake that the peer ends at once.
func TestPacketsOfMoves(t *testing.T) {
	at := func(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }
	var p packetSize
	p.closed(at(5*time.Second), at(0), false)
	for i := range 5 {
		began := time.Duration(i) * time.Minute
		p.moved(at(began + 5*time.Second))
		p.closed(at(began+6*time.Second), at(began), false)
	}
	if p.next(at(time.Hour)) {
		t.Error("small packets after moves")
	}
	p.closed(at(time.Hour), at(time.Hour-shortLifetime+1), false)
	if p.closed(at(2*time.Hour), at(2*time.Hour-shortLifetime+1), false); !p.next(at(3 * time.Hour)) {
		t.Error("large packets after two connections that failed since the last move")
	}
	p = packetSize{}
	p.connected(at(0))
	if p.handshakeFailed(smallAfter - 1); p.next(at(time.Hour)) {
		t.Error("small packets after a handshake that was refused")
	}
	p.connected(at(0))
	if p.handshakeFailed(smallAfter); !p.next(at(time.Hour)) {
		t.Error("large packets after a handshake without an answer")
	}
}

// TestBusyServerMakesNoSmallPackets: a server sends an agent away before its handshake.
func TestBusyServerMakesNoSmallPackets(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	srv := serve(t, tunnel.Options{TLS: ca.Server(t)})
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	var away atomic.Bool
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if away.Load() {
			addr = busy.Addr().String()
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	d, first, err := dialFirst(within(t), srv.addr, tunnel.Options{TLS: ca.Client(t, "a"), Dial: dial})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	away.Store(true)
	go func() {
		if c, err := busy.Accept(); err == nil {
			_, _ = c.Write(busyAlert[:])
			_ = c.Close()
		}
	}()
	if _, err := d.Again(within(t)); err == nil {
		t.Fatal("a busy server lets in")
	}
	if d.packetSize.next(time.Now().Add(time.Hour)) {
		t.Error("the next connection has small packets")
	}
}

// A connection on which the peer's large packets are lost lives until the peer gives its data up,
// or until the peer is taken for dead.
func TestPacketsOfPeerVanish(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, lived := range []time.Duration{userTimeout, userTimeout + time.Second, 42 * time.Second, time.Hour} {
		var p packetSize
		p.closed(now, now.Add(-lived), true)
		if p.next(now) {
			t.Errorf("small packets after one connection of %v", lived)
		}
		if p.closed(now, now.Add(-lived), true); !p.next(now) {
			t.Errorf("large packets after two connections of %v", lived)
		}
		p = packetSize{}
		for _, unanswered := range []bool{true, false, true} {
			if p.closed(now, now.Add(-lived), unanswered); p.next(now) {
				t.Errorf("small packets though one of %v was answered", lived)
			}
		}
	}
}

// A peer whose system acknowledges and that sends nothing is told from one whose large packets
// have come, and from one that answers.
func TestUnanswered(t *testing.T) {
	for name, tt := range map[string]struct {
		answer int // bytes
		want   bool
	}{"small answer": {100, true}, "large answer": {1 << 20, false}} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			near, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer near.Close()
			far, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			go func() { _, _ = far.Write(make([]byte, tt.answer)) }() // ends with far
			if _, err := io.ReadFull(near, make([]byte, tt.answer)); err != nil {
				t.Fatal(err)
			}
			if unanswered(near, unansweredFor) {
				t.Error("an answer that has just come is none")
			}
			ping := func() {
				if _, err := near.Write([]byte("ping")); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(far, make([]byte, 4)); err != nil {
					t.Fatal(err)
				}
			}
			if ping(); !tt.want {
				if unanswered(near, 0) {
					t.Error("a large answer is none")
				}
				return
			}
			tunneltest.Eventually(t, "silent", func() bool {
				ping()
				return unanswered(near, 20*time.Millisecond)
			})
		})
	}
}

// Connections beside others say nothing of the path: their packets stay large.
func TestPacketsOfMany(t *testing.T) {
	ca := tunneltest.NewAuthority(t, "ca")
	srv := serve(t, tunnel.Options{TLS: ca.Server(t)})
	var h hole
	d, first, err := dialFirst(within(t), srv.addr, tunnel.Options{TLS: ca.Client(t, "a"), Dial: h.dial, DialSmall: h.dialSmall})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	for range 4 {
		c, err := d.Again(within(t))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if n := h.small.Load(); n != 0 {
		t.Errorf("%d of 5 connections have small packets", n)
	}
}

// Connections that are cut early while each end hears the other say nothing of large packets; those
// whose peer acknowledges and does not answer do.
func TestPacketsOfCutConnections(t *testing.T) {
	for name, silent := range map[string]bool{"cut": false, "silent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p packetSize
			for range 2 {
				near, far := tcpPair(t)
				if silent {
					<-time.After(minLifetime + 100*time.Millisecond)
					if _, err := near.Write([]byte("ping")); err != nil {
						t.Fatal(err)
					}
					tunneltest.Eventually(t, "acknowledged", func() bool { return Delivered(near) })
				} else {
					if err := errors.Join(far.SetLinger(0), far.Close()); err != nil {
						t.Fatal(err)
					}
					if _, err := near.Read(make([]byte, 1)); err == nil {
						t.Fatal("not reset")
					}
				}
				m := &dialedConn{Conn: near, packetSize: &p, established: time.Now().Add(-5 * time.Second)}
				if err := m.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if p.next(time.Now()) != silent {
				t.Errorf("small packets: %v", !silent)
			}
		})
	}
}
