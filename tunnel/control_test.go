package tunnel

import (
	"testing"
	"time"
)

// Only the pong of the latest ping tells the round trip.
func TestPong(t *testing.T) {
	c := newControl(nil, nil, Welcome{})
	c.number, c.sent = 2, time.Now().Add(-time.Hour)
	for number, tells := range map[uint64]bool{1: false, 2: true, 3: false} {
		told := false
		pong, err := appendFrame(nil, frame{kind: kindPong, number: number})
		if err != nil {
			t.Fatal(err)
		}
		err = c.take(t.Context(), &frameReader{in: pong}, func(rtt time.Duration) { told = rtt >= time.Hour })
		if err != nil || told != tells {
			t.Errorf("pong %d: %v, told %t", number, err, told)
		}
	}
}
