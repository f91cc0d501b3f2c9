// Session: the streams and connections of one session, and its tunnel.Session methods.

package qmux

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// backlog bounds the streams that wait to be accepted.
	backlog = 256
	// maxStreamDone bounds the STREAM_DONEs that wait to be sent on a connection. A peer
	// that causes more without reading them is cut off.
	maxStreamDone = 4096
	// openTimeout bounds how long Open waits for a stream to end.
	openTimeout = 2 * time.Second
	// closeTimeout bounds how long Close takes to send CONNECTION_CLOSE.
	closeTimeout = 2 * time.Second
)

// A Session is one end of a session. It is a tunnel.Session.
type Session struct {
	conf      config
	dial      dialFunc // nil at the accepting end
	tellMoved func()   // tells what dials that the way is another one; nil if it need not know
	dialing   bool
	extended  bool // both ends have the extension of this package
	peer      parameters
	info      tunnel.Peer
	local     atomic.Pointer[net.Addr]  // of the latest connection
	parked    atomic.Pointer[time.Time] // stats.Parked, for the registry; nil: it is not parked
	log       *slog.Logger
	created   time.Time
	intake    *tunnel.Intake

	ctx         context.Context
	cancel      context.CancelCauseFunc
	alive       context.Context // done once err is set, while goroutines may still run
	cancelAlive context.CancelFunc
	goroutines  sync.WaitGroup // that ctx waits for
	joining     chan struct{}  // a semaphore of one: connections join one at a time

	mu          sync.Mutex // guards the following
	err         error      // why the session has ended; nil while it has not
	closeReason error      // why it is about to end
	closing     bool       // Close was called
	conns       []*conn    // the first one carries control frames and small data
	streams     map[uint64]*stream
	changed     chan struct{} // closed to wake waitFor; nil while nobody waits

	opened         uint64 // streams that this end has opened
	open           int    // those of them that have not ended
	maxStreams     uint64 // how many the peer lets this end open
	peerOpened     uint64 // streams that the peer has opened
	accepted       uint64 // those of them that were accepted
	ended          uint64 // and those that have ended
	maxStreamsSent uint64 // the latest MAX_STREAMS
	acceptQueue    []*stream
	handler        func(tunnel.Stream)
	dataMax        uint64 // the peer's MAX_DATA
	dataRaised     bool   // by the record that is handled, and streams may have waited for it
	dataSent       uint64 // bytes of streams, without retransmissions
	moved          uint64 // bytes of streams acknowledged and received, without retransmissions
	besideCounted  int    // connections that conf.beside counts
	retained       int    // bytes of blocks retained for retransmission
	unread         int    // bytes of blocks that hold unread data
	windowSpare    int    // what is left of windowBudget
	stats          tunnel.LinkState
	keepalive      keepalive
	pings          uint64
	id             sessionID
	paths          paths
	timer          *time.Timer // runs tick
	timerAt        time.Time   // zero: not set
	lateAt         time.Time   // when tick last ran more than lateTick late
	ackAt          time.Time   // when acknowledgements are due; zero: none
	onChange       func(tunnel.LinkState)
	identity       string         // of the peer; the accepting end only
	onEnd          func(*Session) // called once at the end
}

// A config is the settings of a session.
type config struct {
	maxStreams  int
	maxRetained int
	budget      *budget
	beside      *budget // of connections beside the first of a session
	connections int
	terms       terms
}

func newConfig(o tunnel.Options) config {
	return config{
		maxStreams: o.Streams(), maxRetained: defaultMaxRetained, budget: processBudget, beside: &budget{limit: maxBeside},
		connections: cmp.Or(max(o.Link.Connections, 0), tunnel.DefaultConnections),
		terms:       terms{keepalive: o.Link.Interval(), window: o.Link.Window()},
	}
}

// withoutTerms sets c for a peer that does not have the extension, or for an end that does not
// use it. The peer's idle timeout (RFC 9000, 10.1) bounds the interval of pings.
func (c *config) withoutTerms(peer *parameters) {
	peer.session, c.terms.window = nil, 0
	if peer.idle > 0 {
		c.terms.keepalive = max(min(c.terms.keepalive, peer.idle/2), minKeepalive)
	}
}

// parameters are this end's transport parameters, without hawser_session.
func (c config) parameters() parameters {
	return parameters{data: maxInt, streamData: initialWindow, theirData: initialWindow, streams: uint64(min(c.maxStreams, backlog))}
}

