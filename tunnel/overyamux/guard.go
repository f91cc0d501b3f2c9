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
	in, out frames
	pings   int
	since   time.Time
	intake  *tunnel.Intake

	mu       sync.Mutex // guards the following
	accounts map[uint32]*account
	unread   int // bytes of all streams
	allowed  int // leastUnread, and what intake has granted
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
	if rejected := g.in.follow(p[:n], g.heard); rejected != nil {
		return 0, rejected
	}
	return n, err
}

// Write implements net.Conn.
func (g *guard) Write(p []byte) (int, error) {
	_ = g.out.follow(p, g.said) // which never fails
	return g.Conn.Write(p)
}

// heard takes a header of the peer's, or n bytes behind it.
func (g *guard) heard(h *header, n int) error {
	switch {
	case n > 0:
		return g.received(h.stream(), n)
	case h[1] == typePing:
		if now := time.Now(); now.Sub(g.since) > time.Second {
			g.pings, g.since = 0, now
		}
		if g.pings++; g.pings > maxPings {
			return errPings
		}
	default:
		g.flags(h, false)
	}
	return nil
}

// said is heard for this end.
func (g *guard) said(h *header, n int) error {
	if n == 0 {
		g.flags(h, true)
	}
	return nil
}

// flags notes those of a frame, be it the peer's or this end's.
func (g *guard) flags(h *header, ours bool) {
	if h[1] != typeData && h[1] != typeWindowUpdate {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	id, flags := h.stream(), h.flags()
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

// received notes n bytes for a stream, and fails if there is no room for them.
func (g *guard) received(id uint32, n int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.accounts[id]
	if a == nil {
		return nil // the library throws them away
	}
	a.unread += n
	g.unread += n
	g.intake.Received(n)
	for ; g.unread > g.allowed; g.allowed += unreadStep {
		if g.allowed >= mostUnread || !g.intake.Grow(unreadStep) {
			return errUnread
		}
	}
	return nil
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
	set := func(f func()) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if a := g.accounts[id]; a != nil {
			if a.tell = f; f != nil && a.reset {
				f()
			}
		}
	}
	set(f)
	return func() { set(nil) }
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
	g.intake.Read(n)
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
	g.intake.Read(g.unread)
	g.intake.Return(g.allowed - leastUnread)
	clear(g.accounts)
	g.unread, g.allowed = 0, leastUnread
}

// A header is that of a frame.
type header [headerSize]byte

func (h *header) flags() uint16  { return binary.BigEndian.Uint16(h[2:]) }
func (h *header) stream() uint32 { return binary.BigEndian.Uint32(h[4:]) }
func (h *header) length() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// A frames is where one direction of a connection is.
type frames struct {
	header header
	have   int    // bytes of header
	body   uint32 // bytes of data to come, behind the header
}

// follow calls tell with each header that p completes, and with how many bytes behind it p
// has, until tell fails.
func (f *frames) follow(p []byte, tell func(h *header, n int) error) error {
	for len(p) > 0 {
		n := 0
		if f.body > 0 {
			n = int(min(int64(f.body), int64(len(p))))
			f.body, p = f.body-uint32(n), p[n:] //nolint:gosec // at most what it was
		} else {
			k := copy(f.header[f.have:], p)
			f.have, p = f.have+k, p[k:]
			if f.have < headerSize {
				return nil
			}
			f.have = 0
			if f.header[1] == typeData {
				f.body = f.header.length()
			}
		}
		if err := tell(&f.header, n); err != nil {
			return err
		}
	}
	return nil
}
