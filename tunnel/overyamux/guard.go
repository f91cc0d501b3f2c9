// Guard: what the library reads and writes, followed frame by frame, and an account of
// what it holds, which it does not tell.

package overyamux

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// maxPings is how many pings a peer may send within a second. The library sends one an
	// interval, and answers each in a goroutine of its own. From a peer that reads no answers
	// these would gather for as long as writeTimeout.
	maxPings = 100
	// leastUnread is what a session may have unread in any case, and mostUnread what it
	// may at most. What is between comes from the Intake, by unreadStep.
	leastUnread = 2 << 20
	mostUnread  = 64 << 20
	unreadStep  = 1 << 20

	// yamux's header (spec.md): version, type, flags of two bytes, stream and length of
	// four.
	headerSize       = 12
	typeData         = 0
	typeWindowUpdate = 1
	typePing         = 2
	flagSYN          = 1
	flagFIN          = 4
	flagRST          = 8
)

var (
	errPings  = errors.New("peer floods this end with pings")
	errUnread = errors.New("more lies unread than there is room for")
)

// A guard is a connection on which no more pings come than may, and no more data than
// there is room for: the library's windows cannot be narrowed, so a session that would
// hold more than it may is over. Read and Write have one caller each.
type guard struct {
	net.Conn
	intake *tunnel.Intake

	mu       sync.Mutex // guards the following
	in, out  direction
	pings    int // of the peer, since then
	since    time.Time
	accounts map[uint32]*account
	unread   int // bytes of all streams
	allowed  int // leastUnread, and what intake has granted
}

// A direction is where one of the connection's is.
type direction struct {
	header [headerSize]byte
	have   int    // bytes of header
	body   uint32 // bytes of data to come, behind the header
}

// An account is what the library holds of a stream until it forgets it: when both ends
// have closed it, or either has reset it.
type account struct {
	unread int
	closed bool            // by this end
	ended  bool            // by the peer, or reset
	reset  bool            // by the peer
	tell   func()          // that it is; it must return at once. Nil if nobody asks
	place  <-chan struct{} // given back then; nil until somebody has the stream
}

func newGuard(c net.Conn, i *tunnel.Intake) *guard {
	return &guard{Conn: c, intake: i, accounts: make(map[uint32]*account), allowed: leastUnread}
}

// NetConn is the connection itself.
func (g *guard) NetConn() net.Conn { return g.Conn }

// Read implements net.Conn.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if rejected := g.follow(&g.in, p[:n], false); rejected != nil {
		return 0, rejected
	}
	return n, err
}

// Write implements net.Conn.
func (g *guard) Write(p []byte) (int, error) {
	_ = g.follow(&g.out, p, true) // which never fails
	return g.Conn.Write(p)
}

// follow takes what has come, or what this end says, frame by frame.
func (g *guard) follow(d *direction, p []byte, ours bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(p) > 0 {
		if d.body > 0 {
			n := int(min(int64(d.body), int64(len(p))))
			d.body, p = d.body-uint32(n), p[n:] //nolint:gosec // at most what it was
			if !ours && !g.receivedLocked(binary.BigEndian.Uint32(d.header[4:]), n) {
				return errUnread
			}
			continue
		}
		k := copy(d.header[d.have:], p)
		d.have, p = d.have+k, p[k:]
		if d.have < headerSize {
			return nil
		}
		d.have = 0
		switch d.header[1] {
		case typePing:
			if !ours && !g.pingedLocked() {
				return errPings
			}
			continue
		case typeData:
			d.body = binary.BigEndian.Uint32(d.header[8:])
		case typeWindowUpdate:
		default:
			continue
		}
		g.flagsLocked(binary.BigEndian.Uint32(d.header[4:]), binary.BigEndian.Uint16(d.header[2:]), ours)
	}
	return nil
}

// pingedLocked notes a ping of the peer's, and says whether it may.
func (g *guard) pingedLocked() bool {
	if now := time.Now(); now.Sub(g.since) > time.Second {
		g.pings, g.since = 0, now
	}
	g.pings++
	return g.pings <= maxPings
}

// flagsLocked notes those of a frame, be it the peer's or this end's.
func (g *guard) flagsLocked(id uint32, flags uint16, ours bool) {
	if flags&flagSYN != 0 {
		g.accountLocked(id)
	}
	a := g.accounts[id]
	if a == nil || flags&flagRST == 0 && (ours || flags&flagFIN == 0) {
		return
	}
	if !ours && flags&flagRST != 0 {
		a.reset = true
		if a.tell != nil {
			a.tell()
		}
	}
	a.ended = true
	a.closed = a.closed || ours && a.place == nil // the library lets nobody have it
	g.forgetLocked(id, a)
}

// begin notes that a stream has a place, which is given back when it is forgotten.
func (g *guard) begin(id uint32, place <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.accountLocked(id).place = place
}

func (g *guard) accountLocked(id uint32) *account {
	if g.accounts[id] == nil {
		g.accounts[id] = new(account)
	}
	return g.accounts[id]
}

// receivedLocked notes n bytes for a stream, and says whether there is room for them.
func (g *guard) receivedLocked(id uint32, n int) bool {
	a := g.accounts[id]
	if a == nil {
		return true // the library throws them away
	}
	a.unread += n
	g.unread += n
	g.intake.AddUnread(n)
	for ; g.unread > g.allowed; g.allowed += unreadStep {
		if g.allowed >= mostUnread || !g.intake.Grow(unreadStep) {
			return false
		}
	}
	return true
}

// read notes that n bytes of a stream were read.
func (g *guard) read(id uint32, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a := g.accounts[id]; a != nil {
		g.releaseLocked(a, min(n, a.unread))
	}
}

// closed notes that this end has closed a stream.
func (g *guard) closed(id uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a := g.accounts[id]; a != nil {
		a.closed = true
		g.forgetLocked(id, a)
	}
}

// onReset has f called once the peer has reset a stream, until stop is called.
func (g *guard) onReset(id uint32, f func()) (stop func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.accounts[id]
	if a == nil {
		return func() {}
	}
	if a.tell = f; a.reset {
		f()
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		a.tell = nil
	}
}

func (g *guard) forgetLocked(id uint32, a *account) {
	if !a.closed || !a.ended {
		return
	}
	delete(g.accounts, id)
	g.releaseLocked(a, a.unread)
	if a.place != nil {
		<-a.place
	}
}

func (g *guard) releaseLocked(a *account, n int) {
	a.unread -= n
	g.unread -= n
	g.intake.AddUnread(-n)
	// A step is kept, so that a reader who keeps up does not ask each time.
	for g.allowed > leastUnread && g.unread < g.allowed-2*unreadStep {
		g.allowed -= unreadStep
		g.intake.Return(unreadStep)
	}
}

// end gives everything back, once the library does nothing any more.
func (g *guard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.intake.AddUnread(-g.unread)
	g.intake.Return(g.allowed - leastUnread)
	clear(g.accounts)
	g.unread, g.allowed = 0, leastUnread
}
