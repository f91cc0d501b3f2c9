// Search: attempts at a new link while there is one, because that is parked, its server is about
// to leave, or the route to the server changed.

package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// checkEvery is how often the keeper checks its link.
	checkEvery = time.Second
	// parkedTimeout is how long a session may have no connection before another server is
	// tried while it reconnects.
	parkedTimeout = 500 * time.Millisecond
	// searchTimeout is how long an attempt beside a session may go on once that has ended.
	searchTimeout = 2 * time.Second
	// moveTimeout bounds a session's migration to another connection.
	moveTimeout = 15 * time.Second
	// idleElsewhere is how long a session without streams is resumed beside the one in use while the
	// attempts reach other servers.
	idleElsewhere = 10 * time.Second
	// suspendedFrom is the difference between wall clock and monotonic clock from which the
	// machine is taken to have been suspended.
	suspendedFrom = 5 * time.Second
)

// Reasons to search for a link beside the one in use.
const (
	fallback = "fallback" // it is parked, and there are other servers; or its server is about to leave
	address  = "address"  // its route changed, and its transport cannot migrate
)

// connection is the metrics' reason for a session's own migration.
const connection = "connection"

// A found is the result of a search.
type found struct {
	link   *link
	reason string
	server string
	began  time.Time
	err    error
}

// A search makes attempts at a link beside the one in use, one at a time.
type search struct {
	found    chan found         // nil if no attempt is running; else receives its result
	cancel   context.CancelFunc // ends the attempt that is running
	attempts int                // at another server while the link is parked, or drains
	retry    time.Time          // when to make the next attempt
}

// remote is the session's remote address.
func (l *link) remote() net.Addr { return cmp.Or(l.session.Link().Addr, l.session.Peer().Addr) }

// check runs the periodic checks.
func (k *keeper) check(ctx context.Context, l *link) {
	now := time.Now()
	k.logLink(l)
	if suspended(now.Round(0).Sub(k.clock.Round(0)), now.Sub(k.clock)) {
		l.log.Info("machine was suspended")
		k.pathChanged(ctx, l, true)
	}
	k.clock = now
	if k.search.found != nil {
		return
	}
	since := l.seen.Parked
	parked := !since.IsZero() && now.Sub(since) >= parkedTimeout
	if (parked || l.alone() && l.drains()) && !now.Before(k.search.retry) {
		k.fallBack(ctx, l)
		return
	}
	if !parked && k.agent.ask.Swap(false) {
		k.ask(ctx, l)
	}
}

// suspended reports whether the machine was suspended between two checks: then the wall clock
// has advanced more than the monotonic clock.
func suspended(wall, monotonic time.Duration) bool { return wall-monotonic >= suspendedFrom }

// logLink logs what happened to l's connection since the last check.
func (k *keeper) logLink(l *link) {
	now := l.session.Link()
	if now.Window == 0 {
		return
	}
	was := l.seen
	l.seen = now
	switch {
	case !now.Parked.IsZero() && !now.Parked.Equal(was.Parked): // possibly again since the last check
		l.log.Warn("connection lost, the session waits for another", "window", now.Window)
		k.agent.update(func(*State) {})
	case !was.Parked.IsZero() && now.Parked.IsZero():
		l.log.Info("session resumed", "after", time.Since(was.Parked).Round(time.Millisecond), "resent", now.Replayed-was.Replayed)
		k.search.attempts, k.search.retry = 0, time.Time{}
		k.agent.update(func(*State) {})
	case now.Parked.IsZero() && now.Resumes > was.Resumes:
		l.log.Info("session migrated to another connection", "resent", now.Replayed-was.Replayed)
	default:
		return
	}
	if now.Parked.IsZero() {
		l.path = k.agent.routing.path(addrOf(l.remote()))
	}
}

