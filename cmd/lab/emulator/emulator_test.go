package emulator

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newLink(t testing.TB, s Shape, seed uint64) *Link {
	t.Helper()
	l, err := New(s, seed)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// numbered is a packet of a size that carries a number.
func numbered(n, size int) []byte {
	p := make([]byte, size)
	binary.BigEndian.PutUint32(p, uint32(n))
	return p
}

// arrival is a packet's number and when it was due.
type arrival struct {
	n  int
	at time.Duration
}

// drain returns all that a link holds, in the order in which it gives it away.
func drain(t testing.TB, l *Link) []arrival {
	t.Helper()
	var all []arrival
	for {
		due, ok := l.Next()
		if !ok {
			return all
		}
		if p := l.Due(due.Add(-1)); p != nil {
			t.Fatalf("packet %d was given away before it was due", binary.BigEndian.Uint32(p))
		}
		p := l.Due(due)
		if p == nil {
			t.Fatal("nothing was due when Next said so")
		}
		all = append(all, arrival{int(binary.BigEndian.Uint32(p)), due.Sub(start)})
	}
}

func numbers(all []arrival) []int {
	var n []int
	for _, a := range all {
		n = append(n, a.n)
	}
	return n
}

func TestZeroShapeIsAWire(t *testing.T) {
	l := newLink(t, Shape{}, 1)
	for i := range 100 {
		l.Send(start, numbered(i, 1500))
	}
	for i, a := range drain(t, l) {
		if a.n != i || a.at != 0 {
			t.Fatalf("packet %d arrived as number %d after %v", a.n, i, a.at)
		}
	}
	if c := l.Counts(); c != (Counts{Sent: 100, Delivered: 100}) {
		t.Errorf("counts %+v", c)
	}
	if l.bytes != 0 {
		t.Errorf("an empty link says that it holds %d bytes", l.bytes)
	}
}

func TestDelay(t *testing.T) {
	l := newLink(t, Shape{Delay: 50 * time.Millisecond}, 1)
	for i := range 10 {
		l.Send(start.Add(time.Duration(i)*time.Millisecond), numbered(i, 100))
	}
	for i, a := range drain(t, l) {
		if want := time.Duration(50+i) * time.Millisecond; a.n != i || a.at != want {
			t.Errorf("packet %d after %v, want packet %d after %v", a.n, a.at, i, want)
		}
	}
}

// TestRate counts what has arrived by a time: never more than the rate allows.
func TestRate(t *testing.T) {
	const rate, size = 125_000, 1250 // 1 Mbit/s, 10 ms a packet
	l := newLink(t, Shape{Rate: rate, Queue: 1 << 20, Delay: 20 * time.Millisecond}, 1)
	for i := range 100 {
		l.Send(start, numbered(i, size))
	}
	for i, a := range drain(t, l) {
		if want := 20*time.Millisecond + time.Duration(i+1)*10*time.Millisecond; a.at != want {
			t.Fatalf("packet %d after %v, want %v", i, a.at, want)
		}
	}
	// A wire that has been idle does not save up.
	l.Send(start.Add(time.Hour), numbered(0, size))
	l.Send(start.Add(time.Hour), numbered(1, size))
	if all := drain(t, l); all[1].at-all[0].at != 10*time.Millisecond {
		t.Errorf("after an idle hour two packets arrived %v apart", all[1].at-all[0].at)
	}
}

func TestQueueDropsTail(t *testing.T) {
	l := newLink(t, Shape{Rate: 125_000, Queue: 12_500}, 1)
	for i := range 50 {
		l.Send(start, numbered(i, 1250))
	}
	all := drain(t, l)
	if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(numbers(all), want) {
		t.Errorf("got %v, want the first ten", numbers(all))
	}
	if c := l.Counts(); c.Overflowed != 40 {
		t.Errorf("%d overflowed, want 40", c.Overflowed)
	}
	// The queue has drained by now.
	l.Send(start.Add(time.Second), numbered(99, 1250))
	if all := drain(t, l); len(all) != 1 || all[0].n != 99 {
		t.Errorf("after the queue had drained: %v", all)
	}
}

func TestDefaultQueue(t *testing.T) {
	for _, c := range []struct {
		shape Shape
		want  int
	}{
		{Shape{Rate: 1000}, minQueue},
		{Shape{Rate: 12_500_000, Delay: 50 * time.Millisecond}, 1_250_000},
		{Shape{Rate: math.MaxInt64, Delay: time.Hour}, MaxHeld},
		{Shape{Rate: 1000, Queue: 5}, 5},
		{Shape{Rate: 1000, Queue: math.MaxInt}, MaxHeld},
	} {
		if got := c.shape.queue(); got != c.want {
			t.Errorf("%+v: queue of %d bytes, want %d", c.shape, got, c.want)
		}
	}
}

func TestHeldIsBounded(t *testing.T) {
	for _, size := range []int{256, 1500, maxPacket} {
		l := newLink(t, Shape{Delay: time.Hour, Duplicate: 1}, 1)
		p := numbered(0, size)
		for range 2 * MaxHeld / (size + overhead) {
			l.Send(start, p)
		}
		if l.bytes > MaxHeld {
			t.Errorf("packets of %d bytes: holds %d bytes, more than %d", size, l.bytes, MaxHeld)
		}
		if l.Counts().Overflowed == 0 {
			t.Errorf("packets of %d bytes: none was refused", size)
		}
	}
}

func TestChance(t *testing.T) {
	const n = 10_000
	for _, c := range []struct {
		name  string
		shape Shape
		count func(Counts) uint64
	}{
		{"loss", Shape{Loss: 0.1}, func(c Counts) uint64 { return c.Lost }},
		{"duplicate", Shape{Duplicate: 0.1}, func(c Counts) uint64 { return c.Duplicated }},
		{"reorder", Shape{Reorder: 0.1}, func(c Counts) uint64 { return c.Reordered }},
		{"corrupt", Shape{Corrupt: 0.1}, func(c Counts) uint64 { return c.Corrupted }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t, c.shape, 7)
			for i := range n {
				l.Send(start, numbered(i, 100))
			}
			all := drain(t, l)
			got := c.count(l.Counts())
			if got < n/10-200 || got > n/10+200 { // six standard deviations
				t.Errorf("%d of %d, want about a tenth", got, n)
			}
			if cs := l.Counts(); uint64(len(all)) != n-cs.Lost+cs.Duplicated {
				t.Errorf("%d arrived; counts %+v", len(all), cs)
			}
		})
	}
}

