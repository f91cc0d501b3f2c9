// Mooring: the sockets of a dialing end, and how it changes from one to another.

package overquic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/hawser-project/hawser/tunnel"
)

// bufferSize is what the library asks of a socket's buffers.
const bufferSize = 7 << 20

// prepareTime is how long prepare waits for a path before it tries another one.
const prepareTime = 5 * time.Second

// A mooring is what a dialing end's connection runs over: two doors, each with a
// transport of its own, of which one carries the connection and the other is
// where it goes next. Only a transport that the library has seen a path validated
// on can be changed to at once, so the other door gets one as soon as there is a
// connection: when its first path has died nothing can be validated any more
// unless the congestion window happens to have room.
//
// Changing makes the library begin anew on the path: what was on its way is sent
// again, without regard to how long it has already waited. So changing from a
// door to itself has its use. The server sees packets come from another address,
// makes sure of it, and begins anew as well.
type mooring struct {
	quay  quay
	doors [2]door
	ways  [2]*quic.Transport
	conn  *quic.Conn
	shift chan struct{} // holds one token while somebody validates a path
	// shifted is set when the server may see another address through our doing.
	shifted atomic.Bool

	mu     sync.Mutex // guards the following
	active int        // the door that carries the connection
	paths  [2]*quic.Path
	local  atomic.Pointer[net.UDPAddr] // of the door that carries it
}

// noIDs has the peer address packets to nothing but this socket, which belongs
// to one connection: so the peer needs no new identifier for each new address of
// ours, of which it has only a few.
type noIDs struct{}

func (noIDs) GenerateConnectionID() (quic.ConnectionID, error) { return quic.ConnectionID{}, nil }
func (noIDs) ConnectionIDLen() int                             { return 0 }

// moor opens the first socket.
func moor(ctx context.Context, addr string, o tunnel.Options) (*mooring, error) {
	m := &mooring{quay: quay{addr: addr, dial: o.Dial}, shift: make(chan struct{}, 1)}
	for i := range m.doors {
		m.ways[i] = &quic.Transport{Conn: &m.doors[i], ConnectionIDGenerator: noIDs{}}
	}
	if err := m.open(ctx, 0); err != nil {
		return nil, err
	}
	m.note()
	return m, nil
}

// open has a door lead through a new socket.
func (m *mooring) open(ctx context.Context, door int) error {
	s, err := m.quay.socket(ctx)
	if err != nil {
		return err
	}
	m.doors[door].lead(s)
	return nil
}

// note remembers the address of this end.
func (m *mooring) note() {
	if a, ok := m.doors[m.active].LocalAddr().(*net.UDPAddr); ok {
		m.local.Store(a)
	}
}

// close gives back all. The connection must have ended.
func (m *mooring) close() {
	for i := range m.doors {
		_ = m.doors[i].Close() // nothing could be done about either
		m.mu.Lock()
		used := m.doors[i].through != nil
		m.mu.Unlock()
		if used {
			_ = m.ways[i].Close()
		}
	}
}

// Parting from a peer that nothing reaches takes this long at most, with a word
// every so often.
const (
	partingTime  = 5 * time.Second
	partingPause = 250 * time.Millisecond
)

// keep has the last word of the connection kept for part.
func (m *mooring) keep() {
	for i := range m.doors {
		m.doors[i].keep()
	}
}

// part says the last word again and again, because nothing got through when it
// was said first, until something comes from the server. The connection must have
// ended. A server that has heard it answers what comes later with a stateless
// reset.
func (m *mooring) part() {
	m.mu.Lock()
	d := &m.doors[m.active]
	m.mu.Unlock()
	word, heard := d.last()
	if len(word) == 0 {
		return
	}
	end := time.NewTimer(partingTime)
	defer end.Stop()
	again := time.NewTicker(partingPause)
	defer again.Stop()
	for {
		_, _, _ = d.WriteMsgUDP(word, nil, m.quay.to.(*net.UDPAddr)) // if it does not go now it will later
		select {
		case <-heard:
			_, _, _ = d.WriteMsgUDP(word, nil, m.quay.to.(*net.UDPAddr)) // what came may have crossed the first
			return
		case <-again.C:
		case <-end.C:
			return
		}
	}
}

