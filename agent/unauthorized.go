// Unauthorized: the API refuses this node's certificate while sessions with the servers go on.

package agent

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// refusedFor is how long the node's certificate is refused before that counts: by all servers, or
	// by the API, after which a server is asked. Heartbeats, which are sent every ten seconds, are
	// tried again at once.
	refusedFor = 5 * time.Second
	// silentFor is how long servers refuse the certificate before that counts while others have not
	// answered: those may be restarting.
	silentFor = 30 * time.Second
	// acceptedFor is how long a server's acceptance without a session counts against the refusals of
	// others. A server that answers is tried again within that time.
	acceptedFor = 5 * time.Minute
	// askSpread is within what time after that nodes ask, so that those that are refused together do
	// not ask together.
	askSpread = 10 * time.Second
	// askAgain is the time between two such questions, and unansweredAgain that after one to which a
	// server said nothing of the certificate.
	askAgain        = 5 * time.Minute
	unansweredAgain = time.Minute
)

// certificate is the reason of a search that asks a server about the node's certificate.
const certificate = "certificate"

// unauthorized records how long the API has refused all requests.
type unauthorized struct {
	mu    sync.Mutex // guards the following
	since time.Time  // zero if it has answered one since
	told  time.Time
	// distrusted is when it was last logged that the API server's certificate is not believed.
	distrusted time.Time
	next       time.Time // when to ask a server, if it still refuses them
	// accepted is whether the API ever accepted a certificate of the node, and noted whether it was
	// logged that it does not.
	accepted, noted bool
}

// neverAccepted reports whether the API never accepted a certificate of the node. At the first call
// that returns true, so is first.
func (u *unauthorized) neverAccepted() (never, first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	first = !u.accepted && !u.noted
	u.noted = u.noted || first
	return !u.accepted, first
}

// note records a status. It returns whether to log, and whether to ask a server.
func (u *unauthorized) note(status int, now time.Time) (tell, ask bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if status != http.StatusUnauthorized {
		if status < http.StatusInternalServerError {
			u.since, u.accepted = time.Time{}, true
		}
		return false, false
	}
	if u.since.IsZero() {
		u.since = now
		if first := now.Add(refusedFor + rand.N(askSpread)); u.next.Before(first) {
			u.next = first
		}
	}
	if tell = u.told.IsZero() || now.Sub(u.told) >= repeatEvery; tell {
		u.told = now
	}
	if ask = !now.Before(u.next); ask {
		u.next = now.Add(askAgain)
	}
	return tell, ask
}

// unanswered records that a server said nothing of the certificate.
func (u *unauthorized) unanswered(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if again := now.Add(unansweredAgain); again.Before(u.next) {
		u.next = again
	}
}

// Answered records the HTTP status of the API's answer to a request of the node. While all are
// 401 (Unauthorized) that is logged: once if the node was given its certificate and the API never
// accepted one, as beside a server that has an authority of its own for agents. A server does not
// look at the certificate of a session again, so it is asked in a connection beside that, and
// Config.Rejected is called if the server refuses the certificate. It does not block.
func (g *Group) Answered(status int) {
	tell, ask := g.shared.unauthorized.note(status, time.Now())
	if !tell && !ask {
		return
	}
	a := g.use(nil)
	if tell {
		a.tellUnauthorized(&g.shared.unauthorized)
	}
	if ask {
		a.ask.Store(true)
	}
}

// tellUnauthorized logs that the API answers 401.
func (a *Agent) tellUnauthorized(u *unauthorized) {
	server := slog.String("server", a.State().Server)
	never, first := u.neverAccepted()
	switch {
	case a.cfg.CertificateFile == "" || !never:
		a.log.Warn("the API refuses this node's certificate (401 Unauthorized)", server)
	case first:
		a.log.Info("the API does not know this node's certificate (401 Unauthorized), as is normal beside a server with --agent-ca; else replace it",
			server, slog.String("file", a.cfg.CertificateFile))
	}
}

// Failed records why a request of the node has no answer of the API. That the API server's
// certificate is not believed is logged once a minute, with the remedy: the session may go on, though
// an authority was replaced. It does not block.
func (g *Group) Failed(err error) {
	if !errors.Is(reasonOf(err), ErrServerUntrusted) || !g.shared.unauthorized.distrusts(time.Now()) {
		return
	}
	a := g.use(nil)
	server := a.State().Server
	a.log.Error("no request reaches the API", slog.String("server", server), slog.Any("err", a.diagnose(server, err)))
}

