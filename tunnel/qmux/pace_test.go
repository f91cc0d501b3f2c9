// Tests of how much lies before a path.

package qmux

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
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
	expect("loopback", maxAhead)
	p.writes(64<<10, 64<<10, 30*time.Microsecond) // what the socket takes
	p.writes(128<<10, 16<<10, 2*time.Second)
	expect("a modem", minAhead)
	for range 100 {
		p.wrote(16, p.until+14*time.Second, p.until+14*time.Second+time.Microsecond)
	}
	expect("a modem and heartbeats", minAhead)
	p.writes(1<<20, 8<<10, 10*time.Microsecond)
	expect("loopback again", maxAhead)
	p.writes(1<<20, 16<<10, 10*time.Millisecond)
	expect("as fast as anybody needs", maxAhead)
	p.writes(64<<10, 64<<10, 10*time.Second)
	expect("a modem, or something that is over", maxAhead/8)
	p.writes(1<<20, 32<<10, 10*time.Millisecond)
	expect("it is over", maxAhead)
	p.wrote(16, p.until+time.Minute, p.until+time.Minute+1)
	expect("after a pause", firstAhead)
	p.writes(4<<20, 8<<10, 32*time.Millisecond)
	expect("250 KiB a second", 64000)

	modem := pace{ahead: firstAhead}
	modem.writes(64<<10, 64<<10, 8*time.Second)
	for name, tc := range map[string]struct {
		p, o pace
		want int
	}{
		"a new connection":           {pace{ahead: firstAhead}, modem, minAhead},
		"one that knows more":        {p, modem, minAhead},
		"one that knows less":        {modem, p, minAhead},
		"nothing is known of it":     {modem, pace{ahead: firstAhead}, minAhead},
		"all is known of a fast one": {pace{ahead: firstAhead}, pace{rate: 4 << 20, ahead: maxAhead}, firstAhead},
		"nothing is known at all":    {pace{ahead: firstAhead}, pace{ahead: firstAhead}, firstAhead},
	} {
		before := tc.p.ahead
		if changed := tc.p.limitTo(tc.o.rate); tc.p.ahead != tc.want || changed != (before != tc.want) {
			t.Errorf("%s: %d bytes ahead, want %d; changed: %v", name, tc.p.ahead, tc.want, changed)
		}
	}
}

// What one connection has learned of the path the one that takes its place heeds.
func TestPaceOutlivesConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		ahead := func() int {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.firstLocked().pace.ahead
		}
		d.mu.Lock()
		d.firstLocked().pace.writes(64<<10, 64<<10, 8*time.Second)
		d.mu.Unlock()
		if err := d.Move(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := ahead(); got != minAhead {
			t.Errorf("after a move %d bytes may lie before a modem", got)
		}
		n.cut()
		near, far := opened(t, d, a)
		goesOn(t, near, far)
		if got := ahead(); got != minAhead {
			t.Errorf("after a cut %d bytes may lie before a modem", got)
		}
		n.close(t, d, a)
	})
}

// What a path carried before it fell silent says nothing of what it carries now: the connection
// that takes the place of the silent one begins with little in front of it.
func TestPaceOfSilentPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		d.mu.Lock()
		d.firstLocked().pace.writes(1<<20, 64<<10, 100*time.Millisecond)
		before := d.firstLocked().pace.ahead
		d.mu.Unlock()
		n.stall()
		goesOn(t, near, far)
		d.mu.Lock()
		got := d.firstLocked().pace.ahead
		d.mu.Unlock()
		if got != minAhead || before != maxAhead {
			t.Errorf("%d bytes ahead, %d before", got, before)
		}
		n.close(t, d, a)
	})
}
