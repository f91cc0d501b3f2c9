// Link: the session with one other server, which announces that server's sessions with
// nodes.

package peers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

// maxLine bounds a message, in bytes.
const maxLine = 4 << 20

// A message is one line of JSON on the stream of sessions. Messages up to the first
// complete one have all current and past sessions, later ones the changes.
type message struct {
	// Now is the sender's clock. Older servers do not send it.
	Now      time.Time            `json:"now,omitzero"`
	Nodes    []server.Observation `json:"nodes,omitempty"`
	Gone     []string             `json:"gone,omitempty"` // forgotten
	Complete bool                 `json:"complete,omitempty"`
	Draining bool                 `json:"draining,omitempty"` // the server is about to leave
	Samples  []Sample             `json:"samples,omitempty"`  // of its sessions, every beatsPerSample
	// Evictions come with the samples. Older servers do not send them.
	Evictions *Evictions `json:"evictions,omitempty"`
	// Resumes is in every message: the sender lets sessions of servers be resumed. Older
	// servers do not, and a refused resumption ends a session.
	Resumes bool `json:"resumes,omitempty"`
}

// A link is the connection to one other server. Peers.mu guards the fields below unless they
// say otherwise.
type link struct {
	peers *Peers
	peer  Peer

	session  tunnel.Session  // nil until one has announced all sessions, and while it is not heard
	usable   context.Context // of session: done, with the reason, once it is not heard any more
	draining bool
	nodes    map[string]server.Observation
	samples  map[string]Sample    // the latest ones, of nodes
	quiet    map[string]time.Time // when those were last heard that had been quiet for quietAfter

	evictions Evictions // the latest

	// The goroutine that keeps the session owns the following.
	ahead time.Duration // of the other server's clock, if translated
	older bool          // the other server refuses to resume sessions
}

// keep keeps a session until ctx is done. It makes new ones until dialing is done. Until holding
// is done it keeps a session that is not heard, which the transport ends in time. Dialing ends
// with holding at the latest, and holding with ctx.
func (l *link) keep(ctx, holding, dialing context.Context) {
	wait, said := lowest, ""
	var s tunnel.Session // nil if there is none
	defer func() { end(s) }()
	for {
		began := time.Now()
		var err error
		s, err = l.follow(ctx, holding, dialing, s)
		l.peers.attempted(l.peer.ID)
		retrying := holding
		if s == nil {
			retrying = dialing
		}
		if retrying.Err() != nil {
			return
		}
		if time.Since(began) > highest {
			wait, said = lowest, ""
		}
		if err.Error() != said {
			said = err.Error()
			l.peers.log.Warn("no session with another server; it is tried again", "server", l.peer.ID, "addr", l.peer.Addr, "err", err)
		}
		select {
		case <-time.After(wait/2 + rand.N(wait/2)): //nolint:gosec // spreads attempts
		case <-retrying.Done():
			return
		}
		wait = min(2*wait, highest)
	}
}

// end ends a session; nil is none.
func end(s tunnel.Session) {
	if s != nil {
		_ = s.Close() // its end is what matters
	}
}

