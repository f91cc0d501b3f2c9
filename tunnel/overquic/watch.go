// Watching: what a session does about its path.

package overquic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// stir says that the session is used: a path that carries something is looked at
// more often than one at rest.
func (s *session) stir() {
	if s.resting.Load() {
		select {
		case s.stirred <- struct{}{}:
		default:
		}
	}
}

// see takes a look.
func (s *session) see() look {
	st := s.conn.ConnectionStats()
	return look{now: time.Now(), sent: st.PacketsSent, received: st.PacketsReceived, bytes: st.BytesSent, rtt: st.SmoothedRTT, sample: st.LatestRTT}
}

// watch looks after the path until the connection ends.
func (s *session) watch() {
	ctx := s.conn.Context()
	s.start(s.see())
	t := time.NewTimer(0)
	defer t.Stop()
	var next time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.stirred:
			// Whatever stirred us has yet to show.
			s.resting.Store(false)
			if soon := time.Now().Add(s.tempo().busy); soon.Before(next) {
				next = soon
			}
			t.Reset(time.Until(next))
			continue
		case w := <-s.words:
			s.obey(w)
			t.Reset(0) // whoever speaks is there
			continue
		}
		seen := s.see()
		now := s.pulse(seen)
		s.follow(ctx, seen, now)
		next = now.next
		s.resting.Store(now.idle)
		t.Reset(time.Until(next))
	}
}

// obey does what the peer's word asks for. Only watch calls it.
func (s *session) obey(w word) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case w.kind == kindHello:
		s.link.Window = min(s.link.Window, w.window)
		if s.asker != nil {
			s.asker.window = s.link.Window
			s.asker.atLeast(w.interval)
		} else {
			s.hearer.window = s.link.Window
			s.hearer.promise = max(s.hearer.promise, min(w.interval, maxPromise))
		}
	case w.kind == kindBeat && s.hearer != nil:
		s.hearer.promise, s.hearer.deaf = min(w.interval, maxPromise), time.Time{}
	case w.kind == kindHurry:
		s.asker.hurry()
	case w.kind == kindDeaf:
		s.hearer.deaf = time.Now().Add(deafFor)
	case w.kind == kindMoved && s.asker != nil:
		// If it is not our doing, then something on the path has forgotten us
		// while we were silent.
		if !s.mooring.shifted.Swap(false) {
			s.asker.fall()
		}
	}
}

func (s *session) tempo() tempo {
	if s.asker != nil {
		return s.asker.tempo
	}
	return tempoOf(s.hearer.promise)
}

// start is the first look.
func (s *session) start(l look) {
	if s.asker != nil {
		s.asker.start(l)
	} else {
		s.hearer.start(l)
	}
}

// pulse is the step after l.
func (s *session) pulse(l look) step {
	if s.asker != nil {
		return s.asker.look(l)
	}
	return s.hearer.look(l)
}

// follow does what a step says, which follows from seen.
func (s *session) follow(ctx context.Context, seen look, now step) {
	s.mu.Lock()
	s.link.Heard, s.looked = s.heard(), seen.received
	switch {
	case now.lost:
		s.link.Parked = time.Now()
		s.link.Parks++
		s.link.Cause = s.silence()
	case now.back:
		s.link.Parked, s.link.Cause = time.Time{}, nil
		s.link.Resumes++
	}
	if s.tell != nil && (now.lost || now.back) {
		s.tell(s.link)
	}
	window := s.link.Window
	s.mu.Unlock()
	switch {
	case now.lost:
		s.log.Debug("path is dead", "addr", s.peer.Addr.String())
	case now.back:
		s.log.Debug("path is alive again", "addr", s.peer.Addr.String())
	}
	if now.over {
		s.end(codeGone, &gone{code: tunnel.Dead, text: fmt.Sprintf("detach window is over: no answer for %v", window)})
		return
	}
	if s.asker != nil {
		s.promise.Store(int64(s.asker.promise()))
	}
	if s.asker != nil && (now.ask || now.back) {
		s.beat()
	}
	switch {
	case now.kick:
		s.kick(ctx, now.fresh)
	case now.knock:
		s.mooring.knock()
	case s.asker != nil && !s.asker.tried:
		s.mooring.rest()
	}
	if s.hearer != nil {
		s.follows()
	}
	if s.asks() {
		s.inquire(now)
	}
	if now.mute && s.below != nil {
		addr := s.addr() // that was judged; packets may come from another by now
		s.log.Debug("path bears no full packets", "addr", addr.String())
		s.below.muted.mute(addr, time.Now().Add(min(s.hearer.promise, longestMute)+slowest))
	}
}

