// Giving back the memory that only the start needed.

package main

import "runtime/debug"

// idleGCPercent trades a little CPU for memory: the live heap of a server is
// mostly tables that never change, and letting it double costs 30 MiB.
const idleGCPercent = 50

// trimMemory is called once everything has started: building the API's
// descriptions of itself leaves as much garbage as there is live heap.
func trimMemory() {
	debug.SetGCPercent(idleGCPercent)
	debug.FreeOSMemory()
}