func newSession(conf config, o tunnel.Options, info tunnel.Peer, peer *parameters, dialing bool) *Session {
	s := &Session{
		conf: conf, dialing: dialing, peer: *peer, extended: peer.session != nil, info: info, log: o.Logger(), created: time.Now(), intake: o.Shared(),
		joining: make(chan struct{}, 1), streams: make(map[uint64]*stream),
		onChange: func(tunnel.LinkState) {}, onEnd: func(*Session) {},
		windowSpare: windowBudget, maxStreams: peer.streams, dataMax: peer.data, maxStreamsSent: uint64(min(conf.maxStreams, backlog)),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background()) // it outlives the call that made it
	s.alive, s.cancelAlive = context.WithCancel(context.Background())
	s.stats.Heard, s.stats.Window = s.created, max(conf.terms.window, 0)
	s.keepalive = keepalive{metered: o.Link.Metered && dialing, base: conf.terms.keepalive, interval: conf.terms.keepalive}
	if !s.extended {
		s.keepalive.ceiling = peer.idle / 2
	}
	s.timer = time.AfterFunc(math.MaxInt64, s.tick) // until scheduleLocked resets it
	s.goroutines.Add(1)                             // until failLocked
	return s
}

func (s *Session) now() time.Duration { return time.Since(s.created) }

// Context is done once the session is dead and its goroutines have returned.
func (s *Session) Context() context.Context { return s.ctx }

// Peer is what the first connection's handshake proved.
func (s *Session) Peer() tunnel.Peer { return s.info }

// Close ends every stream and the session, and tells the peer. It returns once the session's
// goroutines have ended: after at most closeTimeout and lingerTimeout.
func (s *Session) Close() error {
	s.mu.Lock()
	first, parked := !s.closing && s.err == nil, len(s.conns) == 0 && s.dial != nil
	s.closing = true
	if first {
		s.closeReason = tunnel.ErrSessionClosed
		s.sendCloseLocked(closeFrame(errNone, true, ""))
		if parked {
			// The peer still keeps the session: try once more to tell it.
			s.goroutines.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
				defer cancel()
				_ = s.attempt(ctx, s.connect, insteadOfAll) // if it fails the peer's detach window ends the session
			})
		}
		s.failLocked(s.closeReason)
	}
	s.mu.Unlock()
	<-s.ctx.Done()
	return nil
}

// sendCloseLocked sends CONNECTION_CLOSE on every connection, after the pending small data.
func (s *Session) sendCloseLocked(frame []byte) {
	by := time.Now().Add(closeTimeout)
	for _, c := range slices.Clone(s.conns) {
		_ = c.tls.SetDeadline(by) // a peer that does not read cannot delay it further
		c.control.closeFrame, c.closing = frame, true
		c.bulk = nil
		c.startWritingLocked()
	}
}

// failLocked ends the session with err, or with closeReason if that is set: err may be the
// peer's reaction to our CONNECTION_CLOSE.
func (s *Session) failLocked(err error) {
	if s.err != nil {
		return
	}
	err = cmp.Or(s.closeReason, err)
	for _, st := range s.streams {
		notify(st.in.wake)
		notify(st.out.wake)
	}
	s.intake.Return(int(windowBudget - s.windowSpare))
	s.intake.AddUnread(-s.unread)
	s.conf.budget.give(s.retained)
	s.conf.beside.give(s.besideCounted)
	s.retained, s.besideCounted, s.err = 0, 0, err
	s.cancelAlive()
	for _, c := range s.conns {
		if !c.closing {
			c.detached = true
			c.abort()
		}
	}
	s.timer.Stop()
	s.wakeWaitersLocked()
	go s.onEnd(s) // it takes the registry's mutex
	s.goroutines.Done()
	go func() { // joined by ctx
		s.goroutines.Wait()
		s.cancel(err)
	}()
}

// protocolErrorLocked ends the session because the peer violates the protocol, and sends
// it the error.
func (s *Session) protocolErrorLocked(p *violation) {
	if s.err != nil {
		return
	}
	s.closeReason = protocolViolation(p)
	s.sendCloseLocked(closeFrame(p.Code, false, p.Text))
	s.failLocked(s.closeReason)
}

