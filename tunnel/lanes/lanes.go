// Session: the lanes as one tunnel.Session.

package lanes

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// DefaultMax is how many lanes a session has at most when nothing else is said.
const DefaultMax = 4

// A Config says how many lanes there may be and where they come from. Zero fields
// mean a good default.
type Config struct {
	// Max is how many lanes there may be, lane 0 counted; zero means DefaultMax.
	// Both ends should have the same.
	Max int
	// Dial makes a further lane; nil at the end that accepted lane 0, which Adds
	// what its peer has dialed. Numbers start at 1 and are never used again. The
	// Session owns what is returned and stops ctx when it ends.
	Dial func(ctx context.Context, lane int) (tunnel.Session, error)
	// RTT is the round trip on lane 0, zero while unknown; nil asks lane 0's
	// session.
	RTT func() time.Duration
	// Log is told of lanes that come and go; nil means discard.
	Log *slog.Logger

	tune tuning // zero means standard
}

// tuning is what tests have smaller.
type tuning struct {
	// A direction moves once it has said this much at home, with leak bytes
	// a second taken off: far if there is a lane or the path is long, near if a
	// lane would have to be made for it and the path is short.
	far, near, leak int
	// short is the round trip below which a path is short.
	short time.Duration
	// patience is how long a direction that should move waits for a lane, retry
	// how long one stays at home that has not got one.
	patience, retry time.Duration
	// sweep is how often legs and lanes are looked at. A leg on which less than
	// calm bytes were said in each of two sweeps ends.
	sweep time.Duration
	calm  int64
	// idle is how long a lane without legs is kept.
	idle time.Duration
	// backoff is how long no lane is dialed after one could not be, doubled with
	// each failure up to maxBackoff; asking is how long the accepting end waits
	// before it asks again.
	backoff, maxBackoff, asking time.Duration
	// probe is how often a stream that waits for a leg looks whether it waits in
	// vain.
	probe time.Duration
	// dial bounds the making of a lane, prefix what is said at the beginning of a
	// leg, parting the time that a closed stream has to bring its last bytes
	// home.
	dial, prefix, parting time.Duration
}

// standard is the tuning of real sessions. It is written here once and never
// changed.
//
// A 1.3 Mbit/s path takes 0.4 s for 64 KiB: a keystroke waits no longer behind a
// transfer that is about to move. On a short path 256 KiB are gone in no time, and
// a list of pods is not worth a connection.
var standard = tuning{
	far: 64 << 10, near: 256 << 10, leak: 16 << 10, short: 5 * time.Millisecond,
	patience: 3 * time.Second, retry: 10 * time.Second,
	sweep: 2 * time.Second, calm: 16 << 10, idle: 30 * time.Second,
	backoff: 5 * time.Second, maxBackoff: time.Minute, asking: 10 * time.Second,
	probe: time.Second,
	dial:  20 * time.Second, prefix: 10 * time.Second, parting: time.Minute,
}

const (
	// maxGone is how many streams are remembered that are no more, maxEarly how
	// many legs may wait for the number of their stream to be read, and maxEnded
	// how many lanes' ends are remembered.
	maxGone  = 256
	maxEarly = 256
	maxEnded = 64
)

// A Session is one end of a session with lanes. It is a tunnel.Resumer.
type Session struct {
	home    tunnel.Session // lane 0
	config  Config
	tune    tuning
	log     *slog.Logger
	dialing bool // this end makes the lanes
	ctx     context.Context
	cancel  context.CancelCauseFunc

	mu      sync.Mutex // guards the following
	streams registry
	lanes   map[int]*lane
	ended   endings
	changed chan struct{} // closed at the next change of lanes
	demand  demand
	past    tunnel.LinkState // sums of the lanes that have ended
	over    bool             // nothing may be added to tasks
	tasks   sync.WaitGroup
}

