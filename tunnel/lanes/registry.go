// Registry: which stream a number means.

package lanes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A registry knows the streams by number. Numbers that the dialing end gives are
// odd, those that the other end gives even. The session's mu guards it.
type registry struct {
	ours  uint64 // the parity of the numbers given here
	last  uint64 // the latest number given here
	known map[uint64]*stream
	early map[uint64]*leg // legs whose stream's number has not been read yet

	gone   []departed // the latest streams that are no more, maxGone at most
	oldest int        // in gone, once there are so many
}

// A departed is a stream that is no more.
type departed struct {
	number  uint64
	aborted bool // it was given up
}

func (r *registry) init(dialing bool) {
	if dialing {
		r.ours = 1
	}
	r.known = make(map[uint64]*stream)
	r.early = make(map[uint64]*leg)
}

// open gives st its number.
func (r *registry) open(st *stream) uint64 {
	r.last++
	n := r.last<<1 | r.ours
	r.known[n] = st
	return n
}

// remove forgets a stream, if it was known.
func (r *registry) remove(number uint64, aborted bool) {
	if _, ok := r.known[number]; !ok {
		return
	}
	delete(r.known, number)
	d := departed{number, aborted}
	if len(r.gone) < maxGone {
		r.gone = append(r.gone, d)
		return
	}
	r.gone[r.oldest] = d
	r.oldest = (r.oldest + 1) % maxGone
}

// fate says what to do with a leg whose stream is not known: wait for its number,
// give it up, or else wind it up in good order.
func (r *registry) fate(number uint64) (wait, abort bool) {
	for _, g := range r.gone {
		if g.number == number {
			return false, g.aborted
		}
	}
	return number&1 != r.ours, number&1 == r.ours
}

// identify makes st known by the number that its opener gave it, and gives it
// the leg that has come already. The caller holds st.mu.
func (s *Session) identify(st *stream, number uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number&1 == s.streams.ours || number < 2 {
		return fmt.Errorf("%w: stream number %d is not the peer's to give", tunnel.ErrFrame, number)
	}
	if s.streams.known[number] != nil {
		return fmt.Errorf("%w: stream number %d twice", tunnel.ErrFrame, number)
	}
	st.number = number
	s.streams.known[number] = st
	if g := s.streams.early[number]; g != nil {
		delete(s.streams.early, number)
		g.claimed <- st
	}
	return nil
}

// forget takes a stream out.
func (s *Session) forget(number uint64, aborted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams.remove(number, aborted)
}

// deliver gives a leg that the peer has begun to its stream. It returns once the
// leg has one, or is gone.
func (s *Session) deliver(g *leg, number uint64) {
	s.mu.Lock()
	st := s.streams.known[number]
	if st != nil {
		s.mu.Unlock()
		st.arrive(g)
		return
	}
	wait, abort := s.streams.fate(number)
	wait = wait && len(s.streams.early) < maxEarly && s.streams.early[number] == nil
	if wait {
		s.streams.early[number] = g
	}
	s.mu.Unlock()
	switch {
	case wait:
		s.linger(g, number)
	case abort:
		g.abort()
	default:
		g.close()
	}
}

// linger waits until somebody reads the number of g's stream.
func (s *Session) linger(g *leg, number uint64) {
	t := time.NewTimer(s.tune.prefix)
	defer t.Stop()
	select {
	case st := <-g.claimed:
		st.arrive(g)
		return
	case <-t.C:
	case <-g.lane.session.Context().Done():
	}
	s.mu.Lock()
	if s.streams.early[number] == g {
		delete(s.streams.early, number)
	}
	s.mu.Unlock()
	select {
	case st := <-g.claimed: // at the last moment
		st.arrive(g)
	default:
		g.abort()
	}
}

// endings are why lanes have ended, the latest ones. The session's mu guards
// them.
type endings struct {
	causes map[int]error
	order  []int
}

var errRetired = errors.New("lane was no longer needed")

func (e *endings) add(lane int, cause error) {
	if e.causes == nil {
		e.causes = make(map[int]error)
	}
	if _, twice := e.causes[lane]; !twice {
		e.order = append(e.order, lane)
	}
	e.causes[lane] = cause
	if len(e.order) > maxEnded {
		delete(e.causes, e.order[0])
		e.order = e.order[1:]
	}
}

// whereabouts says of a lane whether it is there, or else with an error why it has
// ended, if that is known; and what is closed when that next changes.
func (s *Session) whereabouts(lane int) (up bool, changed <-chan struct{}, ended error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false, s.changed, context.Cause(s.home.Context())
	}
	_, up = s.lanes[lane]
	return up, s.changed, s.ended.causes[lane]
}