func TestLossOfAllAndOfNone(t *testing.T) {
	l := newLink(t, Shape{Loss: 1}, 1)
	for i := range 100 {
		l.Send(start, numbered(i, 100))
	}
	if all := drain(t, l); len(all) != 0 {
		t.Errorf("%d packets passed a link that loses all", len(all))
	}
}

// TestCorrupt turns one bit of a packet over, and tells.
func TestCorrupt(t *testing.T) {
	const n = 1000
	l := newLink(t, Shape{Corrupt: 0.5}, 3)
	for range n {
		l.Send(start, make([]byte, 100))
	}
	corrupted := uint64(0)
	for p := l.Due(start); p != nil; p = l.Due(start) {
		turned := 0
		for _, b := range p {
			turned += bits.OnesCount8(b)
		}
		if turned > 1 {
			t.Fatalf("%d bits of a packet are turned over", turned)
		}
		corrupted += uint64(turned)
	}
	if got := l.Counts().Corrupted; got != corrupted || corrupted == 0 || corrupted == n {
		t.Errorf("%d of %d packets are corrupted, %d are counted", corrupted, n, got)
	}
	l.Send(start, nil) // nothing to be turned over
}

// TestJitter varies the delay within its bounds and keeps the order.
func TestJitter(t *testing.T) {
	const delay, jitter = 50 * time.Millisecond, 20 * time.Millisecond
	l := newLink(t, Shape{Delay: delay, Jitter: jitter}, 3)
	for i := range 1000 {
		l.Send(start.Add(time.Duration(i)*100*time.Millisecond), numbered(i, 100))
	}
	seen := map[time.Duration]bool{}
	for i, a := range drain(t, l) {
		d := a.at - time.Duration(i)*100*time.Millisecond
		if a.n != i || d < delay-jitter || d > delay+jitter {
			t.Fatalf("packet %d in place %d after %v", a.n, i, d)
		}
		seen[d] = true
	}
	if len(seen) < 900 {
		t.Errorf("only %d different delays of 1000", len(seen))
	}
	for i := range 1000 { // so close together that the jitter would turn them round
		l.Send(start.Add(time.Hour), numbered(i, 100))
	}
	if got := numbers(drain(t, l)); !slices.IsSorted(got) {
		t.Error("jitter alone has reordered packets")
	}
}