// New makes a session of lane 0 and owns it. Both ends must do so at the same
// point: all streams that are open by then stay what they are, and all that are
// opened later must be opened and accepted through the Session. It starts
// nothing before a lane is needed.
func New(lane0 tunnel.Session, c Config) *Session {
	if c.Max <= 0 {
		c.Max = DefaultMax
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.tune == (tuning{}) {
		c.tune = standard
	}
	s := &Session{
		home: lane0, config: c, tune: c.tune, log: c.Log, dialing: c.Dial != nil,
		lanes: make(map[int]*lane), changed: make(chan struct{}),
	}
	s.streams.init(s.dialing)
	// The session is a root of its own, as lane 0 is.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	// Joined by s.ctx, which Close waits for.
	context.AfterFunc(lane0.Context(), s.bury)
	return s
}

// bury ends the other lanes after lane 0, and waits for everything.
func (s *Session) bury() {
	s.mu.Lock()
	s.over = true
	var left []*lane
	for _, l := range s.lanes {
		left = append(left, l)
	}
	s.notifyLocked()
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, l := range left {
		wg.Go(func() { _ = l.session.Close() }) // its end is what matters
	}
	wg.Wait()
	s.tasks.Wait()
	s.cancel(context.Cause(s.home.Context()))
}

// spawn runs f beside the caller. It does not if the session is over.
func (s *Session) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spawnLocked(f)
}

func (s *Session) spawnLocked(f func()) bool {
	if s.over {
		return false
	}
	s.tasks.Go(f)
	return true
}

// aside runs f beside the caller or, once the session is over and nothing in it
// can block for long, in the caller.
func (s *Session) aside(f func()) {
	if !s.spawn(f) {
		f()
	}
}

func (s *Session) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Context is done once every lane is dead; its cause is lane 0's.
func (s *Session) Context() context.Context { return s.ctx }

// Peer is lane 0's.
func (s *Session) Peer() tunnel.Peer { return s.home.Peer() }

// Open opens a stream on lane 0.
func (s *Session) Open(ctx context.Context) (tunnel.Stream, error) {
	child, err := s.home.Open(ctx)
	if err != nil {
		return nil, err
	}
	st := newStream(s, child)
	s.mu.Lock()
	defer s.mu.Unlock()
	st.number = s.streams.open(st)
	st.out.pend = appendNumber(st.out.pend, st.number)
	return st, nil
}

// Accept waits for a stream that the peer opened.
func (s *Session) Accept(ctx context.Context) (tunnel.Stream, error) {
	child, err := s.home.Accept(ctx)
	if err != nil {
		return nil, err
	}
	st := newStream(s, child)
	st.in.decoder.at = atNumber
	return st, nil
}

// Close ends every stream and every lane, and waits for that.
func (s *Session) Close() error {
	err := s.home.Close()
	<-s.ctx.Done()
	return err
}

// all is every session there is, lane 0 first.
func (s *Session) all() []tunnel.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []tunnel.Session{s.home}
	for _, l := range s.lanes {
		all = append(all, l.session)
	}
	return all
}

// Link is lane 0's state with the counts of all lanes.
func (s *Session) Link() tunnel.LinkState {
	all := s.all()
	state, _ := tunnel.LinkOf(all[0])
	for _, lane := range all[1:] {
		l, _ := tunnel.LinkOf(lane)
		add(&state, l)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&state, s.past)
	return state
}

// add adds up what can be added up.
func add(sum *tunnel.LinkState, l tunnel.LinkState) {
	sum.Parks += l.Parks
	sum.Resumes += l.Resumes
	sum.Replayed += l.Replayed
	sum.Sent += l.Sent
	sum.Received += l.Received
	sum.Queued += l.Queued
}

// Move moves every lane. Its error is about the lanes that have not moved.
func (s *Session) Move(ctx context.Context) error {
	all := s.all()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, lane := range all {
		wg.Go(func() { errs[i] = tunnel.Move(ctx, lane) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Lanes is how many lanes there are, lane 0 counted.
func (s *Session) Lanes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return 1 + len(s.lanes)
}

// Tell tells f when lane 0 is parked and when it goes on; see tunnel.Teller.
func (s *Session) Tell(f func(tunnel.LinkState)) { tunnel.Tell(s.home, f) }

var _ tunnel.Teller = (*Session)(nil)
