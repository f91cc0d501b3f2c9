// Run: the loop that keeps one link established.

package agent

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// Run keeps a link established until ctx is done; then it drains and closes the link and
// returns nil. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	if !a.running.CompareAndSwap(false, true) {
		return errors.New("agent: Run was called before")
	}
	k := keeper{
		agent:       a,
		turn:        a.first,
		retry:       backoff{servers: len(a.cfg.Servers), lowest: a.cfg.MinBackoff, highest: a.cfg.MaxBackoff},
		retryAfter:  make(map[string]time.Time),
		pathChanges: make(chan struct{}, 1),
		logged:      make(map[string]repeat),
		sameAs:      make(map[string]*link),
	}
	k.run(ctx)
	a.update(func(s *State) {
		a.stopped = true
		s.Err = nil
	})
	return nil
}

// maxLeaving bounds the links that drain beside the one in use. Servers accept as many.
const maxLeaving = 2

// A keeper is Run's state; only Run's goroutine uses it.
type keeper struct {
	agent      *Agent
	retry      backoff
	turn       int                  // index of the next server
	retryFirst string               // a server to retry before the next in turn; empty if there is none
	retryAfter map[string]time.Time // until when a server must not be tried, as it requested
	fenced     bool                 // another agent is preferred, or the node is not admitted
	began      time.Time            // when the latest attempt without a session began
	// leaving are links that drain beside the one in use, the latest first.
	leaving     []*link
	search      search
	moving      chan moveEnd  // the result of the current migration; nil if there is none
	pathChanges chan struct{} // holds one if the route may have changed
	clock       time.Time     // at the latest check
	suspended   bool          // the machine was, and there has been no route since
	links       sync.WaitGroup
	logged      map[string]repeat // by server
	said        verdict           // the latest about the node's certificate
	sameAs      map[string]*link  // by server: the session with the one that it led to
}

func (k *keeper) run(ctx context.Context) {
	defer k.links.Wait()
	k.links.Go(func() {
		k.agent.routing.watch(ctx, func() {
			select {
			case k.pathChanges <- struct{}{}:
			default: // one is enough
			}
		})
	})
	var wait time.Duration
	for {
		server := k.next(wait)
		k.waitRetry(ctx, server, wait)
		if ctx.Err() != nil {
			return
		}
		k.began = time.Now()
		l, err := k.agent.connect(ctx, k.plan(server))
		var same *sameError
		switch {
		case err == nil:
			wait = k.maintain(ctx, l)
		case ctx.Err() != nil:
			return
		case errors.As(err, &same):
			k.same(server, same)
			wait = 0
		default:
			wait = k.failed(server, err)
		}
	}
}

// next returns the server to try after wait: the next in turn that may be tried then, else the
// first that may be tried later. It skips those that other agents of this node have, and
// prefers those that are not leaving.
func (k *keeper) next(wait time.Duration) string {
	first := k.retryFirst
	k.retryFirst = ""
	if first != "" && k.agent.shared.take(k.agent, first) {
		return first
	}
	k.forget()
	servers := k.agent.cfg.Servers
	turn := k.turn % len(servers)
	order := slices.Concat(servers[turn:], servers[:turn])
	now := time.Now()
	slices.SortStableFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(k.delay(a, now, wait), k.delay(b, now, wait)), cmp.Compare(k.drains(a), k.drains(b)))
	})
	for _, s := range order {
		if k.agent.shared.take(k.agent, s) {
			k.agent.shared.keep(k.agent, s)
			k.turn = slices.Index(servers, s) + 1
			return s
		}
	}
	panic("more agents than servers")
}

// delay is how long not to try the server: wait, or longer if it requested that. An address
// that led to another one's server may be tried once that session is not in use.
func (k *keeper) delay(server string, now time.Time, wait time.Duration) time.Duration {
	if other := k.sameAs[server]; other != nil && !other.inUse() {
		return wait
	}
	return max(wait, k.retryAfter[server].Sub(now))
}

// drains is 1 if a leaving session with the server has not ended, else 0.
func (k *keeper) drains(server string) int {
	if slices.ContainsFunc(k.leaving, func(l *link) bool { return l.server == server }) {
		return 1
	}
	return 0
}