// fallBack tries the other servers in turn. The link itself retries its own server. If that is
// the only one and is about to leave, its name may lead to another one by now, which is tried. So
// it is if an attempt to resume has shown that its address leads to others, as a load balancer's.
func (k *keeper) fallBack(ctx context.Context, l *link) {
	if l.alone() && !l.drains() && !l.seen.Elsewhere {
		return // there is nothing to try, nor to back off from
	}
	n := k.search.attempts
	k.search.attempts++
	lowest := k.agent.cfg.MinBackoff
	k.search.retry = time.Now().Add(lowest + time.Duration(rand.Float64()*float64(doubled(lowest, n, k.agent.cfg.MaxBackoff))))
	servers := k.agent.cfg.Servers
	other := l.server
	if others := len(servers) - 1; others > 0 {
		other = servers[(slices.Index(servers, l.server)+1+n%others)%len(servers)]
	}
	if other != l.server && time.Now().Before(k.retryAfter[other]) {
		return // as it requested
	}
	if !k.agent.shared.take(k.agent, other) {
		return // another agent of this node has it
	}
	p := k.plan(other)
	p.wanted = func() bool { return l.drains() || !l.parked().IsZero() || l.session.Context().Err() != nil }
	k.startSearch(ctx, fallback, l, p)
}

// startSearch starts an attempt beside l.
func (k *keeper) startSearch(ctx context.Context, reason string, l *link, p plan) {
	if p.server == l.server {
		p.keeps = append([]uint64{l.sequence}, p.keeps...)
		p.keeps = p.keeps[:min(len(p.keeps), maxLeaving)]
	}
	out := make(chan found, 1)
	ctx, cancel := context.WithCancel(ctx)
	k.search.found, k.search.cancel = out, cancel
	k.links.Go(func() {
		defer cancel()
		began := time.Now()
		n, err := k.agent.connect(ctx, p)
		out <- found{link: n, reason: reason, server: p.server, began: began, err: err}
	})
}

// finishSearch records how a search beside l ended and returns the link if there is one to use.
func (k *keeper) finishSearch(f found) *link {
	k.search.found = nil
	if f.reason == certificate {
		k.asked(f)
		return nil
	}
	if f.link == nil && k.agent.current != nil {
		k.agent.shared.keep(k.agent, k.agent.current.server)
	}
	k.agent.metrics.moves.WithLabelValues(f.reason, tunnel.CodeOf(f.err).Name()).Inc()
	switch {
	case f.err == nil, errors.Is(f.err, errUnwanted):
	default:
		k.recordRetryAfter(f.server, f.err)
		k.agent.log.Info("no session with another server", slog.String("server", f.server), slog.Any("err", f.err))
	}
	return f.link
}

// await waits for the end of the search that is running, if any. After searchTimeout it ends the
// search, so that a server that does not answer does not delay the attempts at others.
func (k *keeper) await(ctx context.Context) *link {
	if k.search.found == nil {
		return nil
	}
	limit := time.AfterFunc(searchTimeout, k.search.cancel)
	defer limit.Stop()
	// An attempt ends with ctx, or at the limit. It may have made a link before that.
	l := k.finishSearch(<-k.search.found)
	if ctx.Err() != nil && l != nil {
		_ = l.session.Close() // it has no user
		return nil
	}
	return l
}

// pathChanged handles a change of the route to the server: the session migrates to a connection
// on the new route. After the machine was suspended it does so on the same route, too: what is
// between it and the server may have forgotten the connection.
func (k *keeper) pathChanged(ctx context.Context, l *link, suspended bool) {
	path := k.agent.routing.path(addrOf(l.remote()))
	if path == "" { // there is no route; the next change is handled
		k.suspended = k.suspended || suspended
		return
	}
	suspended, k.suspended = suspended || k.suspended, false
	changed := path != l.path
	if !changed && !suspended && l.parked().IsZero() {
		return
	}
	l.path = path
	if !k.agent.cfg.Transport.Can.Migrate {
		if changed && k.search.found == nil {
			k.startSearch(ctx, address, l, k.plan(l.server))
		}
		return
	}
	if k.moving != nil {
		return
	}
	if changed {
		l.log.Info("the route has changed, migrating to another connection", "path", path)
	}
	ended := make(chan moveEnd, 1)
	k.moving = ended
	k.links.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, moveTimeout)
		defer cancel()
		ended <- moveEnd{l, l.session.Move(bounded)}
	})
}

// A moveEnd is the result of a session's migration to another connection.
type moveEnd struct {
	link *link
	err  error
}

// moved records it; l is the link in use.
func (k *keeper) moved(l *link, m moveEnd) {
	k.moving = nil
	k.agent.metrics.moves.WithLabelValues(connection, tunnel.CodeOf(m.err).Name()).Inc()
	switch {
	case m.err != nil:
		m.link.log.Info("could not migrate to another connection", "err", m.err)
	case m.link == l:
		k.logLink(l)
	}
}
