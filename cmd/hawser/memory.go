// How much memory garbage may take: little while the server idles, and as much as
// it needs not to collect all the time while it is busy.

package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// idleGCPercent trades a little CPU for memory: the live heap of a server is
	// mostly tables that never change, and letting it double costs 30 MiB.
	idleGCPercent = 50
	// busyGCPercent is the most that a busy server lets its heap grow by, of what
	// lives. A fleet that joins would else take five times as much as it needs.
	busyGCPercent = 200
	// percentOf is what a heap is to grow by, in percent of what lives, for each MiB
	// that is allocated in a second. To mark a GiB takes a processor one second or two,
	// so that, however much lives, collections take a tenth of one, or two, until busyGCPercent
	// bounds that.
	percentOf = 1
	// paceEvery is how often that is looked at.
	paceEvery = 2 * time.Second
	// A burst is over once its room was below burstPercent for trimAfter. Then the memory that
	// it took is given back, at most once in trimEvery: that marks all that lives once more.
	// A server that is slow because it has too much to do allocates less, too.
	burstPercent = 100
	trimAfter    = 30 * time.Second
	trimEvery    = 5 * time.Minute
)

// trimMemory is called once everything has started: building the API's
// descriptions of itself leaves as much garbage as there is live heap.
func trimMemory() {
	debug.SetGCPercent(idleGCPercent)
	debug.FreeOSMemory()
}

// paceMemory keeps what collections cost in proportion until ctx is done, within
// idleGCPercent and busyGCPercent: a server of many nodes allocates in a second
// more than half of what it holds, and would mark everything it holds several
// times a second. It is to begin after trimMemory.
func paceMemory(ctx context.Context) {
	tick := time.NewTicker(paceEvery)
	defer tick.Stop()
	percent, rate, last := idleGCPercent, 0.0, allocated()
	var burst, trimmed time.Time // when there was one last, zero: none since memory was given back; and when that was
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := allocated()
		// A lull is believed only by halves, so that bursts do not each begin with
		// little room.
		rate = max(float64(now-last)/paceEvery.Seconds(), rate/2)
		last = now
		if next := gcPercent(percent, rate); next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
		switch {
		case percent >= burstPercent:
			burst = time.Now()
		case !burst.IsZero() && time.Since(burst) >= trimAfter && time.Since(trimmed) >= trimEvery:
			debug.FreeOSMemory() // the runtime by itself takes minutes
			burst, trimmed = time.Time{}, time.Now()
		}
	}
}

// gcPercent is the percentage by which a heap is to grow before it is collected,
// if rate bytes are allocated in a second. It stays at the one there is, now, if
// that is nearly right: setting it stops the world.
func gcPercent(now int, rate float64) int {
	want := int(min(max(percentOf*rate/(1<<20), idleGCPercent), busyGCPercent))
	bound := want == idleGCPercent || want == busyGCPercent
	if near := want > now*4/5 && want < now*5/4; near && !bound {
		return now
	}
	return want
}

// allocated is how many bytes have been allocated since the start.
func allocated() uint64 {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}
