// Seek: a better link, or one that works, while there is still one.

package agent

import (
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
	// lookEvery is how often the keeper looks how its link fares.
	lookEvery = time.Second
	// parkedPatience is how long a session may be without a connection before
	// another way is sought beside its own efforts.
	parkedPatience = 500 * time.Millisecond
	// moveTimeout bounds a session's move to another connection.
	moveTimeout = 15 * time.Second
	// sleepsFrom is by how much the wall clock must get ahead of the other for
	// the machine to have been asleep.
	sleepsFrom = 5 * time.Second

	// probeTimeout bounds a probe: a transport that takes longer is no better.
	probeTimeout = 3 * time.Second
	// maxProbes is how many times its first value the time between probes may
	// grow to. On a network that drops UDP a probe costs some 10 KiB.
	maxProbes = 12
	// shiftProbe is how long after a change of the way out a probe waits, for
	// the way to settle.
	shiftProbe = 2 * time.Second
)

// Why a link is sought beside the one in use.
const (
	fallback = "fallback" // it is parked
	upgrade  = "upgrade"  // a transport that is preferred to its own may work
	address  = "address"  // its way out has changed, and it cannot move by itself
)

// connection is what the metrics call a session's move by itself.
const connection = "connection"

// A found is how a search ended.
type found struct {
	link   *link
	reason string
	server string
	err    error
}

// A search looks for a link beside the one in use. At most one attempt is under
// way.
type search struct {
	found chan found // nil if none is under way; else it will hold one

	probe    time.Time     // when to try a better transport; zero if there is none
	interval time.Duration // until the probe after a failed one
	attempts int           // at a way around the parked link
	retry    time.Time     // when to make the next of them
}

// began resets the search for a new link.
func (s *search) began(k *keeper, l *link) {
	s.attempts, s.retry, s.probe = 0, time.Time{}, time.Time{}
	if s.interval == 0 {
		s.interval = k.agent.cfg.ProbeInterval
	}
	if better := k.better(l); len(better) > 0 && !k.agent.cfg.Link.Metered {
		s.plan(time.Now(), s.interval)
	}
}

// plan sets the time of the next probe.
func (s *search) plan(now time.Time, in time.Duration) {
	s.probe = now.Add(time.Duration((0.8 + 0.4*rand.Float64()) * float64(in)))
}

// better are the transports that are preferred to l's own.
func (k *keeper) better(l *link) []tunnel.Transport {
	usable, err := k.agent.usable(l.server)
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(usable, func(t tunnel.Transport) bool { return t.Name == l.transport })
	return usable[:max(i, 0)]
}

// remote is where the session's packets go.
func (l *link) remote() net.Addr {
	if st, ok := tunnel.LinkOf(l.session); ok && st.Addr != nil {
		return st.Addr
	}
	return l.session.Peer().Addr
}

// look does what time demands.
func (k *keeper) look(ctx context.Context, l *link) {
	now := time.Now()
	k.notice(l)
	if asleep(k.clock, now) {
		l.log.Info("machine was asleep")
		k.shifted(ctx, l)
	}
	k.clock = now
	if k.search.found != nil {
		return
	}
	since := l.seen.Parked
	switch {
	case !since.IsZero() && now.Sub(since) >= parkedPatience && !now.Before(k.search.retry):
		k.goAround(ctx, l)
	case since.IsZero() && !k.search.probe.IsZero() && !now.Before(k.search.probe) && k.room():
		k.search.probe = time.Time{}
		k.seek(ctx, upgrade, l, k.plan(l.server, k.better(l)), probeTimeout)
	}
}

// room says whether another link can be left without ending one that is still in
// use.
func (k *keeper) room() bool {
	k.forget()
	return len(k.leaving) < maxLeaving
}

// asleep says whether the machine slept between two looks: then the wall clock
// has gone on and the other has not.
func asleep(before, now time.Time) bool {
	return now.Round(0).Sub(before.Round(0))-now.Sub(before) >= sleepsFrom
}

// notice tells of what has happened to l's connection since the last look.
func (k *keeper) notice(l *link) {
	now, ok := tunnel.LinkOf(l.session)
	if !ok {
		return
	}
	was := l.seen
	l.seen = now
	switch {
	case !now.Parked.IsZero() && !now.Parked.Equal(was.Parked): // again, perhaps, since the last look
		l.log.Warn("connection lost, the session waits for another", "window", now.Window)
		k.agent.update(func(*State) {})
	case !was.Parked.IsZero() && now.Parked.IsZero():
		l.log.Info("session goes on", "after", time.Since(was.Parked).Round(time.Millisecond), "resent", now.Replayed-was.Replayed)
		k.search.attempts, k.search.retry = 0, time.Time{}
		k.agent.update(func(*State) {})
	case now.Parked.IsZero() && now.Resumes > was.Resumes:
		l.log.Info("session is on another connection", "resent", now.Replayed-was.Replayed)
	default:
		return
	}
	if now.Parked.IsZero() {
		l.path = k.agent.terrain.path(addrOf(l.remote()))
	}
}

