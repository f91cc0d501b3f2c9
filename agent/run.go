// Run: the loop that always wants one link.

package agent

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Run keeps a link up until ctx is done; then it drains the link, hangs up and
// returns nil. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	if !a.running.CompareAndSwap(false, true) {
		return errors.New("agent: Run was called before")
	}
	k := keeper{
		agent:  a,
		retry:  backoff{servers: len(a.cfg.Servers), lowest: a.cfg.MinBackoff, highest: a.cfg.MaxBackoff},
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

// A keeper is Run's state; nothing else touches it.
type keeper struct {
	agent    *Agent
	retry    backoff
	turn     int    // the next server's index
	sequence uint64 // of the latest greeting
	// leaving is a link whose server is about to leave while the next link
	// does the work; nil if there is none.
	leaving *link
	links   sync.WaitGroup
	logged  map[string]repeat // by server
}

func (k *keeper) run(ctx context.Context) {
	defer k.links.Wait()
	for ctx.Err() == nil {
		server := k.next()
		k.sequence++
		l, err := k.agent.connect(ctx, server, k.sequence)
		var wait time.Duration
		switch {
		case err == nil:
			wait = k.hold(ctx, l)
		case ctx.Err() != nil:
			return
		default:
			wait = k.failed(server, err)
		}
		pause(ctx, wait)
	}
}

// next is the server whose turn it is, except the one that is leaving.
func (k *keeper) next() string {
	servers := k.agent.cfg.Servers
	for {
		s := servers[k.turn%len(servers)]
		k.turn++
		if k.leaving == nil || k.leaving.server != s || len(servers) == 1 {
			return s
		}
		select {
		case <-k.leaving.done:
			k.leaving = nil
			return s
		default:
		}
	}
}

// failed notes an attempt that failed and says how long to wait.
func (k *keeper) failed(server string, err error) time.Duration {
	a := k.agent
	a.metrics.failures.WithLabelValues(reasonLabel(err)).Inc()
	var wait time.Duration
	if errors.Is(err, ErrReplaced) { // fenced: the server prefers another agent
		wait = k.retry.lost(rand.Float64())
	} else {
		wait = k.retry.failed(rand.Float64())
	}
	a.update(func(s *State) {
		s.Server, s.Err = server, err
		s.Failures++
	})
	k.report(server, err, wait)
	return wait
}

// hold runs l. It returns how long to wait before the next attempt, once l has
// ended, or once l's server is about to leave and there is another to go to.
func (k *keeper) hold(ctx context.Context, l *link) time.Duration {
	a := k.agent
	delete(k.logged, l.server)
	a.metrics.sessions.Inc()
	a.update(func(s *State) {
		a.current = l
		*s = State{Connected: true, Server: l.server, Session: l.welcome.Session, Since: time.Now()}
	})
	l.log.Info("connected", "peer", l.session.Peer().Addr, "attempt", k.sequence)
	k.links.Go(func() { l.run(ctx) })
	select {
	case <-l.done:
	case <-l.control.Draining():
		l.log.Info("server is about to leave")
		k.detach(nil)
		if k.outlasts(ctx, l) {
			k.part(l)
			return 0
		}
	}
	k.detach(l.err)
	return k.ended(ctx, l)
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
	case <-t.C:
		if ctx.Err() == nil {
			return true
		}
	case <-ctx.Done():
	}
	<-l.done // it drains by itself
	return false
}

// part leaves l to finish by itself. There is room for one such link: one that
// is still there from before is ended.
func (k *keeper) part(l *link) {
	if old := k.leaving; old != nil {
		_ = old.session.Close() // it is being given up
		<-old.done
	}
	k.leaving = l
}

// detach has DialContext use no link until the next.
func (k *keeper) detach(err error) {
	a := k.agent
	a.update(func(s *State) {
		if a.current != nil {
			s.Since = time.Now()
		}
		a.current = nil
		s.Connected, s.RTT, s.Err = false, 0, err
	})
}

// ended notes the end of a session and says how long to wait.
func (k *keeper) ended(ctx context.Context, l *link) time.Duration {
	lived := time.Since(l.since)
	if ctx.Err() != nil {
		l.log.Info("left", "lived", lived)
		return 0
	}
	if errors.Is(l.err, ErrReplaced) {
		wait := k.retry.lost(rand.Float64())
		l.log.Error("disconnected", "lived", lived, "retry", wait, "err", l.err)
		return wait
	}
	wait := k.retry.ended(lived, rand.Float64())
	l.log.Info("disconnected", "lived", lived, "retry", wait, "err", l.err)
	return wait
}

// repeatEvery is how often the same failure of the same server is worth a line.
const repeatEvery = time.Minute

// A repeat is a failure that was logged, and how often it has come back since.
type repeat struct {
	text  string
	at    time.Time
	times int
}

// report writes one line for a failed attempt. While a server fails in the same
// way again and again it does so once a minute, with a count.
func (k *keeper) report(server string, err error, wait time.Duration) {
	now, text := time.Now(), stable(err)
	last := k.logged[server]
	if last.text == text && now.Sub(last.at) < repeatEvery {
		last.times++
		k.logged[server] = last
		k.agent.log.Debug("cannot connect", "server", server, "retry", wait, "err", err)
		return
	}
	args := []any{slog.String("server", server), slog.Duration("retry", wait), slog.Any("err", err)}
	if last.text == text {
		args = append(args, slog.Int("repeated", last.times))
	}
	k.logged[server] = repeat{text: text, at: now}
	var r *Refusal
	if errors.As(err, &r) {
		k.agent.log.Error("cannot connect", args...)
		return
	}
	k.agent.log.Warn("cannot connect", args...)
}

// stable is what of an error stays the same from one attempt to the next: a
// network error also names the local port.
func stable(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Op + " " + op.Err.Error()
	}
	return err.Error()
}

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
