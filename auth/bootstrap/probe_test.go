// Tests of what is found out about a server before a machine joins.

package bootstrap

import (
	"testing"
	"time"
)

// TestAhead: neither the whole seconds of a Date nor the time that a request takes is a difference
// of clocks.
func TestAhead(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 900e6, time.UTC)
	for name, tt := range map[string]struct {
		clock, there, took time.Duration // the server's clock, when it answers, the whole request
		want               time.Duration
	}{
		"the same clock":          {0, 10 * time.Millisecond, 20 * time.Millisecond, 0},
		"in the next second":      {0, 190 * time.Millisecond, 200 * time.Millisecond, 0},
		"a slow link there":       {0, 5 * time.Second, 5 * time.Second, 0},
		"a slow link back":        {0, 0, 5 * time.Second, 0},
		"an hour ahead":           {time.Hour, 0, 0, time.Hour},
		"an hour behind":          {-time.Hour, 0, 0, -time.Hour},
		"an hour ahead and slow":  {time.Hour, 2 * time.Second, 4 * time.Second, time.Hour},
		"two seconds ahead":       {2 * time.Second, 0, 0, 2 * time.Second},
		"less than the trip took": {2 * time.Second, 0, 5 * time.Second, 0},
	} {
		date := start.Add(tt.there + tt.clock).Truncate(time.Second)
		got := ahead(date, start, start.Add(tt.took))
		if (got-tt.want).Abs() > time.Second || (got == 0) != (tt.want == 0) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