// follow applies the other server's messages until it is not heard any more; the error says
// why. It makes a session unless s is one. It returns the session if streams into nodes may go
// on in it: it may be resumed, or the other server may have been stopped for a while. Else
// follow has ended it.
func (l *link) follow(ctx, holding, dialing context.Context, s tunnel.Session) (_ tunnel.Session, err error) {
	bound, goesOn := tunnel.DefaultDialTimeout, s != nil
	if s == nil {
		bound = dialTimeout
		dctx, cancel := context.WithTimeout(dialing, bound)
		s, err = l.peers.cfg.Dial(dctx, l.peer, !l.older)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	defer context.AfterFunc(ctx, func() { end(s) })()
	dctx, cancel := context.WithTimeout(holding, bound)
	st, err := tunnel.Connect(dctx, s, sessionsNetwork, sessionsAddr)
	cancel()
	if err == nil {
		err = l.attend(ctx, s, st)
		goesOn = s.Link().Streams > 1 && !errors.Is(err, errOlder) // st is one
		_ = st.Close()
	}
	if !goesOn || s.Context().Err() != nil {
		end(s)
		return nil, err
	}
	return s, err
}

// attend hears the other server on st until it is silent or s has no connection. Dials that are
// under way there fail then.
func (l *link) attend(ctx context.Context, s tunnel.Session, st tunnel.Stream) error {
	usable, stop := context.WithCancelCause(ctx)
	s.Tell(func(state tunnel.LinkState) {
		if !state.Parked.IsZero() {
			stop(fmt.Errorf("%w: no connection with server %s: %w", tunnel.Lost, l.peer.ID, state.Cause))
		}
	})
	defer context.AfterFunc(usable, func() { _ = st.SetReadDeadline(time.Unix(1, 0)) })() // hear returns; if it fails, st is closed
	defer l.lose()
	err := l.hear(usable, s, st)
	if cause := context.Cause(usable); cause != nil {
		err = cause
	}
	stop(fmt.Errorf("%w: server %s is not heard: %w", tunnel.Lost, l.peer.ID, err))
	return err
}

// errOlder ends a session that may not be resumed.
var errOlder = errors.New("it is older, and lets no session be resumed: the next one ends with its connection")

// hear applies messages until one is late.
func (l *link) hear(usable context.Context, s tunnel.Session, st tunnel.Stream) error {
	in := bufio.NewScanner(st)
	in.Buffer(nil, maxLine)
	whole := make(map[string]server.Observation) // until the first complete message
	draining := false
	for {
		if err := errors.Join(st.SetReadDeadline(time.Now().Add(silence)), context.Cause(usable)); err != nil {
			return err
		}
		if !in.Scan() {
			if in.Err() == nil {
				return errors.New("it has ended the stream of its sessions")
			}
			return in.Err()
		}
		var m message
		if err := json.Unmarshal(in.Bytes(), &m); err != nil {
			return fmt.Errorf("what it tells of its sessions makes no sense: %w", err)
		}
		if l.older = !m.Resumes; l.older && s.Link().Window > 0 {
			return errOlder
		}
		l.translate(&m, time.Now())
		var changed []string
		if whole != nil {
			apply(whole, &m)
			draining = draining || m.Draining
			if !m.Complete {
				continue
			}
			changed, whole = l.begin(usable, s, whole, draining), nil
			l.peers.attempted(l.peer.ID)
		} else {
			changed = l.change(&m)
		}
		l.peers.learn(changed)
		l.peers.tell(changed)
	}
}

// translate replaces the times in m by those of this server's clock, if the two clocks differ by
// more than a message can be late, and gives each a monotonic time: so times of several servers
// can be compared, also after this clock was set.
func (l *link) translate(m *message, now time.Time) {
	ahead := m.Now.Sub(now)
	if m.Now.IsZero() || ahead.Abs() <= stalled {
		ahead = 0
	}
	if ahead != 0 && l.ahead == 0 {
		l.peers.log.Warn("the clock of another server differs from this one's: set them", "server", l.peer.ID, "ahead", ahead.Round(time.Second))
	}
	l.ahead = ahead
	var all []*time.Time
	for i := range m.Nodes {
		all = append(all, times(&m.Nodes[i])...)
	}
	if m.Evictions != nil {
		for i := range m.Evictions.Frozen {
			all = append(all, &m.Evictions.Frozen[i].Until)
		}
	}
	for _, t := range all {
		if !t.IsZero() {
			*t = now.Add(t.Add(-ahead).Sub(now))
		}
	}
}

// times are all times in o.
func times(o *server.Observation) []*time.Time {
	all := []*time.Time{&o.Connected, &o.At, &o.Heard}
	for i := range o.Changes {
		all = append(all, &o.Changes[i].At, &o.Changes[i].Heard)
	}
	return all
}

// apply merges m into all, within the bound.
func apply(all map[string]server.Observation, m *message) {
	for _, o := range m.Nodes {
		if _, there := all[o.Node]; there || len(all) < maxNodes {
			all[o.Node] = o
		}
	}
	for _, node := range m.Gone {
		delete(all, node)
	}
}

// begin puts s and the other server's sessions into use. It returns the nodes that may have
// changed.
func (l *link) begin(usable context.Context, s tunnel.Session, all map[string]server.Observation, draining bool) []string {
	l.peers.log.Info("connected to another server", "server", l.peer.ID, "addr", l.peer.Addr, "nodes", len(all))
	p := l.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	var news []string
	for node := range all {
		news = append(news, node)
	}
	for node := range l.nodes {
		if _, still := all[node]; !still {
			news = append(news, node)
		}
	}
	l.session, l.usable, l.nodes, l.draining = s, usable, all, draining
	l.samples, l.quiet, l.evictions = make(map[string]Sample), make(map[string]time.Time), Evictions{}
	return news
}

func (l *link) change(m *message) []string {
	p := l.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	apply(l.nodes, m)
	for _, node := range m.Gone {
		delete(l.samples, node)
		delete(l.quiet, node)
	}
	now := time.Now()
	for _, s := range m.Samples {
		if _, known := l.nodes[s.Node]; known {
			l.samples[s.Node] = s
			delete(l.quiet, s.Node)
			if s.Quiet >= quietAfter {
				l.quiet[s.Node] = now.Add(-s.Quiet)
			}
		}
	}
	if e := m.Evictions; e != nil {
		l.evictions = Evictions{l.peer.ID, now, e.Decides, e.Frozen[:min(len(e.Frozen), maxFrozen)]}
	}
	if m.Draining && !l.draining {
		l.draining = true
		p.log.Info("another server is about to leave", "server", l.peer.ID)
	}
	news := m.Gone
	for _, o := range m.Nodes {
		news = append(news, o.Node)
	}
	return news
}

// heardLocked returns when an attached node was last heard. Unless the latest sample says that
// it has been quiet since before, that is now: its server would have announced a change. A
// sample may be of the session before.
func (l *link) heardLocked(o *server.Observation, now time.Time) time.Time {
	at, quiet := l.quiet[o.Node]
	if at.Before(o.At) {
		at = o.At
	}
	if !quiet || at.After(now) {
		return now
	}
	return at
}

// lose records that the other server is not heard any more. Unless it announced that it
// leaves, its nodes are taken to have fallen silent at that moment, or when they were last
// heard, because their state is unknown.
func (l *link) lose() {
	p := l.peers
	p.mu.Lock()
	if l.session == nil {
		p.mu.Unlock()
		return
	}
	l.session, l.usable = nil, nil
	var news []string
	now, why := time.Now(), server.Silent
	if l.draining {
		why = server.Drained
	}
	for node, o := range l.nodes {
		if o.State == server.Detached {
			continue
		}
		c := o.Change
		if o.State == server.Attached {
			c.Heard = l.heardLocked(&o, now)
		}
		c.Number++
		c.At, c.State, c.Cause, c.Err = now, server.Detached, why, "server "+l.peer.ID+" is out of reach"
		o.Change, o.Changes = c, append(o.Changes[:len(o.Changes):len(o.Changes)], c)
		l.nodes[node] = o
		news = append(news, node)
	}
	p.mu.Unlock()
	p.learn(news)
	p.tell(news)
	p.log.Warn("lost another server", "server", l.peer.ID, "addr", l.peer.Addr, "nodes", len(news))
}

// naming makes the error of a stream name the server if the session with it has ended.
func naming(id string) func(error) error {
	return func(err error) error {
		if _, ended := errors.AsType[tunnel.Code](err); !ended && !errors.Is(err, tunnel.ErrSessionClosed) {
			return err
		}
		return fmt.Errorf("session with server %s has ended: %w", id, err)
	}
}
