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
	// lives. What collections cost goes with the inverse, so beyond this there is
	// little left to save.
	busyGCPercent = 400
	// collectEvery is how far apart the collections of a busy server are to be.
	collectEvery = time.Second
	// paceEvery is how often that is looked at.
	paceEvery = 2 * time.Second
)

// trimMemory is called once everything has started: building the API's
// descriptions of itself leaves as much garbage as there is live heap.
func trimMemory() {
	debug.SetGCPercent(idleGCPercent)
	debug.FreeOSMemory()
}

// paceMemory keeps collections about collectEvery apart until ctx is done, within
// idleGCPercent and busyGCPercent: a server of many nodes allocates in a second
// more than half of what it holds, and would mark everything it holds several
// times a second. It is to begin after trimMemory.
func paceMemory(ctx context.Context) {
	tick := time.NewTicker(paceEvery)
	defer tick.Stop()
	percent, rate, last := idleGCPercent, 0.0, readHeap()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := readHeap()
		// A lull is believed only by halves, so that bursts do not each begin with
		// little room.
		rate = max(float64(now.allocated-last.allocated)/paceEvery.Seconds(), rate/2)
		last = now
		if next := gcPercent(percent, rate, float64(now.live)); next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
	}
}

// gcPercent is the percentage by which a heap that has live bytes, and allocates
// rate bytes a second, is to grow before it is collected. It stays at the one
// there is, now, if that is nearly right: setting it stops the world.
func gcPercent(now int, rate, live float64) int {
	if live <= 0 {
		return now
	}
	want := int(min(max(100*rate*collectEvery.Seconds()/live, idleGCPercent), busyGCPercent))
	bound := want == idleGCPercent || want == busyGCPercent
	if near := want > now*4/5 && want < now*5/4; near && !bound {
		return now
	}
	return want
}

// A heap is what the runtime says of its own.
type heap struct {
	allocated uint64 // bytes, since the start
	live      uint64 // bytes that the last collection left
}

func readHeap() heap {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	return heap{allocated: samples[0].Value.Uint64(), live: samples[1].Value.Uint64()}
}
