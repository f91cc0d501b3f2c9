// Unauthorized: the API refuses this node's certificate while sessions with the servers go on.

package agent

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	// refusedFor is how long the node's certificate is refused before that counts: by all servers,
	// or by the API, after which a server is asked. Heartbeats, which are sent every ten seconds,
	// are tried again at once.
	refusedFor = 5 * time.Second
	// askAgain is the time between two such questions: each begins another session, or fails. There
	// are maxLeaving of them until the API accepts the certificate again: a further session would
	// cut the streams of the first one.
	askAgain = 5 * time.Minute
)

// certificate is the reason of a search that asks a server about the node's certificate.
const certificate = "certificate"

// unauthorized records how long the API has refused all requests.
type unauthorized struct {
	mu    sync.Mutex // guards the following
	since time.Time  // zero if it has answered one since
	told  time.Time
	asked time.Time
	asks  int // since then
}

// note records a status. It returns whether to log, and whether to ask a server.
func (u *unauthorized) note(status int, now time.Time) (tell, ask bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if status != http.StatusUnauthorized {
		if status < http.StatusInternalServerError {
			u.since, u.asks = time.Time{}, 0
		}
		return false, false
	}
	if u.since.IsZero() {
		u.since = now
	}
	if tell = u.told.IsZero() || now.Sub(u.told) >= repeatEvery; tell {
		u.told = now
	}
	if ask = now.Sub(u.since) >= refusedFor && u.asks < maxLeaving && (u.asked.IsZero() || now.Sub(u.asked) >= askAgain); ask {
		u.asked = now
		u.asks++
	}
	return tell, ask
}

// Answered records the HTTP status of the API's answer to a request of the node. While all are
// 401 (Unauthorized) that is logged. A server does not look at the certificate of a session
// again, so another session is begun beside the one in use, and Config.Rejected is called if the
// server refuses the certificate. It does not block.
func (g *Group) Answered(status int) {
	tell, ask := g.unauthorized.note(status, time.Now())
	if !tell && !ask {
		return
	}
	a := g.use(nil)
	if tell {
		a.log.Warn("the API refuses this node's certificate (401 Unauthorized)", slog.String("server", a.State().Server))
	}
	if ask {
		a.ask.Store(true)
	}
}

// refusesCertificate reports whether a server refuses the node's certificate for a reason that
// another one for the same key may mend. The node itself knows when its certificate expires.
func refusesCertificate(err error) bool {
	return errors.Is(err, ErrCertificateRejected) && !expired(err)
}

// rejected calls Config.Rejected for an attempt that began then.
func (a *Agent) rejected(began time.Time) {
	if f := a.cfg.Rejected; f != nil {
		f(began)
	}
}
