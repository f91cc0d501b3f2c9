package tunnel

import (
	"testing"
	"time"
)

// The times that a peer sends are kept within reason.
func TestWelcomeTimes(t *testing.T) {
	for _, tc := range []struct{ in, want Welcome }{
		{Welcome{interval: time.Second, timeout: 3 * time.Second}, Welcome{interval: time.Second, timeout: 3 * time.Second}},
		{Welcome{interval: time.Minute, timeout: time.Second}, Welcome{interval: time.Minute, timeout: 2 * time.Minute}},
		{Welcome{}, Welcome{interval: 100 * time.Millisecond, timeout: 200 * time.Millisecond}},
		{Welcome{interval: 1000 * time.Hour, timeout: 1000 * time.Hour}, Welcome{interval: time.Hour, timeout: 24 * time.Hour}},
	} {
		if got := tc.in.bounded(); got.interval != tc.want.interval || got.timeout != tc.want.timeout {
			t.Errorf("%+v became %+v", tc.in, got)
		}
	}
}

// Only the pong of the latest ping tells the round trip.
func TestPong(t *testing.T) {
	c := newControl(nil, nil, Welcome{})
	c.number, c.sent = 2, time.Now().Add(-time.Hour)
	for number, tells := range map[uint64]bool{1: false, 2: true, 3: false} {
		told := false
		if err := c.handle(frame{kind: kindPong, number: number}, func(rtt time.Duration) { told = rtt >= time.Hour }); err != nil || told != tells {
			t.Errorf("pong %d: %v, told %t", number, err, told)
		}
	}
}