// silence is why the path counts as dead. Only watch calls it.
func (s *session) silence() error {
	if s.hearer != nil && time.Now().Before(s.hearer.deaf) {
		return fmt.Errorf("%w: it hears nothing", tunnel.Dead)
	}
	return fmt.Errorf("%w: nothing heard for %v", tunnel.Dead, time.Since(s.heard()).Round(time.Millisecond))
}

// heard is when a look last found that something had come. Only watch calls it.
func (s *session) heard() time.Time {
	if s.asker != nil {
		return s.asker.heard
	}
	return s.hearer.heard
}

// Tell tells f when the path dies and when it is alive again; see tunnel.Teller.
func (s *session) Tell(f func(tunnel.LinkState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell = f
	if f != nil && !s.link.Parked.IsZero() {
		f(s.link)
	}
}

// kick tries to get through. What has been asked goes with it once more.
func (s *session) kick(ctx context.Context, fresh bool) {
	changed, err := s.mooring.kick(ctx, fresh)
	if err != nil {
		s.log.Debug("cannot try another path", "addr", s.peer.Addr.String(), "err", err)
	}
	// Where nothing has been begun anew, this is also what is left to get an answer
	// to: the library asks for one to what is on its way ever more seldom, and
	// before it knows that the peer has its part of the handshake only by packets
	// that the peer, which has it, cannot read any more.
	if now := time.Now(); !s.asker.parked.IsZero() && (!changed || now.Sub(s.cried) >= deafPause) {
		s.cried = now
		select {
		case s.cries <- struct{}{}:
		default: // the one before has yet to go
		}
	}
	s.rouse()
}

// cry says in datagrams that this end is deaf, whenever watch wants it to, until
// the connection ends. A datagram waits for room in a short queue, which is why
// watch does not say it itself.
func (s *session) cry() {
	done := s.conn.Context().Done()
	for {
		select {
		case <-s.cries:
			_ = s.conn.SendDatagram([]byte{kindDeaf}) // it will be said again
		case <-done:
			return
		}
	}
}

// datagrams hands on what datagrams say.
func (s *session) datagrams() {
	ctx := s.conn.Context()
	for {
		d, err := s.conn.ReceiveDatagram(ctx)
		if err != nil {
			return
		}
		if len(d) != 1 || d[0] != kindDeaf {
			continue
		}
		select {
		case s.words <- word{kind: kindDeaf}:
		case <-ctx.Done():
			return
		}
	}
}

// follows tells the peer if its packets have come to come from another address.
func (s *session) follows() {
	addr := s.conn.RemoteAddr()
	s.mu.Lock()
	before := s.link.Addr
	s.link.Addr = addr
	s.mu.Unlock()
	if addr.String() != before.String() {
		if s.below != nil {
			s.below.muted.unmute(before)
		}
		s.say(word{kind: kindMoved})
	}
}

// addr is where the peer's packets came from when follows last looked.
func (s *session) addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link.Addr
}

// Link is how the connection fares.
func (s *session) Link() tunnel.LinkState {
	st := s.conn.ConnectionStats()
	s.mu.Lock()
	l := s.link
	if st.PacketsReceived > s.looked && l.Parked.IsZero() {
		l.Heard = time.Now() // since the latest look, which is not long ago unless nothing was going on
	}
	s.mu.Unlock()
	if s.hearer != nil {
		l.Addr = s.conn.RemoteAddr()
	}
	l.RTT = st.SmoothedRTT
	l.Replayed, l.Sent, l.Received = st.BytesLost, st.BytesSent, st.BytesReceived
	return l
}

// Move changes to another socket, after making sure that the server can be
// reached through it. If the path is dead there is nothing to lose, and it changes
// until the server is reached.
func (s *session) Move(ctx context.Context) error {
	if s.mooring == nil {
		return errors.New("move session: only the end that dialed can")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.conn.Context(), func() { cancel(s.why()) })()
	move := s.mooring.move
	if !s.Link().Parked.IsZero() {
		move = s.hurry
	}
	if err := move(ctx); err != nil {
		return fmt.Errorf("move session: %w", err)
	}
	s.beat()
	return nil
}

// hurry has watch try another path now, and waits until the session is parked no
// more.
func (s *session) hurry(ctx context.Context) error {
	select {
	case s.words <- word{kind: kindHurry}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	look := time.NewTicker(tempoOf(0).asked)
	defer look.Stop()
	for !s.Link().Parked.IsZero() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// beat says when the peer will hear from this end again.
func (s *session) beat() {
	s.say(word{kind: kindBeat, interval: time.Duration(s.promise.Load())})
}

// rouse has the library look at what there is to do, of which changing a path
// tells it nothing.
func (s *session) rouse() {
	s.tally.SetPriority(urgencyTally, s.roused)
	s.roused = !s.roused
}
