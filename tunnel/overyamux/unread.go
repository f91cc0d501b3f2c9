// Unread: what the library holds of a session's streams, which it does not tell.

package overyamux

import (
	"errors"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// leastUnread is what a session may have unread in any case, and mostUnread what it
	// may at most. What is between comes from the Intake, by unreadStep.
	leastUnread = 2 << 20
	mostUnread  = 64 << 20
	unreadStep  = 1 << 20
)

var errUnread = errors.New("more lies unread than there is room for")

// An unread has an account of each stream that the library knows. The library's windows
// cannot be narrowed, so a session that would hold more than it may is over.
type unread struct {
	intake *tunnel.Intake

	mu       sync.Mutex // guards the following
	accounts map[uint32]*account
	bytes    int // of all streams
	allowed  int // leastUnread, and what intake has granted
	over     bool
}

// An account is what the library holds of a stream until it forgets it: when both ends
// have closed it, or either has reset it.
type account struct {
	bytes  int
	closed bool // by this end
	ended  bool // by the peer, or reset
	place  <-chan struct{}
}

func newUnread(i *tunnel.Intake) *unread {
	return &unread{intake: i, accounts: make(map[uint32]*account), allowed: leastUnread}
}

// begin notes that a stream has a place, which is given back when it is forgotten.
func (u *unread) begin(id uint32, place <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.accountLocked(id).place = place
}

func (u *unread) accountLocked(id uint32) *account {
	a := u.accounts[id]
	if a == nil {
		a = new(account)
		if !u.over {
			u.accounts[id] = a
		}
	}
	return a
}

// head notes a frame's flags, be it the peer's or this end's.
func (u *unread) head(id uint32, flags uint16, ours bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if flags&flagSYN != 0 {
		u.accountLocked(id)
	}
	a := u.accounts[id]
	if a == nil || flags&flagRST == 0 && (ours || flags&flagFIN == 0) {
		return
	}
	a.ended = true
	a.closed = a.closed || ours && a.place == nil // the library lets nobody have it
	u.forgetLocked(id, a)
}

// came notes n bytes for a stream, and says whether there is room for them.
func (u *unread) came(id uint32, n int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.accounts[id]
	if a == nil || u.over {
		return true // the library throws them away
	}
	a.bytes += n
	u.bytes += n
	u.intake.Received(n)
	for u.bytes > u.allowed {
		if u.allowed >= mostUnread || !u.intake.Grow(unreadStep) {
			return false
		}
		u.allowed += unreadStep
	}
	return true
}

// read notes that n bytes of a stream were read.
func (u *unread) read(id uint32, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if a := u.accounts[id]; a != nil {
		u.releaseLocked(a, min(n, a.bytes))
	}
}

// closed notes that this end has closed a stream.
func (u *unread) closed(id uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if a := u.accounts[id]; a != nil {
		a.closed = true
		u.forgetLocked(id, a)
	}
}

func (u *unread) forgetLocked(id uint32, a *account) {
	if !a.closed || !a.ended {
		return
	}
	delete(u.accounts, id)
	u.releaseLocked(a, a.bytes)
	if a.place != nil {
		<-a.place
	}
}

func (u *unread) releaseLocked(a *account, n int) {
	a.bytes -= n
	u.bytes -= n
	u.intake.Read(n)
	// A step is kept, so that a reader who keeps up does not ask each time.
	for u.allowed > leastUnread && u.bytes < u.allowed-2*unreadStep {
		u.allowed -= unreadStep
		u.intake.Return(unreadStep)
	}
}

// end gives everything back. The session is over.
func (u *unread) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	u.intake.Read(u.bytes)
	u.intake.Return(u.allowed - leastUnread)
	u.accounts, u.bytes, u.allowed = nil, 0, leastUnread
}
