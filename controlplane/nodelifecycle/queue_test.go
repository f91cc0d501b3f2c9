package nodelifecycle

// Tests of the queue of a zone, against a token bucket and a list.

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

func TestLimiter(t *testing.T) {
	start := time.Unix(1e9, 0)
	type step struct {
		at   time.Duration
		rate float32 // set before; -1: not
		want bool
	}
	for _, tc := range []struct {
		name  string
		rate  float32
		steps []step
	}{
		{"one at once, then one each ten seconds", 0.1, []step{{0, -1, true}, {0, -1, false}, {10*second - 1, -1, false}, {10 * second, -1, true}, {19 * second, -1, false}}},
		{"no more than one is saved", 0.1, []step{{time.Hour, -1, true}, {time.Hour, -1, false}}},
		{"same rate changes nothing", 0.1, []step{{0, -1, true}, {9 * second, 0.1, false}, {10 * second, -1, true}}},
		{"slower, full", 0.1, []step{{0, 0.01, true}, {99 * second, -1, false}, {100 * second, -1, true}}},
		{"slower, empty", 0.1, []step{{0, -1, true}, {5 * second, 0.01, false}, {105*second - 1, -1, false}, {105 * second, -1, true}}},
		{"faster, empty", 0.01, []step{{0, -1, true}, {50 * second, 0.1, false}, {60 * second, -1, true}}},
		{"stopped", 0.1, []step{{0, 0, false}, {time.Hour, -1, false}}},
		{"stopped and started", 0.1, []step{{0, 0, false}, {time.Hour, 0.1, false}, {time.Hour + 10*second, -1, true}}},
		{"never at all", 0, []step{{time.Hour, -1, false}, {time.Hour, 1, false}, {time.Hour + second, -1, true}}},
		{"next to never", math.SmallestNonzeroFloat32, []step{{0, -1, true}, {1e6 * time.Hour, -1, false}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := limiter{rate: tc.rate}
			for i, s := range tc.steps {
				now := start.Add(s.at)
				if s.rate >= 0 {
					l.set(s.rate, now)
				}
				if got := l.take(now); got != s.want {
					t.Errorf("step %d at %v: %v", i, s.at, got)
				}
			}
		})
	}
}

func TestQueue(t *testing.T) {
	now := time.Unix(1e9, 0)
	q := newZoneQueue(1)
	next := func(want string) {
		t.Helper()
		now = now.Add(second)
		if got, ok := q.take(now); got != want || ok != (want != "") {
			t.Errorf("took %q %v, want %q", got, ok, want)
		}
	}
	for _, n := range []string{"a", "b", "a", "c", "d"} {
		q.add(n, now)
	}
	if q.size() != 4 {
		t.Errorf("size %d", q.size())
	}
	next("a")
	q.add("a", now) // has been released
	q.remove("c")
	next("b")
	q.retry("b", now.Add(10*second)) // not due before the next
	next("d")
	q.forget("a")
	q.add("a", now)
	q.forget("a") // waits: keeps its place
	next("a")
	next("")
	now = now.Add(10 * second)
	next("b")
	q.remove("b")
	q.retry("b", now) // removed meanwhile
	next("")
	if q.size() != 0 || len(q.places) != 2 {
		t.Errorf("left: %v %v", q.entries, q.places)
	}
}

// bucket is the model of a limiter: the bucket of others, exchanged as Kubernetes
// exchanges its own.
type bucket struct {
	rate float32
	l    *rate.Limiter // nil: never
}

func newBucket(r float32, now time.Time) bucket {
	b := bucket{rate: r}
	if r > 0 {
		b.l = rate.NewLimiter(rate.Limit(r), 1)
		b.l.AllowN(now.Add(-24*time.Hour), 0)
	}
	return b
}

func (b *bucket) take(now time.Time) bool { return b.l != nil && b.l.AllowN(now, 1) }

func (b *bucket) set(r float32, now time.Time) {
	if r == b.rate {
		return
	}
	had := b.take(now)
	*b = newBucket(r, now)
	if !had {
		b.take(now)
	}
}

// FuzzQueue does to a queue and to a model what the input says and compares.
func FuzzQueue(f *testing.F) {
	f.Add([]byte{0x00, 0x01, 0x02, 0x50, 0x41, 0x50, 0x60, 0x50, 0x10, 0x23, 0x33, 0x70, 0x50})
	f.Add([]byte{0x00, 0x50, 0x20, 0x00, 0x42, 0x50, 0x30, 0x52, 0x61, 0x50})
	f.Fuzz(func(t *testing.T, ops []byte) {
		// Rates and times that are exact in binary: the model's bucket counts in
		// floating point.
		rates := []float32{1, 0.5, 0, 0.25}
		now := time.Unix(1e9, 0)
		q, b := newZoneQueue(rates[0]), newBucket(rates[0], now)
		var entries []waiting
		done := map[string]bool{}
		waits := func(n string) bool {
			return slices.ContainsFunc(entries, func(w waiting) bool { return w.node == n })
		}
		insert := func(n string, due time.Time) {
			entries = append(entries, waiting{n, due})
			slices.SortStableFunc(entries, func(a, b waiting) int { return a.due.Compare(b.due) })
		}
		var last time.Time // when one was released
		for i, op := range ops {
			arg := int(op & 0xf)
			node := fmt.Sprint("n", arg%5)
			switch op >> 4 & 7 {
			case 0, 6:
				q.add(node, now)
				if !waits(node) && !done[node] {
					insert(node, now)
				}
			case 1:
				q.forget(node)
				delete(done, node)
			case 2:
				q.remove(node)
				entries = slices.DeleteFunc(entries, func(w waiting) bool { return w.node == node })
				delete(done, node)
			case 3:
				due := now.Add(time.Duration(arg) * second / 4)
				q.retry(node, due)
				if done[node] {
					delete(done, node)
					insert(node, due)
				}
			case 4:
				now = now.Add(time.Duration(arg) * second / 4)
			case 7:
				q.set(rates[arg%4], now)
				b.set(rates[arg%4], now)
			case 5:
				want := ""
				if len(entries) > 0 && b.take(now) && !now.Before(entries[0].due) {
					want, entries = entries[0].node, entries[1:]
					done[want] = true
					if gap := now.Sub(last); gap < second {
						t.Fatalf("step %d: two within %v", i, gap)
					}
					last = now
				}
				if got, ok := q.take(now); got != want || ok != (want != "") {
					t.Fatalf("step %d: took %q %v, the model %q", i, got, ok, want)
				}
			}
			if q.size() != len(entries) {
				t.Fatalf("step %d: %d wait, in the model %d", i, q.size(), len(entries))
			}
		}
	})
}
