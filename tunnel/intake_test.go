// Tests of the bound for what lies unread.

package tunnel

import (
	"math"
	"testing"
)

func TestIntakeLimit(t *testing.T) {
	for memory, want := range map[int64]int64{math.MaxInt64: 1 << 30, 256 << 20: 64 << 20, 16 << 30: 4 << 30, 0: 1} {
		if got := intakeLimit(memory); got != want {
			t.Errorf("with a memory limit of %d: %d, want %d", memory, got, want)
		}
	}
	if (Options{}).Shared() != ProcessIntake() {
		t.Error("sessions do not share one")
	}
	if one := NewIntake(5); (Options{Intake: one}).Shared() != one || one.Limit() != 5 {
		t.Error("a session's own is not its own")
	}
}

func TestIntakeGrants(t *testing.T) {
	i := NewIntake(1000)
	for step, tc := range []struct {
		grant   func(int) bool
		n       int
		want    bool
		granted int64
	}{
		{i.Begin, 250, true, 250},
		{i.Begin, 1, false, 250}, // a quarter is for new streams
		{i.Grow, 250, true, 500},
		{i.Grow, 1, false, 500}, // half of it is for windows
	} {
		if ok := tc.grant(tc.n); ok != tc.want || i.Granted() != tc.granted {
			t.Errorf("step %d: %t, granted: %d", step, ok, i.Granted())
		}
	}
	i.Return(400)
	if i.Widen(51) || !i.Widen(50) || i.Granted() != 150 {
		t.Errorf("a window has not got an eighth of what was left; granted: %d", i.Granted())
	}
	i.Return(150)
	if i.AddUnread(500); i.Scarce() || !i.Begin(1) {
		t.Error("half of the limit lies unread, and it is scarce")
	}
	if i.AddUnread(1); !i.Scarce() || i.Begin(1) || i.Grow(1) {
		t.Error("more than half of the limit lies unread, and it is not scarce")
	}
	i.AddUnread(-501)
	i.Return(1)
	if i.Unread() != 0 || i.Granted() != 0 || i.Scarce() {
		t.Errorf("in the end: %d unread, %d granted", i.Unread(), i.Granted())
	}
}