func TestReorder(t *testing.T) {
	l := newLink(t, Shape{Reorder: 0.5, Hold: 3 * time.Millisecond}, 3)
	for i := range 100 {
		l.Send(start.Add(time.Duration(i)*time.Millisecond), numbered(i, 100))
	}
	all := drain(t, l)
	if len(all) != 100 || slices.IsSorted(numbers(all)) {
		t.Errorf("%d packets, in order: %v", len(all), slices.IsSorted(numbers(all)))
	}
	for _, a := range all {
		if late := a.at - time.Duration(a.n)*time.Millisecond; late != 0 && late != 3*time.Millisecond {
			t.Errorf("packet %d came %v late", a.n, late)
		}
	}
}

func TestMTU(t *testing.T) {
	l := newLink(t, Shape{MTU: 1280}, 1)
	l.Send(start, numbered(1, 1281))
	l.Send(start, numbered(2, 1280))
	if got := numbers(drain(t, l)); !slices.Equal(got, []int{2}) {
		t.Errorf("passed: %v, want the packet of 1280 bytes alone", got)
	}
	if l.Counts().TooLarge != 1 {
		t.Errorf("counts %+v", l.Counts())
	}
}

func TestSameSeedSameFates(t *testing.T) {
	shape := Shape{Delay: 30 * time.Millisecond, Jitter: 20 * time.Millisecond, Loss: 0.05, Duplicate: 0.05, Reorder: 0.05}
	fates := func(seed uint64) []arrival {
		l := newLink(t, shape, seed)
		for i := range 500 {
			l.Send(start.Add(time.Duration(i)*time.Millisecond), numbered(i, 100))
		}
		return drain(t, l)
	}
	if !slices.Equal(fates(7), fates(7)) {
		t.Error("the same seed gave different fates")
	}
	if slices.Equal(fates(7), fates(8)) {
		t.Error("different seeds gave the same fates")
	}
}

func TestShapeChangesUnderWay(t *testing.T) {
	l := newLink(t, Shape{Delay: 100 * time.Millisecond}, 1)
	l.Send(start, numbered(0, 100))
	if err := l.SetShape(Shape{}); err != nil {
		t.Fatal(err)
	}
	l.Send(start, numbered(1, 100))
	want := []arrival{{0, 100 * time.Millisecond}, {1, 100 * time.Millisecond}}
	if got := drain(t, l); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: what follows must not overtake", got, want)
	}
}

func TestCheckNamesTheField(t *testing.T) {
	for name, s := range map[string]Shape{
		"loss": {Loss: 1.1}, "duplicate": {Duplicate: -0.1}, "corrupt": {Corrupt: 2}, "reorder": {Reorder: math.NaN()},
		"delay": {Jitter: -1}, "rate": {Rate: -1},
	} {
		if _, err := New(s, 1); err == nil || !bytes.Contains([]byte(err.Error()), []byte(name)) {
			t.Errorf("%+v: error %v, want one that names %s", s, err, name)
		}
		l := newLink(t, Shape{}, 1)
		if l.SetShape(s) == nil {
			t.Errorf("%+v was taken by SetShape", s)
		}
	}
}

func BenchmarkSendAndDue(b *testing.B) {
	l := newLink(b, Shape{Delay: time.Millisecond, Jitter: time.Millisecond / 2}, 1)
	p, now := make([]byte, 1500), start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Microsecond)
		l.Send(now, p)
		for l.Due(now) != nil {
		}
	}
}
