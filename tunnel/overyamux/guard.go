// Guard: parses the frames that the library reads and writes, to bound what it holds. The
// library does not report that itself.

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
	// maxPings bounds the pings of a peer within a second. The library answers each in a
	// goroutine of its own. If the peer does not read the answers, these goroutines stay for
	// writeTimeout.
	maxPings = 100
	// minUnread is how many unread bytes a session may always hold, and maxUnread how many
	// at most. Between the two the Intake grants them in steps of unreadStep.
	minUnread  = 2 << 20
	maxUnread  = 64 << 20
	unreadStep = 1 << 20

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
	errTooManyPings  = errors.New("peer floods this end with pings")
	errTooMuchUnread = errors.New("more lies unread than there is room for")
)

// A guard is a connection whose Read fails once the peer exceeds a bound: the library cannot
// narrow its windows, so the session has to end. Read and Write have one caller each.
type guard struct {
	net.Conn
	intake *tunnel.Intake

	mu      sync.Mutex // guards the following
	in, out parser
	pings   int // of the peer, since the time below
	since   time.Time
	streams map[uint32]*streamState
	unread  int // bytes of all streams
	allowed int // minUnread, and what the intake has granted
}

// A parser is the position in the frames of one direction.
type parser struct {
	header [headerSize]byte
	have   int    // bytes of header that are known
	body   uint32 // bytes of data that still follow the header
}

// A streamState is what the library holds for a stream, until both ends have closed it or
// one has reset it.
type streamState struct {
	unread  int
	closed  bool            // by this end
	ended   bool            // by the peer, or reset
	reset   bool            // by the peer
	onReset func()          // called at a reset; must return at once; may be nil
	place   <-chan struct{} // released at the end; nil until the stream was opened or accepted here
}

func newGuard(c net.Conn, i *tunnel.Intake) *guard {
	return &guard{Conn: c, intake: i, streams: make(map[uint32]*streamState), allowed: minUnread}
}

// NetConn is the connection itself.
func (g *guard) NetConn() net.Conn { return g.Conn }

// Read implements net.Conn.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if rejected := g.parse(&g.in, p[:n], false); rejected != nil {
		return 0, rejected
	}
	return n, err
}

// Write implements net.Conn.
func (g *guard) Write(p []byte) (int, error) {
	_ = g.parse(&g.out, p, true) // which never fails
	return g.Conn.Write(p)
}

// parse parses data that was received or, if ours is set, is sent.
func (g *guard) parse(d *parser, p []byte, ours bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(p) > 0 {
		if d.body > 0 {
			n := int(min(int64(d.body), int64(len(p))))
			d.body, p = d.body-uint32(n), p[n:] //nolint:gosec // at most what it was
			if !ours && !g.receivedLocked(binary.BigEndian.Uint32(d.header[4:]), n) {
				return errTooMuchUnread
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
			if !ours && !g.pingLocked() {
				return errTooManyPings
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

// pingLocked counts a ping of the peer, and says whether it is within the bound.
func (g *guard) pingLocked() bool {
	if now := time.Now(); now.Sub(g.since) > time.Second {
		g.pings, g.since = 0, now
	}
	g.pings++
	return g.pings <= maxPings
}

// flagsLocked handles the flags of a frame.
func (g *guard) flagsLocked(id uint32, flags uint16, ours bool) {
	if flags&flagSYN != 0 {
		g.streamLocked(id)
	}
	a := g.streams[id]
	if a == nil || flags&flagRST == 0 && (ours || flags&flagFIN == 0) {
		return
	}
	if !ours && flags&flagRST != 0 {
		a.reset = true
		if a.onReset != nil {
			a.onReset()
		}
	}
	a.ended = true
	a.closed = a.closed || ours && a.place == nil // the library has refused it
	g.forgetLocked(id, a)
}

// assignPlace notes the place that a stream releases at its end.
func (g *guard) assignPlace(id uint32, place <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.streamLocked(id).place = place
}

func (g *guard) streamLocked(id uint32) *streamState {
	if g.streams[id] == nil {
		g.streams[id] = new(streamState)
	}
	return g.streams[id]
}

// receivedLocked counts n bytes received for a stream, and says whether they are within the
// bounds.
func (g *guard) receivedLocked(id uint32, n int) bool {
	a := g.streams[id]
	if a == nil {
		return true // the library discards them
	}
	a.unread += n
	g.unread += n
	g.intake.AddUnread(n)
	for ; g.unread > g.allowed; g.allowed += unreadStep {
		if g.allowed >= maxUnread || !g.intake.Grow(unreadStep) {
			return false
		}
	}
	return true
}

// read counts n bytes of a stream that were read.
func (g *guard) read(id uint32, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a := g.streams[id]; a != nil {
		g.releaseLocked(a, min(n, a.unread))
	}
}

// closed notes that this end has closed a stream.
func (g *guard) closed(id uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a := g.streams[id]; a != nil {
		a.closed = true
		g.forgetLocked(id, a)
	}
}

// onReset makes f be called when the peer resets a stream, until stop is called.
func (g *guard) onReset(id uint32, f func()) (stop func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.streams[id]
	if a == nil {
		return func() {}
	}
	if a.onReset = f; a.reset {
		f()
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		a.onReset = nil
	}
}

func (g *guard) forgetLocked(id uint32, a *streamState) {
	if !a.closed || !a.ended {
		return
	}
	delete(g.streams, id)
	g.releaseLocked(a, a.unread)
	if a.place != nil {
		<-a.place
	}
}

func (g *guard) releaseLocked(a *streamState, n int) {
	a.unread -= n
	g.unread -= n
	g.intake.AddUnread(-n)
	// One step is kept, so that a reader that keeps up does not ask the intake each time.
	for g.allowed > minUnread && g.unread < g.allowed-2*unreadStep {
		g.allowed -= unreadStep
		g.intake.Return(unreadStep)
	}
}

// end returns everything to the intake, once the library has stopped.
func (g *guard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.intake.AddUnread(-g.unread)
	g.intake.Return(g.allowed - minUnread)
	clear(g.streams)
	g.unread, g.allowed = 0, minUnread
}