// distrusts reports whether to log that the API server is not believed.
func (u *unauthorized) distrusts(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	tell := u.distrusted.IsZero() || now.Sub(u.distrusted) >= repeatEvery
	if tell {
		u.distrusted = now
	}
	return tell
}

// Renewed records that the node has another certificate. If the API refuses that too, a server is
// asked as soon as about the first one. An agent that waits before its next attempt waits no longer.
// It does not block.
func (g *Group) Renewed() {
	for _, a := range g.agents {
		select {
		case a.renewed <- struct{}{}:
		default:
		}
	}
	u := &g.shared.unauthorized
	u.mu.Lock()
	defer u.mu.Unlock()
	u.since, u.next = time.Time{}, time.Time{}
}

// ask asks l's server about the node's certificate. A server that accepts it refuses the hello, which
// has the number of the session in use. So no session begins, nor does one lose its dials or its
// streams.
func (k *keeper) ask(ctx context.Context, l *link) {
	k.startSearch(ctx, certificate, l, plan{server: l.server, sequence: l.sequence})
}

// asked handles the answer.
func (k *keeper) asked(f found) {
	if f.link != nil { // of another server at the address
		f.link.abandon()
		_ = f.link.session.Close() // it has no user
		k.agent.shared.exit(f.link)
	}
	if refusesCertificate(f.err) && !k.agent.shared.isFenced() {
		k.agent.log.Error("this server refuses the node's certificate in a new connection", slog.String("server", f.server), slog.Any("err", f.err))
		k.agent.rejected(f.began)
		return
	}
	said, level := verdictOf(f), slog.LevelInfo
	if said == k.said {
		level = slog.LevelDebug
	}
	k.said = said
	if said.none {
		k.agent.shared.unauthorized.unanswered(time.Now())
		k.agent.log.Log(context.Background(), level, "could not ask this server about the node's certificate", slog.String("server", f.server), slog.Any("err", f.err))
		return
	}
	k.agent.log.Log(context.Background(), level, "asked this server about the node's certificate", slog.String("server", f.server),
		slog.Bool("accepted", said.accepted), slog.Any("answer", f.err))
}

// A verdict is what a server said when it was asked about the node's certificate.
type verdict struct {
	server   string
	accepted bool
	none     bool // it said nothing of the certificate
}

// verdictOf is what f's server said.
func verdictOf(f found) verdict {
	accepted := f.err == nil || acceptsCertificate(f.err)
	return verdict{server: f.server, accepted: accepted, none: !accepted && !refusesCertificate(f.err)}
}

// refusesCertificate reports whether a server refuses the node's certificate for a reason that
// another one for the same key may mend. The node itself knows when its certificate expires.
func refusesCertificate(err error) bool {
	return errors.Is(err, ErrCertificateRejected) && !expired(err)
}

// acceptsCertificate reports whether a server accepts the node's certificate, although the attempt
// failed: it has answered the hello, or says that the certificate has expired.
func acceptsCertificate(err error) bool {
	return errors.As(err, new(*tunnel.Goodbye)) || expired(err)
}

// An answer is what a server said of the node's certificate.
type answer struct {
	refused bool
	session *link // which it has begun; nil if it has not
	at      time.Time
}

// answered records a server's answer.
func (s *shared) answered(server string, said answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[server] = said
	if said.session != nil {
		s.refused = time.Time{}
	}
}

// refuses records that one of several servers refuses the node's certificate. It reports whether that
// counts: the node has had no session for a while, and no other server has accepted the certificate
// lately.
func (s *shared) refuses(server string, now time.Time, servers int) bool {
	s.answered(server, answer{refused: true, at: now})
	s.mu.Lock()
	defer s.mu.Unlock()
	refusing, accepted := 0, false
	for _, said := range s.answers {
		switch {
		case said.refused:
			refusing++
		case said.session == nil:
			accepted = accepted || now.Sub(said.at) < acceptedFor
		case said.session.inUse(): // the time begins at the first refusal without one
			s.refused = time.Time{}
			return false
		}
	}
	if s.refused.IsZero() {
		s.refused = now
	}
	enough := refusedFor
	if refusing < servers {
		enough = silentFor
	}
	return !accepted && now.Sub(s.refused) >= enough
}

// rejected calls Config.Rejected for an attempt that began then.
func (a *Agent) rejected(began time.Time) {
	if f := a.cfg.Rejected; f != nil {
		f(began)
	}
}