// token takes shift's token.
func (m *mooring) token(ctx context.Context) error {
	select {
	case m.shift <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// prepare validates a path through the other door, for kick.
func (m *mooring) prepare(ctx context.Context) {
	for ctx.Err() == nil {
		if m.token(ctx) != nil {
			return
		}
		m.mu.Lock()
		other := 1 - m.active
		ready := m.paths[other] != nil || m.paths[m.active] != nil
		m.mu.Unlock()
		var err error
		if !ready {
			attempt, cancel := context.WithTimeout(ctx, prepareTime)
			err = m.validate(attempt, other)
			cancel()
		}
		<-m.shift
		if err == nil {
			return
		}
		select { // it may have failed at once
		case <-ctx.Done():
		case <-time.After(prepareTime / 5):
		}
	}
}

// validate opens a socket for a door and makes sure that the server can be
// reached through it. The caller holds the token.
func (m *mooring) validate(ctx context.Context, door int) error {
	if err := m.open(ctx, door); err != nil {
		return err
	}
	path, err := m.conn.AddPath(m.ways[door])
	if err != nil {
		return err
	}
	if err := path.Probe(ctx); err != nil {
		_ = path.Close() // the other error is the news
		return fmt.Errorf("probe another path: %w", err)
	}
	m.mu.Lock()
	old := m.paths[door]
	m.paths[door] = path
	m.mu.Unlock()
	if old != nil {
		_ = old.Close() // fails only if it is in use, which it is not
	}
	return nil
}

// change makes a door carry the connection. The library takes notice when it has
// something to send.
func (m *mooring) change(door int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	path := m.paths[door]
	if path == nil {
		return errors.New("no path through this door")
	}
	if err := path.Switch(); err != nil {
		return err
	}
	m.active = door
	m.note()
	m.shifted.Store(true)
	return nil
}

// move changes to a new socket once it is known to work.
func (m *mooring) move(ctx context.Context) error {
	if err := m.token(ctx); err != nil {
		return err
	}
	defer func() { <-m.shift }()
	m.mu.Lock()
	other := 1 - m.active
	m.mu.Unlock()
	if err := m.validate(ctx, other); err != nil {
		return err
	}
	return m.change(other)
}

// kick tries to get through where nothing does: with a new socket if fresh, or
// else once more with the one there is. While somebody validates a path through
// the other door it leaves that door alone: on a path that is in use nothing can
// be validated.
// It says whether the library begins anew.
func (m *mooring) kick(ctx context.Context, fresh bool) (bool, error) {
	free := false
	select {
	case m.shift <- struct{}{}:
		defer func() { <-m.shift }()
		free = true
	default:
	}
	m.mu.Lock()
	door := m.active
	if free && fresh && m.paths[1-door] != nil {
		door = 1 - door
	}
	known := m.paths[door] != nil
	m.doors[door].recall(true)
	m.mu.Unlock()
	if fresh {
		if err := m.open(ctx, door); err != nil {
			return false, err
		}
	}
	if !known {
		return false, nil // the library tries by itself, if ever more seldom
	}
	if err := m.change(door); err != nil {
		return false, err
	}
	return true, nil
}

// knock sends the least that has been sent since the latest kick, as it was: the
// library counts on nothing of the kind, and so need not begin anew, which is what
// keeps kicks apart. A path that works again has somebody answer; to a packet that
// has come before nobody does (RFC 9000, 12.3).
func (m *mooring) knock() {
	m.mu.Lock()
	d := &m.doors[m.active]
	m.mu.Unlock()
	if least := d.least(); len(least) > 0 {
		_, _, _ = d.WriteMsgUDP(least, nil, m.quay.to.(*net.UDPAddr)) // there will be another
	}
}

// rest is for when there is nothing to knock for.
func (m *mooring) rest() {
	for i := range m.doors {
		m.doors[i].recall(false)
	}
}
