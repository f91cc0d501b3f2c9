// The accepting end: which session a connection begins or joins.

package qmux

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// Name is the transport's; ALPN tells its connections from others on the same port
	// (RFC 7301).
	Name = "qmux"
	ALPN = "hawser/2"

	// maxSessions bounds the sessions of a listener, parked ones included, and
	// maxPerIdentity those of one identity. One more of an identity ends its session that
	// has been parked for longest.
	maxSessions    = 1 << 16
	maxPerIdentity = 16

	// maxBeside bounds the connections of a listener's sessions beside the first of each.
	// One more is refused as Busy.
	maxBeside = 1 << 12
)

// Listen makes sessions of the connections that ln accepts; see tunnel.Transport.
func Listen(ln net.Listener, o tunnel.Options) (tunnel.Listener, error) {
	r := newRegistry(o, carrier.Identity)
	return carrier.Listen(ln, Name, []string{ALPN}, newBatch, o, func(ctx context.Context, c *tls.Conn) (tunnel.Session, error) {
		return r.accept(ctx, c)
	})
}

// A registry has the sessions that connections may join.
type registry struct {
	options  tunnel.Options
	conf     config
	identity func(tunnel.Peer) (string, error)
	refusals strangers.RepeatLimiter // log lines about refused joinings

	mu       sync.Mutex // guards the following
	sessions map[sessionID]*Session
	owned    map[string][]*Session // by identity
}

func newRegistry(o tunnel.Options, identity func(tunnel.Peer) (string, error)) *registry {
	r := &registry{
		options: o, conf: newConfig(o), identity: identity,
		sessions: make(map[sessionID]*Session), owned: make(map[string][]*Session),
	}
	return r
}

// accept does the handshake of a connection, which it owns. It returns the session that the
// connection begins; nil if it has joined one.
func (r *registry) accept(ctx context.Context, t secured) (tunnel.Session, error) {
	c := newConn(t)
	mine := r.conf.parameters()
	if r.conf.terms.window > 0 {
		mine.session = &joining{kind: kindKnows, insteadOf: insteadOfNone}
		mine.server = r.options.Link.Server
	}
	var theirs *parameters
	err := within(ctx, c, func() (err error) {
		theirs, err = c.exchangeParameters(mine)
		return err
	})
	var s tunnel.Session
	if err == nil {
		s, err = r.decide(c, theirs)
	}
	if e, ok := errors.AsType[*sessionError](err); ok {
		c.closeGracefully(closeFrame((&tunnel.Goodbye{Code: e.Code, Retry: e.retry}).ErrorCode(), true, e.Text))
	} else if err != nil {
		c.giveUp(err)
	}
	return s, err
}

// decide makes a session on c, or has c join one.
func (r *registry) decide(c *conn, theirs *parameters) (tunnel.Session, error) {
	identity, err := r.identity(c.peer())
	if err != nil {
		err = &sessionError{Code: tunnel.Denied, Text: "identity is not accepted", cause: err}
	}
	j := theirs.session
	switch {
	case j != nil && j.kind == kindJoin:
		if err == nil {
			err = r.join(c, j, identity)
		}
		if err != nil {
			r.logRefusal(c, identity, j, err)
			err = fmt.Errorf("%w: %w", err, carrier.ErrLogged)
		}
		return nil, err
	case err != nil:
		return nil, err
	case j != nil && j.kind == kindKnows && r.conf.terms.window > 0:
		return nil, protocolError(errParameter, "hawser_session of kind %d", j.kind)
	}
	return r.newSession(c, theirs, identity)
}

