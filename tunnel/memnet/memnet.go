// Package memnet has connections in memory, for tests, for listeners whose connections come
// from the same process, and for the bounds and deadlines of the streams of overssh and
// overh2.
//
// Its connections behave as TCP connections do: they buffer a bounded number of
// bytes, half-close, reset, and keep deadlines. They are built on condition
// variables and timers only, so that inside a testing/synctest bubble a blocked
// Read is durably blocked. On top of that a connection can be stalled, as a
// dead NAT entry would stall it: bytes are taken and arrive nowhere.
//
// It is not a simulator: there is no delay, no loss and no packet network.
package memnet

// An Addr is the address of an end; any string will do.
type Addr string

// Network is "mem".
func (Addr) Network() string { return "mem" }

func (a Addr) String() string { return string(a) }
