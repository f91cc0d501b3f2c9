// Session: streams, on whatever connections there are.

package qmux

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// backlog is how many streams may wait to be accepted.
	backlog = 256
	// maxDone is how many STREAM_DONEs may wait to be sent on a connection: a peer that
	// asks for more answers than it reads is cut off.
	maxDone = 4096
	// lastWords bounds how long Close takes to tell the peer.
	lastWords = 2 * time.Second
)

// A Session is one end of a session. It is a tunnel.Session.
type Session struct {
	conf     config
	dial     dialFunc // nil at the accepting end
	dialing  bool
	extended bool // the peer knows this package's extension
	peer     parameters
	info     tunnel.Peer
	local    atomic.Pointer[net.Addr] // of the latest connection
	log      *slog.Logger
	born     time.Time
	intake   *tunnel.Intake

	ctx    context.Context
	cancel context.CancelCauseFunc
	alive  context.Context // done once the session is over, while goroutines may still run
	ending context.CancelFunc
	work   sync.WaitGroup // goroutines that ctx waits for
	token  chan struct{}  // held by whoever joins a connection

	mu      sync.Mutex // guards the following
	over    error      // why the session has ended; nil before
	reason  error      // why it is about to
	closing bool       // by Close
	conns   []*conn    // the first one carries what is small
	streams map[uint64]*stream
	changed chan struct{} // closed when Open and Accept may look again; nil while nobody waits

	opened    uint64 // streams that this end has opened,
	open      int    // that have not ended
	allowed   uint64 // that the peer lets it open
	theirs    uint64 // that the peer has opened,
	accepted  uint64 // that were accepted,
	ended     uint64 // that have ended
	told      uint64 // MAX_STREAMS
	waiting   []*stream
	handler   func(tunnel.Stream)
	dataMax   uint64 // MAX_DATA
	dataSent  uint64
	placed    int // connections that conf.beside has counted
	kept      int // bytes of blocks kept to send again
	unread    int // bytes of blocks that hold what has come
	spare     int // of windowBudget
	stats     tunnel.LinkState
	pulse     pulse
	pings     uint64
	id        sessionID
	paths     paths
	timer     *time.Timer
	timerAt   time.Time // zero: not set
	ackAt     time.Time // when acknowledgements are due; zero: none
	tell      func(tunnel.LinkState)
	identity  string         // at the accepting end: whose it is
	forgotten func(*Session) // called once when it is over
}

// A config is what both ends of a session go by.
type config struct {
	maxStreams  int
	keep        int
	budget      *budget
	beside      *budget // of connections beside the first; nil at the dialing end
	connections int
	terms       terms
}

func newConfig(o tunnel.Options) config {
	return config{
		maxStreams: o.Streams(), keep: defaultKeep, budget: processBudget,
		connections: cmp.Or(max(o.Link.Connections, 0), tunnel.DefaultConnections),
		terms:       terms{keepalive: o.Link.Interval(), window: o.Link.Window()},
	}
}

// parameters are what this end declares, without what it says of sessions.
func (c config) parameters() parameters {
	return parameters{data: maxInt, streamData: least, theirData: least, streams: uint64(min(c.maxStreams, backlog))}
}

func newSession(conf config, o tunnel.Options, info tunnel.Peer, peer *parameters, dialing bool) *Session {
	s := &Session{
		conf: conf, dialing: dialing, peer: *peer, extended: peer.session != nil, info: info, log: o.Logger(), born: time.Now(), intake: o.Shared(),
		token: make(chan struct{}, 1), streams: make(map[uint64]*stream),
		spare: windowBudget, allowed: peer.streams, dataMax: peer.data, told: uint64(min(conf.maxStreams, backlog)),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background()) // a session is a root of its own
	s.alive, s.ending = context.WithCancel(context.Background())
	s.stats.Heard, s.stats.Window = s.born, max(conf.terms.window, 0)
	s.pulse = pulse{metered: o.Link.Metered && dialing, base: conf.terms.keepalive, interval: conf.terms.keepalive}
	s.work.Add(1) // until it is over
	return s
}

func (s *Session) now() time.Duration { return time.Since(s.born) }

// Context is done once the session is dead and its goroutines have returned.
func (s *Session) Context() context.Context { return s.ctx }

// Peer is what the first handshake proved about the far side.
func (s *Session) Peer() tunnel.Peer { return s.info }

// LocalAddr is the latest connection's.
func (s *Session) LocalAddr() net.Addr { return *s.local.Load() }

// RemoteAddr is where the session came from.
func (s *Session) RemoteAddr() net.Addr { return s.info.Addr }

// Close ends every stream, tells the peer, which takes two seconds at most and one for
// its answer, and waits as Context does.
func (s *Session) Close() error {
	s.mu.Lock()
	first, parked := !s.closing && s.over == nil, len(s.conns) == 0 && s.dial != nil
	s.closing = true
	if first {
		s.reason = tunnel.ErrSessionClosed
		s.lastWordsLocked(closeFrame(errNone, true, ""))
		if parked {
			// The peer keeps a session for us that nobody needs: one more try to say so.
			s.work.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), lastWords)
				defer cancel()
				_ = s.attempt(ctx, s.connect, insteadOfAll) // its Close comes with it, or the window there ends
			})
		}
		s.failLocked(s.reason)
	}
	s.mu.Unlock()
	<-s.ctx.Done()
	return nil
}

