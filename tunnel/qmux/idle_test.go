// What idle sessions and streams hold.

package qmux

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A stream that has said something holds nothing once that is acknowledged and read.
func TestIdleStreamHoldsNothing(t *testing.T) {
	d, a := overMemory(t, tunnel.Options{})
	defer func() { _, _ = d.Close(), a.Close() }()
	w, err := d.Open(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	r, err := a.Accept(waiting(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx := waiting(t); ; {
		kept, unread := d.(*Session).Link().Queued, held(a.(*Session))
		if kept == 0 && unread == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d bytes are kept, %d are unread", kept, unread)
		}
	}
}

func held(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unread
}

// An idle session costs at most 60 KiB an hour, on a metered link 40 KiB a day, with
// what TLS and TCP add.
func TestIdleSessionIsQuiet(t *testing.T) {
	for name, tt := range map[string]struct {
		metered bool
		over    time.Duration
		most    int64
	}{
		"hour":    {false, time.Hour, 60 << 10},
		"metered": {true, 24 * time.Hour, 40 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var wire atomic.Int64
				a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
				d, s := joined(t, &counted{a, &wire}, &counted{b, &wire}, tunnel.Options{Link: tunnel.LinkOptions{Metered: tt.metered}})
				defer func() { _, _ = d.Close(), s.Close() }()
				time.Sleep(time.Hour) // a metered link tries how long it may be silent
				before := wire.Load()
				time.Sleep(tt.over)
				n := wire.Load() - before
				t.Logf("%d bytes", n)
				if n > tt.most || n == 0 {
					t.Errorf("%d bytes, want at most %d", n, tt.most)
				}
			})
		})
	}
}

// perWrite is what TLS adds, and a packet, and an acknowledgement for every other: an
// answer brings that of the question.
const perWrite = 22 + 52 + 52/2

// A counted connection counts what goes over the wire for what is written.
type counted struct {
	net.Conn
	wire *atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.wire.Add(int64(len(p)) + perWrite)
	return c.Conn.Write(p)
}
