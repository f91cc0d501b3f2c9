// What links hold: nothing while idle, and within the budget while parked.

package link

import (
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// Ten thousand rings that are as full as they get stay within their budget, and
// each of them takes something.
func TestBudgetShared(t *testing.T) {
	const (
		links = 10000
		limit = 16 << 20
	)
	budget := NewBudget(limit)
	rings := make([]ring, links)
	held, data := 0, make([]byte, 1<<20)
	for i := range rings {
		r := &rings[i]
		*r = ring{limit: DefaultBuffer, budget: budget}
		if r.append(data) == 0 {
			t.Fatalf("ring %d takes nothing", i)
		}
		for r.append(data) > 0 { // until it is full
		}
		held += r.held
	}
	if used := budget.Used(); used > limit || used < limit-chunkSize || held > limit+links*smallChunk {
		t.Errorf("budget %d, held %d", used, held)
	}
	for i := range rings {
		rings[i].drop()
	}
	if used := budget.Used(); used != 0 {
		t.Errorf("in the end: %d", used)
	}
}

// Parked links keep to the budget as well, with whoever writes waiting, and give
// it back.
func TestBudgetParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			links = 50
			limit = 1 << 20
		)
		budget := NewBudget(limit)
		r := newRig(t, Config{Budget: budget})
		r.registry.conf.MaxPerIdentity = links
		var all []*Link
		for range links {
			a, b := r.pair(t, Config{})
			all = append(all, a, b)
		}
		r.set(func() {
			r.down = errors.New("no way")
			for _, c := range r.near {
				_ = c.Abort() // never fails
			}
		})
		data := make([]byte, 1<<20)
		for i := 1; i < len(all); i += 2 {
			_ = all[i].SetWriteDeadline(time.Now().Add(time.Millisecond)) // fails once closed only
			if n, err := all[i].Write(data); n == 0 || n == len(data) || !isTimeout(err) {
				t.Errorf("wrote %d, %v", n, err)
			}
		}
		if used := budget.Used(); used > limit {
			t.Errorf("budget: %d", used)
		}
		r.close(t, all...)
		if used := budget.Used(); used != 0 {
			t.Errorf("in the end: %d", used)
		}
	})
}

// An idle link costs its goroutines, its reader and little else, whatever it has
// carried before.
func TestIdleMemory(t *testing.T) {
	const (
		pairs = 200
		limit = 20 << 10 // an end with two goroutines, and its part of the connection in memory
	)
	r := newRig(t, Config{})
	r.registry.conf.MaxPerIdentity = pairs
	usage := func() uint64 {
		var m runtime.MemStats
		for range 3 { // pools are emptied by the second
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := usage()
	var links []*Link
	data := make([]byte, smallChunk)
	for range pairs {
		a, b := r.pair(t, Config{})
		links = append(links, a, b)
		send(t, a, string(data))
		expect(t, b, string(data))
		send(t, b, "done")
		expect(t, a, "done")
	}
	for _, l := range links {
		for l.Stats().Queued > 0 { // acknowledgements come when somebody reads
			_ = l.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // fails once closed only
			if _, err := l.Read(data); !isTimeout(err) {
				t.Fatalf("read: %v", err)
			}
		}
		_ = l.SetReadDeadline(time.Time{}) // likewise
		if l.mu.Lock(); l.out.ring.held+l.in.spill.held > 0 {
			t.Errorf("holds %d and %d bytes of chunks", l.out.ring.held, l.in.spill.held)
		}
		l.mu.Unlock()
	}
	listen(r, links...)
	each := (int64(usage()) - int64(before)) / int64(len(links))
	t.Logf("%d bytes", each)
	if each > limit {
		t.Errorf("an idle end holds %d bytes", each)
	}
	runtime.KeepAlive(data)
	r.close(t, links...)
}
