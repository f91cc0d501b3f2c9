// Turns: how much of the machine bulk may take.

package qmux

import (
	"runtime"
	"sync/atomic"
	"time"
)

// alert is for how long after something little has gone by more of that is expected.
const alert = 100 * time.Millisecond

var (
	// bulkTurns is held by whoever writes or delivers a record of bulk while little is
	// expected: all processors but one may. What is small finds that one idle, and an
	// idle processor asks the network what has come; busy ones leave that to the
	// runtime, which looks every ten milliseconds.
	bulkTurns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))

	began    = time.Now()
	littleAt atomic.Int64 // when something little has gone by last, since began
)

// noteLittle notes that something little goes by.
func noteLittle() { littleAt.Store(int64(time.Since(began))) }

// beginBulk waits for a turn, if it must. Whoever gets one calls endBulk soon, and waits
// for nothing before that: neither for a mutex nor for another turn.
func beginBulk() bool {
	if time.Since(began)-time.Duration(littleAt.Load()) > alert {
		return false
	}
	bulkTurns <- struct{}{}
	return true
}

func endBulk() { <-bulkTurns }
