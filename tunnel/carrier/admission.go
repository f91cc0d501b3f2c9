// Admission: bounds the TLS handshakes that are in progress, and those that compute.

package carrier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// maxHandshakes bounds the handshakes of a listener that are in progress.
	maxHandshakes = 1024
	// maxQueue is how long a new client may wait for a token. A client that waits longer
	// is likely to give up, and computing for it would delay the others.
	maxQueue = 2 * time.Second
	// maxAnswer is how long a client that was answered keeps its place although newcomers
	// want it. Otherwise, when thousands return at once, each would undo the work that was
	// done for another.
	maxAnswer = 3 * time.Second
)

// busyAlert is sent to a client for which there is no place: a TLS record with the fatal
// alert internal_error (RFC 8446, 6); TLS has none that means busy. It is never changed.
var busyAlert = [...]byte{21, 3, 3, 0, 2, 2, 80}

// An admission lets clients begin their handshakes. A handshake computes only while it holds
// a token, and returns the token while it waits for its client. So many clients at once are
// served one after the other, existing sessions keep their share of the processors, and a
// slow client takes only a place.
//
// When silent is full a newcomer takes the place of the client that has waited longest, of
// those whose address has most. When answered is full it takes the place of one that has had
// it for maxAnswer, or whose address has more than its share; else the newcomer is refused.
type admission struct {
	places     chan struct{}      // one for each handshake in progress
	silent     *strangers.Pending // handshakes that wait for the ClientHello
	answered   *strangers.Pending // handshakes whose client was answered; each of the two has 3/8 of the places
	tokens     chan struct{}      // one for each handshake that computes
	maxQueue   time.Duration      // the constant, except in tests
	log        *slog.Logger
	failedLog  strangers.LogLimiter // of handshakes that failed
	refused    atomic.Uint64        // clients refused
	refusedLog strangers.LogLimiter // of those clients
}

func newAdmission(limit int, log *slog.Logger) *admission {
	return &admission{
		places:   make(chan struct{}, limit),
		silent:   strangers.NewPending(limit * 3 / 8),
		answered: strangers.NewPendingFor(limit*3/8, maxAnswer),
		tokens:   make(chan struct{}, runtime.GOMAXPROCS(0)),
		maxQueue: maxQueue,
		log:      log,
	}
}

// admit gives c a place. If there is none it refuses c and returns nil. Then at least a
// quarter of the handshakes wait for a token: the newcomer would wait as well.
func (e *admission) admit(c net.Conn) *handshake {
	select {
	case e.places <- struct{}{}:
		return &handshake{Conn: c, admission: e}
	default:
		e.refuse(c)
		return nil
	}
}

// refuse sends busyAlert to a client that was not answered, and closes its connection.
func (e *admission) refuse(c net.Conn) {
	e.refused.Add(1)
	if more, ok := e.refusedLog.Allow(nil); ok {
		e.log.Warn("too many handshakes at a time: clients are sent away", "limit", cap(e.places), "others", more)
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond)) // a new connection takes seven bytes at once
	_, _ = c.Write(busyAlert[:])                             // likewise
	_ = c.Close()
}

// close ends every handshake, and all that begin later.
func (e *admission) close() {
	e.silent.Close()
	e.answered.Close()
}

// A handshake is a connection that acquires and releases a token during its handshake. After
// that it passes everything through.
type handshake struct {
	net.Conn
	admission *admission

	// Owned by the goroutine that does the handshake.
	ctx        context.Context // of the handshake; nil before and after
	answered   bool            // something was written to the client
	leavePlace func()          // leaves silent or answered; nil if it is in neither
	holding    bool            // a token
}

// run calls f, which does the handshake, and returns the place. An error is logged: at debug
// level if other clients have caused it, and at a limited rate.
func (g *handshake) run(ctx context.Context, f func(context.Context) error) error {
	g.ctx = ctx
	err := f(ctx)
	g.ctx = nil
	g.release()
	g.moveTo(nil)
	<-g.admission.places
	if err == nil {
		return nil
	}
	level, more := slog.LevelDebug, 0
	if !errors.Is(err, net.ErrClosed) && !errors.Is(err, tunnel.Busy) {
		if n, ok := g.admission.failedLog.Allow(g.RemoteAddr()); ok {
			level, more = slog.LevelInfo, n
		}
	}
	g.admission.log.Log(ctx, level, "handshake failed", "addr", g.RemoteAddr().String(), "err", err, "others", more)
	return err
}

// moveTo leaves silent or answered, and takes a place in p unless that is nil. It returns
// whether g is in p.
func (g *handshake) moveTo(p *strangers.Pending) bool {
	if g.leavePlace != nil {
		g.leavePlace()
		g.leavePlace = nil
	}
	if p != nil {
		g.leavePlace = p.Enter(g.Conn)
	}
	return g.leavePlace != nil
}

// Read reads from the client. During the handshake it holds no token while it waits.
func (g *handshake) Read(p []byte) (int, error) {
	if g.ctx == nil {
		return g.Conn.Read(p)
	}
	g.release()
	if !g.answered {
		g.moveTo(g.admission.silent)
	}
	n, err := g.Conn.Read(p)
	if err != nil {
		return n, err
	}
	return n, g.acquire()
}

// Write writes to the client.
func (g *handshake) Write(p []byte) (int, error) {
	g.answered = g.answered || g.ctx != nil
	return g.Conn.Write(p)
}

// acquire waits for a token, in order of arrival. A client that was answered waits until the
// handshake times out. A new one waits for maxQueue, and needs a place in answered.
func (g *handshake) acquire() error {
	var tooLong <-chan time.Time
	if !g.answered {
		g.moveTo(nil)
		tooLong = time.After(g.admission.maxQueue)
	}
	select {
	case g.admission.tokens <- struct{}{}:
		g.holding = true
	case <-tooLong:
		g.admission.refuse(g.Conn)
		return fmt.Errorf("%w: no turn for %v", tunnel.Busy, g.admission.maxQueue)
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	}
	if !g.answered && !g.moveTo(g.admission.answered) {
		g.admission.refuse(g.Conn)
		return fmt.Errorf("%w: others wait to be answered", tunnel.Busy)
	}
	return nil
}

// release returns the token.
func (g *handshake) release() {
	if g.holding {
		g.holding = false
		<-g.admission.tokens
	}
}

// NetConn is the connection itself.
func (g *handshake) NetConn() net.Conn { return g.Conn }
