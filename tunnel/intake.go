// Intake: how much a process may have received that nobody has read yet.

package tunnel

import (
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// DefaultIntake is the limit of a process's Intake, in bytes, if GOMEMLIMIT is not
// set. If it is, the limit is a quarter of that.
const DefaultIntake = 1 << 30

// An Intake is what the sessions that share it may have received for their streams
// and not yet handed to who reads them, in bytes. It bounds the windows that peers
// are given, and cuts off nobody.
//
// Each stream has a small window that it needs to go on at all: see package qmux. What
// windows have beyond that is granted here. New streams are granted a quarter of the
// limit together, and windows that grow because they are in the way up to half of it.
// The other half is for the small windows. When more than half of the limit lies
// unread, nothing is granted, and a stream that is read gives its window back, except
// for a last part by which it still goes on.
//
// All methods may be called at the same time.
type Intake struct {
	limit   int64
	granted atomic.Int64
	unread  atomic.Int64
}

// NewIntake makes an Intake with a limit in bytes; zero means the default.
func NewIntake(limit int64) *Intake {
	if limit <= 0 {
		limit = intakeLimit(debug.SetMemoryLimit(-1))
	}
	return &Intake{limit: limit}
}

// intakeLimit is the default for a process whose memory limit is known, or is
// math.MaxInt64 for none.
func intakeLimit(memory int64) int64 {
	if memory == math.MaxInt64 {
		return DefaultIntake
	}
	return max(memory/4, 1)
}

// ProcessIntake is the one that all sessions share that are not given another. It is
// made when first used.
var ProcessIntake = sync.OnceValue(func() *Intake { return NewIntake(0) })

// Limit is how many bytes may lie unread. See package qmux for what each stream may
// have beyond.
func (i *Intake) Limit() int64 { return i.limit }

// Unread is how many bytes lie unread.
func (i *Intake) Unread() int64 { return i.unread.Load() }

// Granted is how many bytes windows have been granted and have not given back.
func (i *Intake) Granted() int64 { return i.granted.Load() }

// Scarce says whether windows are to be given back.
func (i *Intake) Scarce() bool { return i.unread.Load() > i.limit/2 }

// Begin grants n bytes to the window of a new stream, or nothing.
func (i *Intake) Begin(n int) bool { return i.grant(int64(n), i.limit/4) }

// Grow grants n bytes to a window that is in the way, or nothing.
func (i *Intake) Grow(n int) bool { return i.grant(int64(n), i.limit/2) }

func (i *Intake) grant(n, limit int64) bool {
	if i.Scarce() {
		return false
	}
	if i.granted.Add(n) > limit {
		i.granted.Add(-n)
		return false
	}
	return true
}

// Return takes back n bytes that have been granted.
func (i *Intake) Return(n int) { i.granted.Add(-int64(n)) }

// Received notes that n bytes have come, and Read that they were read or thrown away.
func (i *Intake) Received(n int) { i.unread.Add(int64(n)) }

// Read is the opposite of Received.
func (i *Intake) Read(n int) { i.unread.Add(-int64(n)) }