// forget drops leaving links that have ended.
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

// waitRetry waits before the next attempt, at least as long as the server requested. A change of
// the route, or of the node's certificate, ends the wait.
func (k *keeper) waitRetry(ctx context.Context, server string, wait time.Duration) {
	if d := time.Until(k.retryAfter[server]); d > wait {
		k.pauseBeside(ctx, server, d)
		return
	}
	delete(k.retryAfter, server)
	if wait <= 0 {
		return
	}
	if k.retry.replaced > 0 { // the route is not the reason
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
		case <-k.pathChanges:
			t.Reset(min(time.Until(until), k.agent.cfg.MinBackoff))
		case <-k.agent.renewed:
			t.Reset(min(time.Until(until), k.agent.cfg.MinBackoff))
		}
	}
}

// plan returns a plan with the next sequence number, which keeps the leaving sessions with
// that server.
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

// failed records a failed attempt and returns how long to wait.
func (k *keeper) failed(server string, err error) time.Duration {
	a := k.agent
	a.metrics.failures.WithLabelValues(reasonLabel(err)).Inc()
	var wait time.Duration
	if errors.Is(err, ErrReplaced) || errors.Is(err, ErrRevoked) {
		wait = k.lost(err)
	} else {
		wait = k.retry.failed(rand.Float64())
		k.recordRetryAfter(server, err)
		if !errors.As(err, new(*tunnel.Goodbye)) && a.shared.inUse() {
			k.fence(false) // the server that refused the node is out of reach, and another has it
		}
	}
	a.update(func(s *State) {
		s.Server, s.Err = server, err
		s.Failures++
	})
	switch {
	case acceptsCertificate(err):
		a.shared.answered(server, answer{at: time.Now()})
	case refusesCertificate(err) && a.shared.refuses(server, time.Now(), len(a.cfg.Servers)) && !a.shared.isFenced():
		a.rejected(k.began)
	}
	k.report(server, err, wait)
	return wait
}

// lost records that a server prefers another agent, or does not admit this node. It returns
// how long to wait: what the server requests, else an increasing back-off.
func (k *keeper) lost(err error) time.Duration {
	k.fence(true)
	if errors.Is(err, ErrRevoked) && !k.agent.shared.hadSession.Load() {
		if revoked := k.agent.cfg.Revoked; revoked != nil {
			revoked(k.began)
		}
		return k.retry.failed(rand.Float64()) // the agent may soon have another key
	}
	wait := k.retry.lost(rand.Float64())
	if d, ok := tunnel.RetryAfter(err); ok {
		wait = spread(d)
	}
	return wait
}

// spread adds up to half of d at random, so that agents that received the same delay
// reconnect at different times.
func spread(d time.Duration) time.Duration { return d + time.Duration(rand.Float64()*float64(d)/2) }

// fence records whether another agent is the node, and calls Config.Fenced if that changed.
func (k *keeper) fence(up bool) {
	if k.fenced == up {
		return
	}
	k.fenced = up
	k.agent.shared.fence(up)
	k.agent.update(func(s *State) { s.Fenced = up })
	if f := k.agent.cfg.Fenced; f != nil {
		f(up)
	}
}

// recordRetryAfter records when a server may be tried again.
func (k *keeper) recordRetryAfter(server string, err error) {
	if d, ok := tunnel.RetryAfter(err); ok {
		k.retryAfter[server] = time.Now().Add(spread(d))
		delete(k.sameAs, server) // it is not why
	}
}

// use makes DialContext use l.
func (k *keeper) use(ctx context.Context, l *link) {
	a := k.agent
	a.shared.keep(a, l.server)
	delete(k.logged, l.server)
	a.shared.hadSession.Store(true)
	a.shared.answered(l.server, answer{session: l})
	a.metrics.began(l)
	l.path = a.routing.path(addrOf(l.remote()))
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
		moved(k.leaving[0].abandoned.Err() != nil)
	}
}