// newSession makes a session. It ends with its connection unless both ends can resume.
func (r *registry) newSession(c *conn, theirs *parameters, identity string) (tunnel.Session, error) {
	conf := r.conf
	if theirs.session != nil && conf.terms.window > 0 {
		conf.terms = theirs.session.terms.and(conf.terms)
	} else {
		conf.withoutTerms(theirs)
		if r.options.Link.Window() > 0 {
			r.options.Logger().Info("session will end with its connection: the client does not resume", "addr", c.tls.RemoteAddr().String())
		}
	}
	s := newSession(conf, r.options, c.peer(), theirs, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.extended {
		s.identity, s.onEnd = identity, r.remove
		_, _ = rand.Read(s.id[:])                  // never fails
		_, _ = rand.Read(s.paths.rejoin.secret[:]) // likewise
		c.control.session = sessionFrame(s.id, s.paths.rejoin.secret, conf.terms)
		if err := r.add(s); err != nil {
			s.failLocked(err)
			return nil, err
		}
	}
	s.attachLocked(c, insteadOfNone)
	return s, nil
}

// join adds c to the session that it names.
func (r *registry) join(c *conn, j *joining, identity string) error {
	r.mu.Lock()
	s := r.sessions[j.id]
	r.mu.Unlock()
	switch {
	case s == nil:
		return noSession(nil)
	case s.identity != identity:
		return noSession(errForeign)
	}
	if err := s.mayJoin(j); err != nil {
		return err
	}
	if ask := r.options.Link.Resume; ask != nil {
		if err := ask(c.peer()); err != nil {
			no := refused(err)
			if no.Code != tunnel.Busy {
				s.revoke(no)
			}
			return no
		}
	}
	return s.admit(c, j)
}

// revoke ends a session whose identity is not admitted any more.
func (s *Session) revoke(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(err)
}

// logRefusal logs a refused joining: as a warning if only an attacker or a revoked peer
// would attempt it. Honest peers are refused after a restart of the server, and if a
// later attempt of their own came first. Where there are other servers a peer may try for
// as long as its session is parked, which is worth no line each time. Lines of other levels are
// bounded for each identity and level.
func (r *registry) logRefusal(c *conn, identity string, j *joining, err error) {
	level := slog.LevelInfo
	switch {
	case errors.Is(err, tunnel.Denied), errors.Is(err, tunnel.Revoked), errors.Is(err, errForeign), errors.Is(err, errSecret):
		level = slog.LevelWarn // see above
	case errors.Is(err, tunnel.Lost) && r.options.Link.Server != "":
		level = slog.LevelDebug
	}
	others := 0
	if level != slog.LevelDebug {
		var ok bool
		if others, ok = r.refusals.Allow(refusal{identity, level}); !ok {
			return
		}
	}
	r.options.Logger().Log(context.Background(), level, "resumption refused",
		"session", j.id.String(), "identity", identity, "addr", c.tls.RemoteAddr().String(), "attempt", j.attempt, "err", err, "others", others)
}

// A refusal is the subject of bounded log lines.
type refusal struct {
	identity string
	level    slog.Level
}

// add registers s. The caller holds the mutex of s, which no other goroutine knows yet.
func (r *registry) add(s *Session) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	owned := r.owned[s.identity]
	if len(owned) >= maxPerIdentity {
		oldest := longestParked(owned)
		if oldest == nil {
			return &sessionError{Code: tunnel.Busy, Text: "too many sessions of this identity"}
		}
		go oldest.revoke(&sessionError{Code: tunnel.Replaced, Text: "too many sessions of this identity"}) // it takes the session's mutex
		r.removeLocked(oldest)
	}
	if len(r.sessions) >= maxSessions {
		return &sessionError{Code: tunnel.Busy, Text: "too many sessions"}
	}
	r.owned[s.identity] = append(r.owned[s.identity], s)
	r.sessions[s.id] = s
	return nil
}

func longestParked(sessions []*Session) *Session {
	var oldest *Session
	var since time.Time
	for _, s := range sessions {
		if parked := s.parked.Load(); parked != nil && (oldest == nil || parked.Before(since)) {
			oldest, since = s, *parked
		}
	}
	return oldest
}

// remove removes s, which has ended.
func (r *registry) remove(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(s)
}

func (r *registry) removeLocked(s *Session) {
	delete(r.sessions, s.id)
	r.owned[s.identity] = slices.DeleteFunc(r.owned[s.identity], func(o *Session) bool { return o == s })
	if len(r.owned[s.identity]) == 0 {
		delete(r.owned, s.identity)
	}
}
