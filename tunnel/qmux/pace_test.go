// Tests of how much lies before a path.

package qmux

import (
	"testing"
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
	p := pace{ahead: firstAhead}
	expect := func(what string, want int) {
		t.Helper()
		if got := p.ahead; got != want {
			t.Errorf("%s: %d bytes ahead, want %d (%.0f B/s)", what, got, want, p.rate)
		}
	}
	for i := range 100 {
		at := time.Duration(i) * 14 * time.Second
		p.wrote(16, at, at+time.Microsecond)
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
		p.wrote(16, p.until+14*time.Second, p.until+14*time.Second+time.Microsecond)
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
	p.wrote(16, p.until+time.Minute, p.until+time.Minute+1)
	expect("after a pause", firstAhead)
	p.writes(4<<20, 8<<10, 32*time.Millisecond)
	expect("250 KiB a second", 64000)
}