// goAround seeks a link that does not depend on what l waits for: by another
// transport first, and then by the other servers in turn.
func (k *keeper) goAround(ctx context.Context, l *link) {
	n := k.search.attempts
	k.search.attempts++
	lowest := k.agent.cfg.MinBackoff
	k.search.retry = time.Now().Add(lowest + time.Duration(rand.Float64()*float64(doubled(lowest, n, k.agent.cfg.MaxBackoff))))
	server, servers := l.server, k.agent.cfg.Servers
	if i := slices.Index(servers, server); n > 0 && len(servers) > 1 {
		server = servers[(i+n)%len(servers)]
	}
	usable, err := k.agent.usable(server)
	if err != nil {
		return // it has been said when the link began, or will be when it has ended
	}
	transports := slices.Clone(usable)
	if server == l.server {
		transports = slices.DeleteFunc(transports, func(t tunnel.Transport) bool { return t.Name == l.transport })
	}
	if len(transports) == 0 {
		return // there is only what the link is trying itself
	}
	p := k.plan(server, transports)
	p.wanted = func() bool { return !l.parked().IsZero() || l.session.Context().Err() != nil }
	k.seek(ctx, fallback, l, p, connectTimeout)
}

// seek begins an attempt beside l.
func (k *keeper) seek(ctx context.Context, reason string, l *link, p plan, patience time.Duration) {
	if p.server == l.server {
		p.keeps = append([]uint64{l.sequence}, p.keeps...)
		p.keeps = p.keeps[:min(len(p.keeps), maxLeaving)]
	}
	out := make(chan found, 1)
	k.search.found = out
	k.links.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		n, err := k.agent.connect(bounded, p)
		out <- found{link: n, reason: reason, server: p.server, err: err}
	})
}

// settle notes how a search beside l ended and returns the link if there is one.
func (k *keeper) settle(l *link, f found) *link {
	k.search.found = nil
	k.agent.metrics.moves.WithLabelValues(f.reason, codeLabel(tunnel.CodeOf(f.err))).Inc()
	s, first := &k.search, k.agent.cfg.ProbeInterval
	switch {
	case errors.Is(f.err, errUnwanted):
	case f.err == nil && f.reason == fallback && time.Since(l.since) >= maxProbes*first:
		s.interval = first
	case f.err == nil && f.reason == fallback:
		// What one gets from moving up and having to come back is a minute of
		// silence each time: it is tried less and less often.
		s.interval = min(2*s.interval, maxProbes*first)
	case f.err == nil:
	case f.reason == upgrade:
		s.interval = min(2*s.interval, maxProbes*first)
		s.plan(time.Now(), s.interval)
		k.agent.log.Debug("no better transport", "server", f.server, "err", f.err)
	default:
		k.heed(f.server, f.err)
		k.agent.log.Info("no way around", slog.String("server", f.server), slog.Any("err", f.err))
	}
	return f.link
}

// await waits for the end of a search that is under way.
func (k *keeper) await(ctx context.Context, beside *link) *link {
	if k.search.found == nil {
		return nil
	}
	// An attempt ends with ctx. A link that comes about all the same drains by
	// itself.
	l := k.settle(beside, <-k.search.found)
	if ctx.Err() != nil && l != nil {
		_ = l.session.Close() // nobody has used it
		return nil
	}
	return l
}

// shifted reacts to a change of the way out: the session is put on a connection
// that uses the new one, before the old one is given up.
func (k *keeper) shifted(ctx context.Context, l *link) {
	path := k.agent.terrain.path(addrOf(l.remote()))
	if path == "" {
		return // there is no way at all; the next change will be of interest
	}
	if path == l.path && l.parked().IsZero() {
		return
	}
	changed := path != l.path
	l.path = path
	k.search.interval = k.agent.cfg.ProbeInterval
	if len(k.better(l)) > 0 {
		k.search.plan(time.Now(), shiftProbe)
	}
	if _, ok := tunnel.LinkOf(l.session); !ok {
		if usable, err := k.agent.usable(l.server); err == nil && changed && k.search.found == nil {
			k.seek(ctx, address, l, k.plan(l.server, k.order(usable)), connectTimeout)
		}
		return
	}
	if k.moving != nil {
		return
	}
	if changed {
		l.log.Info("the way out has changed, moving to another connection", "path", path)
	}
	ended := make(chan moveEnd, 1)
	k.moving = ended
	k.links.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, moveTimeout)
		defer cancel()
		ended <- moveEnd{l, tunnel.Move(bounded, l.session)}
	})
}

// A moveEnd is how a session's move to another connection ended.
type moveEnd struct {
	link *link
	err  error
}

// moved notes it; l is the link in use.
func (k *keeper) moved(l *link, m moveEnd) {
	k.moving = nil
	k.agent.metrics.moves.WithLabelValues(connection, codeLabel(tunnel.CodeOf(m.err))).Inc()
	switch {
	case m.err != nil:
		m.link.log.Info("could not move to another connection", "err", m.err)
	case m.link == l:
		k.notice(l)
	}
}
