package crilog

import (
	"testing"
	"time"
)

// TestClockIsSetBack: lines keep the order of their times while a clock is set back by little, and go
// back with it if that is much.
func TestClockIsSetBack(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	w := &Writer{}
	for _, step := range []struct {
		now  time.Duration // after at
		want time.Duration
	}{
		{0, 0},
		{0, 1},
		{time.Second, time.Second},
		{0, time.Second + 1},
		{-time.Second, time.Second + 2},
		{2 * time.Second, 2 * time.Second},
		{-time.Hour, -time.Hour},
		{-time.Hour, -time.Hour + 1},
		{0, 0},
	} {
		if got := w.timeLocked(at.Add(step.now)).Sub(at); got != step.want {
			t.Errorf("at %v a line is from %v, want %v", step.now, got, step.want)
		}
	}
	w = &Writer{last: time.Now().Add(30 * time.Second).Round(0)} // before the clock was set back
	if got := w.timeLocked(time.Now()); !got.After(time.Now().Add(20 * time.Second)) {
		t.Errorf("the line after it is from %v", got)
	}
}