// waitFor calls f, with the mutex held, at once and after each wakeWaitersLocked, until f
// returns true or the session ends. It fails with tunnel.Busy after patience, unless that is 0
// or the session is parked.
func (s *Session) waitFor(ctx context.Context, patience time.Duration, f func() bool) error {
	var late <-chan time.Time
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		s.mu.Lock()
		if s.err != nil || f() {
			err := s.err
			s.mu.Unlock()
			return err
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		if late == nil && patience > 0 {
			late = time.After(patience)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-late:
			late = nil
			if l := s.Link(); l.Parked.IsZero() && ctx.Err() == nil { // both may end at one moment
				return fmt.Errorf("%w: %d of the session's %d streams are open", tunnel.Busy, l.Streams, l.MaxStreams)
			}
		}
	}
}

// Open opens a stream. While MaxStreams are open, or the peer allows no more, it waits: for two
// seconds, unless the session is parked, and then fails with tunnel.Busy.
func (s *Session) Open(ctx context.Context) (tunnel.Stream, error) {
	var st *stream
	err := s.waitFor(ctx, openTimeout, func() bool {
		st = s.openLocked()
		return st != nil
	})
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	return st, nil
}

// openLocked opens a stream; it returns nil if there may be no more now.
func (s *Session) openLocked() *stream {
	if s.opened >= s.maxStreams || s.open >= s.conf.maxStreams {
		return nil
	}
	st := newStream(s, s.opened<<2|s.parity())
	s.streams[st.id] = st
	s.opened++
	s.open++
	st.queueControlLocked(pendingAck) // its STREAM_ACK tells the peer the window
	return st
}

// SetMaxStreams replaces Options.MaxStreams, once it is known whose session it is.
func (s *Session) SetMaxStreams(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conf.maxStreams = n
	s.raiseMaxStreamsLocked()
	s.wakeWaitersLocked()
}

// parity is the two low bits of the ids of streams that this end opens (RFC 9000, 2.1).
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
	err := s.waitFor(ctx, 0, func() bool {
		if len(s.acceptQueue) > 0 {
			st = s.acceptQueue[0]
			s.acceptQueue = slices.Delete(s.acceptQueue, 0, 1)
			s.noteAcceptedLocked()
		}
		return st != nil
	})
	if err != nil {
		return nil, fmt.Errorf("accept stream: %w", err)
	}
	return st, nil
}

// noteAcceptedLocked notes that a stream was accepted.
func (s *Session) noteAcceptedLocked() {
	s.accepted++
	s.raiseMaxStreamsLocked()
}

// OnStream makes the session call f with each stream that the peer opens, in place of
// Accept; a nil f undoes that. f owns the stream. It must return at once and not call
// the session.
func (s *Session) OnStream(f func(tunnel.Stream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = f
	for f != nil && len(s.acceptQueue) > 0 {
		st := s.acceptQueue[0]
		s.acceptQueue = s.acceptQueue[1:]
		f(st)
		s.noteAcceptedLocked()
	}
}

// Dismiss is Close: the Control has sent the reason.
func (s *Session) Dismiss(*tunnel.Goodbye) error { return s.Close() }

// Link is the state of the session's connections.
func (s *Session) Link() tunnel.LinkState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.linkLocked()
}

func (s *Session) linkLocked() tunnel.LinkState {
	l := s.stats
	l.Streams, l.MaxStreams = s.open, s.conf.maxStreams
	l.RTT, l.Sent, l.Queued, l.Connections, l.Addr = s.keepalive.rtt, s.dataSent, s.retained, len(s.conns), s.paths.lastLostAddr
	if c := s.firstLocked(); c != nil {
		l.Addr = c.tls.RemoteAddr()
	}
	return l
}

// Tell makes the session call f when it is parked and when it is resumed; see
// tunnel.Session.
func (s *Session) Tell(f func(tunnel.LinkState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onChange = f
	if !s.stats.Parked.IsZero() && s.err == nil {
		f(s.linkLocked())
	}
}

// retainLocked counts n more bytes as retained, if the limits allow it or must is set.
func (s *Session) retainLocked(n int, must bool) bool {
	if s.err != nil || !must && s.retained+n > s.conf.maxRetained || !s.conf.budget.take(n, must) {
		return false
	}
	s.retained += n
	return true
}

func (s *Session) retentionFullLocked() bool {
	return s.retained >= s.conf.maxRetained || s.conf.budget.used.Load() >= s.conf.budget.limit
}

// retentionScarceLocked says whether half of a limit is used: the rest is for streams whose
// peers take data.
func (s *Session) retentionScarceLocked() bool {
	return s.retained > s.conf.maxRetained/2 || s.conf.budget.used.Load() > s.conf.budget.limit/2
}
