// Tests of how much lies before a path.

package link

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// writes has a pace see writes of n bytes each, of which each takes so long and
// begins at once after the one before, until total bytes are written.
func (p *pace) writes(total, n int, each time.Duration) {
	for ; total > 0; total -= n {
		p.wrote(n, p.until, p.until+each)
	}
}

func TestPace(t *testing.T) {
	var p pace
	p.reset()
	expect := func(what string, want int64) {
		t.Helper()
		if got := p.ahead.Load(); got != want {
			t.Errorf("%s: %d bytes ahead, want %d (%.0f B/s)", what, got, want, p.rate)
		}
	}
	for i := range 100 {
		at := time.Duration(i) * 14 * time.Second
		p.wrote(pingSize, at, at+time.Microsecond)
	}
	expect("heartbeats only", firstAhead)
	p.writes(64<<10, 64<<10, 30*time.Microsecond)
	expect("not enough to tell", firstAhead)
	p.writes(1<<20, 64<<10, 30*time.Microsecond)
	expect("loopback", gather)
	p.writes(64<<10, 64<<10, 30*time.Microsecond) // what the socket takes
	p.writes(128<<10, 16<<10, 2*time.Second)
	expect("a modem", leastAhead)
	for range 100 {
		p.wrote(pingSize, p.until+14*time.Second, p.until+14*time.Second+time.Microsecond)
	}
	expect("a modem and heartbeats", leastAhead)
	p.writes(1<<20, 8<<10, 10*time.Microsecond)
	expect("loopback again", gather)
	p.writes(1<<20, 16<<10, 10*time.Millisecond)
	expect("as fast as anybody needs", gather)
	p.writes(64<<10, 64<<10, 10*time.Second)
	expect("a modem, or something that is over", gather/8)
	p.writes(1<<20, 32<<10, 10*time.Millisecond)
	expect("it is over", gather)
	p.wrote(pingSize, p.until+time.Minute, p.until+time.Minute+1)
	expect("after a pause", firstAhead)
	p.writes(4<<20, 8<<10, 32*time.Millisecond)
	expect("250 KiB a second", 64000)
}

// A slowConn takes rate bytes a second and holds nothing.
type slowConn struct {
	net.Conn
	rate int
}

func (c slowConn) Write(p []byte) (int, error) {
	for n := 0; n < len(p); n += 1 << 10 {
		piece := p[n:min(n+1<<10, len(p))]
		<-time.After(time.Duration(len(piece)) * time.Second / time.Duration(c.rate))
		if k, err := c.Conn.Write(piece); err != nil {
			return n + k, err
		}
	}
	return len(p), nil
}

// Beside bulk on a path of 8 KiB/s, whatever is written next comes through once what
// may lie before it has, and what the transport has in hand.
func TestSlowPathHoldsLittle(t *testing.T) {
	const rate = 8 << 10
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		a, b := pairBy(t, r, func(ctx context.Context) (net.Conn, error) {
			c, err := r.dial(ctx)
			return slowConn{c, rate}, err
		})
		const mark = 0xFF
		marks := make(chan time.Time, 100)
		var group sync.WaitGroup
		group.Go(func() { // ends with the link
			buf := make([]byte, 4<<10)
			for {
				n, err := b.Read(buf)
				for _, c := range buf[:n] {
					if c == mark {
						marks <- time.Now()
					}
				}
				if err != nil {
					return
				}
			}
		})
		bulk := make([]byte, 2<<10)
		for i := range 20 {
			for range 20 {
				if _, err := a.Write(bulk); err != nil {
					t.Fatal(err)
				}
			}
			begun := time.Now()
			if _, err := a.Write([]byte{mark}); err != nil {
				t.Fatal(err)
			}
			most := time.Duration(2*leastAhead/rate)*time.Second + 100*time.Millisecond
			if i == 0 {
				most = firstAhead / rate * time.Second // the path is not known yet
			}
			if waited := (<-marks).Sub(begun); waited > most {
				t.Errorf("mark %d came through after %v, want %v at most", i, waited, most)
			}
		}
		r.close(t, a, b)
		group.Wait()
	})
}
