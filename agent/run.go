// Run: the loop that always wants one link.

package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// Run keeps a link up until ctx is done; then it drains the link, hangs up and
// returns nil. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	if !a.running.CompareAndSwap(false, true) {
		return errors.New("agent: Run was called before")
	}
	k := keeper{
		agent:  a,
		turn:   a.first,
		retry:  backoff{servers: len(a.cfg.Servers), lowest: a.cfg.MinBackoff, highest: a.cfg.MaxBackoff},
		asked:  make(map[string]time.Time),
		shifts: make(chan struct{}, 1),
		logged: make(map[string]repeat),
	}
	k.run(ctx)
	a.update(func(s *State) {
		a.stopped = true
		s.Err = nil
	})
	return nil
}

// leaveTimeout is how long the only server may take to leave after it has said
// that it will, before it is connected to again.
const leaveTimeout = 30 * time.Second

// maxLeaving is how many links may live on beside the one in use. Servers have
// room for as many.
const maxLeaving = 2

// A keeper is Run's state; nothing else touches it.
type keeper struct {
	agent    *Agent
	retry    backoff
	turn     int                  // the next server's index
	again    string               // a server to try once more before that; empty if there is none
	asked    map[string]time.Time // until when a server wants to be left alone
	fenced   bool                 // another agent is preferred, or the node is not admitted
	welcomed bool                 // it has had a session
	// leaving are links that live on while another one does the work, the latest
	// first.
	leaving []*link
	search  search
	moving  chan moveEnd  // how the move under way ended; nil if there is none
	shifts  chan struct{} // holds one if the way out may have changed
	clock   time.Time     // at the latest look
	links   sync.WaitGroup
	logged  map[string]repeat // by server
}

func (k *keeper) run(ctx context.Context) {
	defer k.links.Wait()
	k.links.Go(func() {
		k.agent.terrain.watch(ctx, func() {
			select {
			case k.shifts <- struct{}{}:
			default: // one is enough
			}
		})
	})
	var wait time.Duration
	for {
		server := k.next()
		k.rest(ctx, server, wait)
		if ctx.Err() != nil {
			return
		}
		l, err := k.agent.connect(ctx, k.plan(server))
		switch {
		case err == nil:
			wait = k.hold(ctx, l)
		case ctx.Err() != nil:
			return
		default:
			wait = k.failed(server, err)
		}
	}
}

// next is the server whose turn it is, except those that other agents of this node have,
// and those that are leaving unless there is no other.
func (k *keeper) next() string {
	again := k.again
	k.again = ""
	if again != "" && k.agent.shared.take(k.agent, again) {
		return again
	}
	servers := k.agent.cfg.Servers
	k.forget()
	for i := range 2 * len(servers) {
		s := servers[k.turn%len(servers)]
		k.turn++
		leaving := slices.ContainsFunc(k.leaving, func(l *link) bool { return l.server == s })
		if (!leaving || i >= len(servers)) && k.agent.shared.take(k.agent, s) {
			k.agent.shared.keep(k.agent, s)
			return s
		}
	}
	panic("more agents than servers")
}

// forget drops leaving links that have left.
func (k *keeper) forget() {
	k.leaving = slices.DeleteFunc(k.leaving, func(l *link) bool {
		select {
		case <-l.done:
			return true
		default:
			return false
		}
	})
}

