package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"
)

func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		name string
		now  int
		rate float64
		want int
	}{
		{"idle", 50, 1 * mib, 50},
		{"busy", 50, 80 * mib, 80},
		{"very busy", 100, 1000 * mib, 200},
		{"nearly the same", 100, 85 * mib, 100},
		{"much less", 100, 60 * mib, 60},
		{"idle again, from near", 55, 0, 50},
		{"nearly the most", 190, 1000 * mib, 200},
	} {
		if got := gcPercent(tc.now, tc.rate); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// A server that becomes busy is given room, and gives it back when it idles.
func TestPaceMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(idleGCPercent))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			paceMemory(ctx)
		}()
		synctest.Wait()
		before := forced()
		for range 4 { // bursts, and pauses as of a server that does not get its turn
			for range 256 {
				runtime.KeepAlive(make([]byte, 1<<20))
			}
			<-time.After(paceEvery)
			synctest.Wait()
			if busy := setting(); busy <= idleGCPercent {
				t.Errorf("%d%% after 128 MiB a second", busy)
			}
			<-time.After(trimAfter - 2*paceEvery)
			synctest.Wait()
			if idle := setting(); idle != idleGCPercent {
				t.Errorf("%d%% after nothing was done, want %d%%", idle, idleGCPercent)
			}
		}
		if n := forced() - before; n != 0 {
			t.Errorf("%d collections more than the memory needs while there are bursts", n)
		}
		<-time.After(trimAfter)
		synctest.Wait()
		if n := forced() - before; n != 1 {
			t.Errorf("%d collections after the bursts, want one that gives the memory back", n)
		}
		cancel()
		<-done
	})
}

// forced is how many collections there were that the memory did not need.
func forced() uint64 {
	samples := []metrics.Sample{{Name: "/gc/cycles/forced:gc-cycles"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}

// setting is the percentage in force.
func setting() int {
	now := debug.SetGCPercent(idleGCPercent)
	debug.SetGCPercent(now)
	return now
}
