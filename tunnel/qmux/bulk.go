// Bulk: while small data is expected, bulk leaves one processor idle for it.

package qmux

import (
	"runtime"
	"sync/atomic"
	"time"
)

// smallExpected is for how long small data is expected after the last of it.
const smallExpected = 100 * time.Millisecond

var (
	// bulkTurns is a semaphore for goroutines that write or deliver bulk while small data is
	// expected: there is one turn fewer than processors. An idle processor polls the network
	// at once; if all are busy the runtime polls it every ten milliseconds.
	bulkTurns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))

	processStart = time.Now()
	lastSmall    atomic.Int64 // when small data last passed, since processStart
)

// noteSmall notes that small data passes.
func noteSmall() { lastSmall.Store(int64(time.Since(processStart))) }

// beginBulk waits for a turn if small data is expected. If it returns true the caller calls
// endBulk soon, and waits neither for a mutex nor for another turn before that.
func beginBulk() bool {
	if time.Since(processStart)-time.Duration(lastSmall.Load()) > smallExpected {
		return false
	}
	bulkTurns <- struct{}{}
	return true
}

func endBulk() { <-bulkTurns }