// rest waits before the next attempt, and for as long as the server asked. A
// change of the way out may be what the agent has waited for, and cuts the wait
// short.
func (k *keeper) rest(ctx context.Context, server string, wait time.Duration) {
	if asked := time.Until(k.asked[server]); asked > wait {
		pause(ctx, asked)
		return
	}
	delete(k.asked, server)
	if wait <= 0 {
		return
	}
	if k.retry.replaced > 0 { // it has nothing to do with the way out
		pause(ctx, wait)
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	until := time.Now().Add(wait)
	for {
		select {
		case <-t.C:
			return
		case <-ctx.Done():
			return
		case <-k.shifts:
			t.Reset(min(time.Until(until), k.agent.cfg.MinBackoff))
		}
	}
}

// plan is a plan with the next sequence number. What is leaving that server is
// kept.
func (k *keeper) plan(server string) plan {
	k.forget()
	p := plan{server: server, sequence: k.agent.shared.sequence.Add(1)}
	for _, l := range k.leaving {
		if l.server == server {
			p.keeps = append(p.keeps, l.sequence)
		}
	}
	return p
}

// failed notes an attempt that failed and says how long to wait.
func (k *keeper) failed(server string, err error) time.Duration {
	a := k.agent
	a.metrics.failures.WithLabelValues(reasonLabel(err)).Inc()
	var wait time.Duration
	if errors.Is(err, ErrReplaced) || errors.Is(err, ErrRevoked) {
		wait = k.lost(err)
	} else {
		wait = k.retry.failed(rand.Float64())
		k.heed(server, err)
	}
	a.update(func(s *State) {
		s.Server, s.Err = server, err
		s.Failures++
	})
	k.report(server, err, wait)
	return wait
}

// lost notes that a server prefers another agent, or does not admit this node, and
// says how long to wait: as long as the server asks for, which knows when that can
// change, or else ever longer.
func (k *keeper) lost(err error) time.Duration {
	k.fence(true)
	if errors.Is(err, ErrRevoked) && !k.welcomed {
		if revoked := k.agent.cfg.Revoked; revoked != nil {
			revoked()
		}
		return k.retry.failed(rand.Float64()) // there may soon be another key
	}
	wait := k.retry.lost(rand.Float64())
	if asked, ok := tunnel.RetryAfter(err); ok {
		wait = spread(asked)
	}
	return wait
}

// spread is up to half as long again as d. Agents that were all told the same do
// not come back together.
func spread(d time.Duration) time.Duration { return d + time.Duration(rand.Float64()*float64(d)/2) }

// fence notes whether another agent is the node, and tells who wants to know if that
// is news.
func (k *keeper) fence(up bool) {
	if k.fenced == up {
		return
	}
	k.fenced = up
	k.agent.update(func(s *State) { s.Fenced = up })
	if f := k.agent.cfg.Fenced; f != nil {
		f(up)
	}
}

// heed notes when a server wants to be asked again.
func (k *keeper) heed(server string, err error) {
	if d, ok := tunnel.RetryAfter(err); ok {
		k.asked[server] = time.Now().Add(spread(d))
	}
}

// use has DialContext use l from now on.
func (k *keeper) use(ctx context.Context, l *link) {
	a := k.agent
	a.shared.keep(a, l.server)
	delete(k.logged, l.server)
	k.welcomed = true
	a.metrics.began(l)
	l.path = a.terrain.path(addrOf(l.remote()))
	k.search.attempts, k.search.retry = 0, time.Time{}
	a.update(func(s *State) {
		a.current = l
		*s = State{Connected: true, Server: l.server, Transport: a.cfg.Transport.Name, Session: l.welcome.Session, Since: time.Now()}
	})
	k.fence(false)
	l.log.Info("connected", "transport", a.cfg.Transport.Name, "peer", l.session.Peer().Addr, "attempt", l.sequence)
	k.links.Go(func() { l.run(ctx) })
	k.forget()
	if moved := a.cfg.Moved; moved != nil && len(k.leaving) > 0 {
		moved(k.leaving[0].given.Err() != nil)
	}
}

// hold runs l, and whatever link comes after it without a gap. It returns how
// long to wait before the next attempt, once the link has ended, or once its
// server is about to leave and there is another to go to.
func (k *keeper) hold(ctx context.Context, l *link) time.Duration {
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	k.clock = time.Now()
	k.use(ctx, l)
	for {
		select {
		case <-l.done:
			k.detach(l.err)
		case <-l.control.Draining():
			l.log.Info("server is about to leave")
			k.detach(nil)
		case <-looks.C:
			k.look(ctx, l)
			continue
		case <-k.shifts:
			k.shifted(ctx, l)
			continue
		case m := <-k.moving:
			k.moved(l, m)
			continue
		case f := <-k.search.found:
			if n := k.settle(f); n != nil {
				k.part(l)
				l = n
				k.use(ctx, l)
			}
			continue
		}
		// The link is at its end. An attempt at another may be under way.
		if n := k.await(ctx); n != nil {
			k.part(l)
			l = n
			k.use(ctx, l)
			continue
		}
		if k.outlasts(ctx, l) {
			k.part(l)
			return 0
		}
		k.detach(l.err)
		return k.ended(ctx, l)
	}
}

// outlasts says whether l, whose server is about to leave, should be left to
// finish by itself: at once if there is another server to go to, and else if
// the server takes too long about it. If not, l has ended.
func (k *keeper) outlasts(ctx context.Context, l *link) bool {
	patience := leaveTimeout
	if len(k.agent.cfg.Servers) > 1 {
		patience = 0
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-l.done:
		return false
	default:
	}
	select {
	case <-l.done:
		return false
	case <-t.C:
		if ctx.Err() == nil {
			return true
		}
	case <-ctx.Done():
	}
	<-l.done // it drains by itself
	return false
}

// part leaves l to finish by itself, within MoveTimeout. There is room for a few
// such links: the oldest is ended to make room.
func (k *keeper) part(l *link) {
	if !l.parked().IsZero() {
		l.giveUp() // what waits for it goes elsewhere
	}
	k.leaving = slices.Insert(k.leaving, 0, l)
	k.forget()
	if len(k.leaving) > maxLeaving {
		old := k.leaving[maxLeaving]
		k.leaving = k.leaving[:maxLeaving]
		_ = old.session.Close() // it is being given up
		<-old.done
	}
	limit := time.AfterFunc(k.agent.cfg.MoveTimeout, func() {
		l.log.Info("cutting streams that have not finished", "streams", l.streams.count()+l.opened.count(), "after", k.agent.cfg.MoveTimeout)
		_ = l.session.Close() // it is being given up
	})
	k.links.Go(func() {
		<-l.done
		limit.Stop()
	})
}

// detach has DialContext use no link until the next.
func (k *keeper) detach(err error) {
	a := k.agent
	a.update(func(s *State) {
		if a.current != nil {
			s.Since = time.Now()
		}
		a.current = nil
		s.Connected, s.Parked, s.RTT, s.Err = false, time.Time{}, 0, err
	})
}

// ended notes the end of a session and says how long to wait. A server that did
// not send the agent away is tried once more before others are.
func (k *keeper) ended(ctx context.Context, l *link) time.Duration {
	lived := time.Since(l.since)
	if ctx.Err() != nil {
		l.log.Info("left", "lived", lived)
		return 0
	}
	if errors.Is(l.err, ErrReplaced) { // a session of this agent would have said that it keeps the one in use
		wait := k.lost(l.err)
		l.log.Error("another agent is this node now", "lived", lived, "next", at(wait), "err", l.err)
		return wait
	}
	if errors.Is(l.err, ErrRevoked) {
		wait := k.lost(l.err)
		l.log.Error("this node is not admitted any more", "lived", lived, "next", at(wait), "err", l.err)
		return wait
	}
	var bye *tunnel.Goodbye
	if lived >= settled && !errors.As(l.err, &bye) {
		k.again = l.server
	}
	wait := k.retry.ended(lived, rand.Float64())
	k.heed(l.server, l.err)
	l.log.Info("disconnected", "lived", lived, "retry", wait, "err", l.err)
	return wait
}

// repeatEvery is how often the same failure of the same server is worth a line.
const repeatEvery = time.Minute

// pause waits, or returns early once ctx is done.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
