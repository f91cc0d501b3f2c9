// Tests of the waits between attempts.

package agent

import (
	"math"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	const (
		s    = time.Second
		most = 1 - 1.0/(1<<30)
	)
	type step struct {
		what  string // failed, lost, or a session's life
		draw  float64
		least time.Duration
		most  time.Duration
	}
	for _, tc := range []struct {
		name    string
		servers int
		steps   []step
	}{
		{"one server: once at once, then up to a bound that doubles", 1, []step{
			{"failed", most, 0, 0},
			{"failed", most, s / 2, s},
			{"failed", most, s, 2 * s},
			{"failed", most, 2 * s, 4 * s},
			{"failed", most, 4 * s, 8 * s},
			{"failed", most, 4 * s, 8 * s},
			{"failed", 0, 0, 0},
			{"failed", 0.5, 4 * s, 4 * s},
		}},
		{"three servers: each at once", 3, []step{
			{"failed", most, 0, 0}, {"failed", most, 0, 0}, {"failed", most, 0, 0}, {"failed", most, s / 2, s},
		}},
		{"a session that lived starts over", 1, []step{
			{"failed", most, 0, 0}, {"failed", most, s / 2, s}, {"5s", most, 0, 0}, {"failed", most, s / 2, s},
		}},
		{"a session that did not live long does not", 1, []step{
			{"4s", most, 0, 0}, {"4s", most, s / 2, s}, {"4s", most, s, 2 * s},
		}},
		{"replaced: never at once, growing to ten times the highest", 1, []step{
			{"lost", 0, 4 * s, 4 * s},
			{"lost", 0, 8 * s, 8 * s},
			{"lost", most, 31 * s, 32 * s},
			{"lost", 0, 32 * s, 32 * s},
			{"lost", most, 79 * s, 80 * s},
			{"lost", most, 79 * s, 80 * s},
			{"5s", most, 0, 0},
			{"lost", 0, 4 * s, 4 * s},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := backoff{servers: tc.servers, lowest: s, highest: 8 * s}
			for i, st := range tc.steps {
				var got time.Duration
				switch st.what {
				case "failed":
					got = b.failed(st.draw)
				case "lost":
					got = b.lost(st.draw)
				default:
					lived, err := time.ParseDuration(st.what)
					if err != nil {
						t.Fatal(err)
					}
					got = b.ended(lived, st.draw)
				}
				if got < st.least || got > st.most {
					t.Errorf("step %d (%s): waits %v, want %v to %v", i, st.what, got, st.least, st.most)
				}
			}
		})
	}
}

// TestBackoffOfRounds: several servers that are down together do not make the waits grow faster
// than one does.
func TestBackoffOfRounds(t *testing.T) {
	const most = 1 - 1.0/(1<<30)
	b := backoff{servers: 3, lowest: DefaultMinBackoff, highest: DefaultMaxBackoff}
	var down, wait time.Duration
	for down < 8*time.Second {
		wait = b.failed(most)
		down += wait
	}
	if wait > 5*time.Second {
		t.Errorf("three servers that were down for %v are tried after %v", down, wait)
	}
	for range 100 {
		wait = b.failed(most)
	}
	if wait < DefaultMaxBackoff-time.Second || wait > DefaultMaxBackoff {
		t.Errorf("in the end the wait is %v", wait)
	}
}

func TestDoubledDoesNotOverflow(t *testing.T) {
	if got := doubled(time.Second, math.MaxInt, 30*time.Second); got != 30*time.Second {
		t.Errorf("doubled without end: %v", got)
	}
}