// lastWordsLocked has every connection say a CONNECTION_CLOSE, after what little is
// under way.
func (s *Session) lastWordsLocked(frame []byte) {
	by := time.Now().Add(lastWords)
	for _, c := range slices.Clone(s.conns) {
		_ = c.tls.SetDeadline(by) // nobody who does not read keeps us
		c.say.close, c.closing = frame, true
		c.bulk = queue{}
		c.kickLocked()
	}
}

// failLocked ends the session because of err, unless there is a reason already: the peer
// may have answered our last words by closing what they came on.
func (s *Session) failLocked(err error) {
	if s.over != nil {
		return
	}
	if s.reason != nil {
		err = s.reason
	}
	for _, st := range s.streams {
		notify(st.in.wake)
		notify(st.out.wake)
	}
	s.intake.Return(int(windowBudget - s.spare))
	s.intake.AddUnread(-s.unread)
	s.conf.budget.give(s.kept)
	if s.conf.beside != nil {
		s.conf.beside.give(s.placed)
	}
	s.kept, s.placed, s.over = 0, 0, err
	s.ending()
	for _, c := range s.conns {
		if !c.closing {
			c.gone = true
			c.abort()
		}
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.changedLocked()
	if s.forgotten != nil {
		go s.forgotten(s) // it holds a lock of its own
	}
	s.work.Done()
	go func() { // joined by ctx
		s.work.Wait()
		s.cancel(err)
	}()
}

// breakLocked ends the session because the peer breaks the protocol, and tells it so.
func (s *Session) breakLocked(p *ProtocolError) {
	if s.over != nil {
		return
	}
	s.reason = nonsense(p)
	s.lastWordsLocked(closeFrame(p.Code, false, p.Text))
	s.failLocked(s.reason)
}

// until calls f, which the mutex protects, when it is called and whenever something has
// changed, until that is true or the session is over.
func (s *Session) until(ctx context.Context, f func() bool) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		s.mu.Lock()
		if s.over != nil || f() {
			err := s.over
			s.mu.Unlock()
			return err
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Open opens a stream. It waits while the peer allows no more of them, or MaxStreams
// are open.
func (s *Session) Open(ctx context.Context) (tunnel.Stream, error) {
	var st *stream
	err := s.until(ctx, func() bool {
		if s.opened < s.allowed && s.open < s.conf.maxStreams {
			st = newStream(s, s.opened<<2|s.parity())
			s.streams[st.id] = st
			s.opened++
			s.open++
			st.sayLocked(sayAck) // its window
		}
		return st != nil
	})
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	return st, nil
}

// parity is the low bits of streams that this end opens (RFC 9000, 2.1).
func (s *Session) parity() uint64 {
	if s.dialing {
		return 0
	}
	return 1
}

func (s *Session) isOurs(id uint64) bool { return id&3 == s.parity() }

// Accept waits for a stream that the peer opened.
func (s *Session) Accept(ctx context.Context) (tunnel.Stream, error) {
	var st *stream
	err := s.until(ctx, func() bool {
		if len(s.waiting) > 0 {
			st = s.waiting[0]
			s.waiting = slices.Delete(s.waiting, 0, 1)
			s.acceptedLocked(st)
		}
		return st != nil
	})
	if err != nil {
		return nil, fmt.Errorf("accept stream: %w", err)
	}
	return st, nil
}

// acceptedLocked notes that a stream is somebody's.
func (s *Session) acceptedLocked(st *stream) {
	st.unseen = false
	s.accepted++
	s.raiseLocked()
}

// OnStream has f called with each stream that the peer has opened and opens, in place of
// Accept; nobody if f is nil. f owns the stream, must return at once and not call the
// session.
func (s *Session) OnStream(f func(tunnel.Stream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = f
	for f != nil && len(s.waiting) > 0 {
		st := s.waiting[0]
		s.waiting = s.waiting[1:]
		f(st)
		s.acceptedLocked(st)
	}
}

// Dismiss is Close: a Control tells why.
func (s *Session) Dismiss(*tunnel.Goodbye) error { return s.Close() }

// Link is how the session fares.
func (s *Session) Link() tunnel.LinkState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linkLocked()
}

func (s *Session) linkLocked() tunnel.LinkState {
	l := s.stats
	l.RTT, l.Queued, l.Connections, l.Addr = s.pulse.rtt, s.kept, len(s.conns), s.info.Addr
	if c := s.firstLocked(); c != nil {
		l.Addr = c.tls.RemoteAddr()
	} else if s.paths.last != nil {
		l.Addr = s.paths.last
	}
	return l
}

// Tell has f called when the last connection is lost and when there is one again; see
// tunnel.Session.
func (s *Session) Tell(f func(tunnel.LinkState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell = f
	if !s.stats.Parked.IsZero() && s.over == nil {
		f(s.linkLocked())
	}
}

// keepLocked asks for n bytes to keep something in, which it is given if it must be.
func (s *Session) keepLocked(n int, must bool) bool {
	if s.over != nil || !must && s.kept+n > s.conf.keep || !s.conf.budget.take(n, must) {
		return false
	}
	s.kept += n
	return true
}

func (s *Session) unkeepLocked(n int) {
	if s.over != nil {
		return // it has been given back
	}
	s.conf.budget.give(n)
	s.kept -= n
}

func (s *Session) fullLocked() bool {
	return s.kept >= s.conf.keep || s.conf.budget.used.Load() >= s.conf.budget.limit
}

// scarceLocked says whether so much is kept that what remains is for streams that move.
func (s *Session) scarceLocked() bool {
	return s.kept > s.conf.keep/2 || s.conf.budget.used.Load() > s.conf.budget.limit/2
}

var _ tunnel.Session = (*Session)(nil)
