// Connections that a middlebox forgets without a word.

package qmux

import (
	"context"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// What moves goes on when connections are forgotten, whoever sends it and on whichever
// connection. No keepalive helps: it comes once an hour.
func TestForgotten(t *testing.T) {
	for name, tt := range map[string]struct {
		accepter bool // sends
		much     bool // is sent, on a connection of its own
		but      int  // connections that are not forgotten
	}{
		"little from the dialing end":        {},
		"little from the accepting end":      {accepter: true},
		"much from the dialing end":          {much: true},
		"much from the accepting end":        {accepter: true, much: true},
		"one of two, from the dialing end":   {much: true, but: 1},
		"one of two, from the accepting end": {accepter: true, much: true, but: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, a, faults := tunneltest.OverRelay(hidden())(t, tunnel.Options{Link: tunnel.LinkOptions{Keepalive: time.Hour}})
			defer func() { _, _ = d.Close(), a.Close() }()
			relay := faults.(*tunneltest.Relay)
			from, to := d, a
			if tt.accepter {
				from, to = a, d
			}
			w, err := from.Open(waiting(t))
			if err != nil {
				t.Fatal(err)
			}
			var written atomic.Int64
			go write(w, tt.much, &written)
			r, err := to.Accept(waiting(t))
			if err != nil {
				t.Fatal(err)
			}
			read := int64(0)
			until := func(n int64) {
				t.Helper()
				_ = r.SetReadDeadline(time.Now().Add(patience)) // or Read fails
				k, err := io.CopyN(io.Discard, r, n-read)
				if read += k; err != nil {
					t.Fatalf("after %d bytes of %d: %v", read, n, err)
				}
			}
			step := int64(8) // bulk that is read eight bytes at a time pauses
			if tt.much {
				step = 1 << 20
			}
			for range 2 {
				until(written.Load() + 32)
				for end := time.Now().Add(4 * patience); tt.much && !alone(w) || (tt.much || tt.accepter) && !moves(d.(*Session)); {
					if until(read + step); time.Now().After(end) {
						t.Fatalf("after %d bytes nothing moves as it should", read)
					}
				}
				if relay.Forget(tt.but) == 0 {
					t.Fatal("no connection was forgotten")
				}
				until(written.Load() + 32)
			}
		})
	}
}

// hidden is the transport over connections of which nobody can tell what the far end
// of TCP acknowledges: a relay does so for bytes that it never passes on.
func hidden() tunnel.Transport {
	return tunnel.Transport{
		Name: Name,
		Dial: func(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
			o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				return struct{ net.Conn }{c}, err
			}
			return Dial(ctx, addr, o)
		},
		Listen: func(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) { return Listen(hiding{ln}, o) },
	}
}

// A hiding listener accepts such connections.
type hiding struct{ net.Listener }

func (l hiding) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return struct{ net.Conn }{c}, nil
}

// write writes until the stream is closed: now and then, or all the time.
func write(w io.Writer, much bool, written *atomic.Int64) {
	p := make([]byte, 8)
	if much {
		p = make([]byte, 64<<10)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := w.Write(p)
		if written.Add(int64(n)); err != nil {
			return
		}
		if !much {
			<-tick.C
		}
	}
}

// moves says whether data has moved on a connection for so long that its end is noticed.
func moves(s *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.conns, func(c *conn) bool { return c.lastMoved.Sub(c.movingSince) > movingTime })
}

// alone says whether what is written has a connection of its own.
func alone(st tunnel.Stream) bool {
	s := st.(*stream).s
	s.mu.Lock()
	defer s.mu.Unlock()
	return st.(*stream).out.ownConn != nil
}