// maintain runs l, and the links that replace it without a gap. It returns how long to wait
// before the next attempt, once the link has ended, or once its server is about to leave
// and another server can be tried. If there is no other server, its name may lead to another
// process: l is used until a search has found that, or l has ended.
func (k *keeper) maintain(ctx context.Context, l *link) time.Duration {
	checks := time.NewTicker(checkEvery)
	defer checks.Stop()
	k.clock = time.Now()
	k.use(ctx, l)
	draining := l.control.Draining()
	for {
		var n *link
		select {
		case <-l.done:
			k.detach(l.err)
		case <-draining:
			l.log.Info("server is about to leave")
			draining = nil
			if l.alone() {
				k.search.attempts, k.search.retry = 0, time.Time{}
				continue
			}
			k.detach(nil)
		case <-checks.C:
			k.check(ctx, l)
			continue
		case <-k.pathChanges:
			k.pathChanged(ctx, l, false)
			continue
		case m := <-k.moving:
			k.moved(l, m)
			continue
		case f := <-k.search.found:
			if n = k.finishSearch(f); n == nil {
				continue
			}
		}
		if n == nil {
			// The link has ended. An attempt to make another may be running.
			n = k.await(ctx)
		}
		if n == nil {
			return k.left(ctx, l)
		}
		k.leave(l)
		l, draining = n, n.control.Draining()
		k.use(ctx, l)
	}
}

// left returns how long to wait after l, which has ended, or which drains on its own while
// another server is tried.
func (k *keeper) left(ctx context.Context, l *link) time.Duration {
	select {
	case <-l.done:
	default:
		if ctx.Err() == nil {
			k.leave(l)
			return k.retry.ended(time.Since(l.since), rand.Float64())
		}
		<-l.done
	}
	k.detach(l.err)
	return k.ended(ctx, l)
}

// leave lets l drain on its own, within MoveTimeout. If there are too many such links it
// ends the oldest.
func (k *keeper) leave(l *link) {
	l.left.Store(true)
	if !l.parked().IsZero() {
		l.abandon() // its waiters use another link
	}
	k.leaving = slices.Insert(k.leaving, 0, l)
	k.forget()
	if len(k.leaving) > maxLeaving {
		old := k.leaving[maxLeaving]
		k.leaving = k.leaving[:maxLeaving]
		_ = old.session.Close() // its streams are lost
		<-old.done
	}
	limit := time.AfterFunc(k.agent.cfg.MoveTimeout, func() {
		l.log.Info("cutting streams that have not finished", "streams", l.streams.count()+l.opened.count(), "after", k.agent.cfg.MoveTimeout)
		_ = l.session.Close() // its streams are lost
	})
	idle := time.AfterFunc(idleElsewhere, l.endIdleElsewhere)
	k.links.Go(func() {
		<-l.done
		limit.Stop()
		idle.Stop()
	})
}

// detach makes DialContext wait for the next link.
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

// ended records the end of a session and returns how long to wait. A server that did not
// refuse the agent is retried once before others.
func (k *keeper) ended(ctx context.Context, l *link) time.Duration {
	lived := time.Since(l.since)
	if ctx.Err() != nil {
		l.log.Info("left", "lived", lived)
		return 0
	}
	if errors.Is(l.err, ErrReplaced) && k.agent.shared.overtaken(l) {
		l.err = errOvertaken
	}
	if errors.Is(l.err, ErrReplaced) {
		wait := k.lost(l.err)
		l.log.Error("another agent is this node now", "lived", lived, "next", at(wait), "err", l.err)
		return wait
	}
	if errors.Is(l.err, ErrRevoked) {
		wait := k.lost(l.err)
		l.log.Error("this node is no longer admitted", "lived", lived, "next", at(wait), "err", l.err)
		return wait
	}
	var bye *tunnel.Goodbye
	if lived >= settled && !errors.As(l.err, &bye) {
		k.retryFirst = l.server
	}
	wait := k.retry.ended(lived, rand.Float64())
	k.recordRetryAfter(l.server, l.err)
	l.log.Info("disconnected", "lived", lived, "retry", wait, "err", l.err)
	return wait
}

// repeatEvery is how often the same failure of the same server is logged.
const repeatEvery = time.Minute

// pause waits, or returns early once ctx is done.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
