// Data that breaks each connection that carries it, as a middlebox that filters contents has it.

package qmux

import (
	"bytes"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A scanned connection passes whole records on, and is cut 5 ms after one with filterFor in it. If half
// is set only the end that the record was for is told.
type scanned struct {
	*memnet.Conn
	half, cut bool
}

func (f *scanned) Write(p []byte) (n int, err error) {
	for n < len(p) && !f.cut {
		size := sizeBytes + (int(p[n]&0x3f)<<8 | int(p[n+1]))
		if bytes.Contains(p[n:n+size], filterFor) {
			time.Sleep(5 * time.Millisecond) // the bubble's clock
			if f.cut = f.half; f.half {
				f.CloseWriteWithError(syscall.ECONNRESET)
				break
			}
			_ = f.Abort() // never fails
			return n, syscall.ECONNRESET
		}
		k, err := f.Conn.Write(p[n : n+size])
		if n += k; err != nil {
			return n, err
		}
	}
	return len(p), nil
}

// TestStuckDataIsHeld: such data is not sent as often as connections can be made, whichever end has it,
// though data of other streams moves on each connection; and bulk of those goes on.
func TestStuckDataIsHeld(t *testing.T) {
	for name, c := range map[string]struct{ server, half bool }{
		"agent": {false, false}, "server": {true, false}, "server, and the agent notices first": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(tunnel.Options{})
				n.set(func() {
					if c.server {
						n.far = func(m *memnet.Conn) secured { return bare{newBatch(&scanned{Conn: m, half: c.half})} }
					} else {
						n.wrap = func(m *memnet.Conn) net.Conn { return &scanned{Conn: m} }
					}
				})
				d, a := n.pair(t, tunnel.Options{})
				from, to := d, a
				if c.server {
					from, to = a, d
				}
				held, _ := opened(t, from, to)
				good, far := opened(t, from, to)
				small, _ := opened(t, d, a)
				got := make(chan int64, 1)
				go func() { k, _ := io.Copy(io.Discard, far); got <- k }()
				go func() { // until the session ends
					for err := error(nil); err == nil; {
						_, err = good.Write(make([]byte, 100<<10))
						time.Sleep(50 * time.Millisecond) // the bubble's clock
					}
				}()
				go func() { // likewise
					for err := error(nil); err == nil; {
						_, err = io.WriteString(small, "tick")
						time.Sleep(20 * time.Millisecond) // the bubble's clock
					}
				}()
				go func() { _, _ = held.Write(bytes.Repeat(filterFor, 5000)) }()
				time.Sleep(20 * time.Second) // the bubble's clock
				made := n.made()
				n.close(t, d, a)
				if moved := <-got; made > 100 || moved < 20<<20 {
					t.Errorf("%d connections in 20 s; %d KB of the other stream moved", made, moved>>10)
				}
				time.Sleep(time.Second) // the bubble's clock
			})
		})
	}
}

// TestAckReleasesHeldData: an acknowledgement of something shows that the data gets through.
func TestAckReleasesHeldData(t *testing.T) {
	s, p := byHand(t, true, tunnel.Options{})
	p.say(streamFrame(0, 0, "x", false))
	accepted, err := s.Accept(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	st := accepted.(*stream)
	says(t, st, "abc")
	p.await(frameStream)
	s.mu.Lock()
	st.out.held = time.Now().Add(time.Hour)
	s.mu.Unlock()
	says(t, st, "def")
	p.say(appendInts(nil, framePing, 1))
	for f := p.hear(); f.kind != framePong; f = p.hear() {
		if f.kind == frameStream {
			t.Errorf("held data was sent: %q", f.data)
		}
	}
	p.say(appendInts(nil, frameStreamAck, 0, 3, initialWindow))
	if f := p.await(frameStream); string(f.data) != "def" {
		t.Errorf("sent then: %q", f.data)
	}
}

// TestLossIsCountedOnce: the loss of all connections of a session is one, though data of a stream was in
// flight on two of them.
func TestLossIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, _ := opened(t, a, d)
		says(t, near, "x")
		d.mu.Lock()
		d.paths.wanted = 1
		d.addConnsLocked()
		d.mu.Unlock()
		time.Sleep(time.Second) // the bubble's clock
		out := &near.(*stream).out
		a.mu.Lock()
		if len(a.conns) != 2 {
			t.Fatalf("%d connections", len(a.conns))
		}
		for _, c := range a.conns { // as if neither had been acknowledged
			out.runs = append(out.runs, run{c: c, from: out.base, to: out.base})
		}
		a.mu.Unlock()
		if err := d.Move(t.Context()); err != nil { // at a it is like a loss that d has noticed
			t.Fatal(err)
		}
		synctest.Wait()
		a.mu.Lock()
		if out.losses != 1 {
			t.Errorf("it counts as %d", out.losses)
		}
		a.mu.Unlock()
		n.close(t, d, a)
	})
}
