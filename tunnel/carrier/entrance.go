// Entrance: strangers, in bounded number, and not all of them computing at a
// time.

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
	// maxHandshakes is how many connections of a listener may be in their handshake.
	maxHandshakes = 1024
	// maxQueue is how long a client that has only just come may wait for a turn: it
	// gives up sooner or later, and whatever was computed for one that has is lost to
	// the others.
	maxQueue = 2 * time.Second
	// maxAnswer is how long a client that has been answered keeps its place from
	// newcomers, even if it is silent: when thousands come at once, as after a cut, each
	// would else undo what was done for another.
	maxAnswer = 3 * time.Second
)

// sorry is what a client hears for whom there is no place: a TLS record with the
// fatal alert internal_error (RFC 8446, 6), which is what comes closest to busy.
// It is written here once and never changed.
var sorry = [...]byte{21, 3, 3, 0, 2, 2, 80}

// An entrance admits strangers to their handshakes. A handshake computes only
// while it holds a token, and gives it back while it waits for its client: so a
// storm of clients is served one after the other and not all of them too late,
// sessions that are there keep their share of the processors, and a slow client
// costs nothing but a place.
type entrance struct {
	places   chan struct{}      // one for each handshake
	silent   *strangers.Pending // those that wait for a client's first words
	answered *strangers.Pending // those that have computed for a client; each has 3/8 of the places
	tokens   chan struct{}      // one for each handshake that computes
	longest  time.Duration      // maxQueue, except in tests
	log      *slog.Logger
	sparse   strangers.Sparse // lines about handshakes that came to nothing
	turned   atomic.Uint64    // clients sent away
	crowd    strangers.Sparse // lines about those
}

func newEntrance(limit int, log *slog.Logger) *entrance {
	return &entrance{
		places:   make(chan struct{}, limit),
		silent:   strangers.NewPending(limit * 3 / 8),
		answered: strangers.NewPatient(limit*3/8, maxAnswer),
		tokens:   make(chan struct{}, runtime.GOMAXPROCS(0)),
		longest:  maxQueue,
		log:      log,
	}
}

// admit finds a place for c. Without one it says so, closes c and returns nil. When there
// is none, a quarter of them wait for us: the newcomer would wait as well.
func (e *entrance) admit(c net.Conn) *handshake {
	select {
	case e.places <- struct{}{}:
		return &handshake{Conn: c, entrance: e}
	default:
		e.dismiss(c)
		return nil
	}
}

// dismiss sends a client away that has not been answered.
func (e *entrance) dismiss(c net.Conn) {
	e.turned.Add(1)
	if more, ok := e.crowd.Tell(nil); ok {
		e.log.Warn("too many handshakes at a time: clients are sent away", "limit", cap(e.places), "others", more)
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond)) // seven bytes fit, or else there is nobody
	_, _ = c.Write(sorry[:])                                 // likewise
	_ = c.Close()
}

// close ends every handshake, and all that come later.
func (e *entrance) close() {
	e.silent.Close()
	e.answered.Close()
}

// A handshake is a connection that takes turns while it is in its handshake, and is
// transparent afterwards.
type handshake struct {
	net.Conn
	entrance *entrance

	// Owned by the goroutine that shakes hands.
	ctx     context.Context // of the handshake; nil before and after
	spoken  bool            // to the client
	leave   func()          // gives back a place beside that of the handshake; nil without one
	holding bool            // a token
}

// shake shakes hands with f, for as long as ctx lets it, and gives the place
// back. An error is told to the log: one that came about because of others is no news,
// nor is every one of a client that tries again and again.
func (g *handshake) shake(ctx context.Context, f func(context.Context) error) error {
	g.ctx = ctx
	err := f(ctx)
	g.ctx = nil
	g.rest()
	g.enter(nil)
	<-g.entrance.places
	if err == nil {
		return nil
	}
	level, more := slog.LevelDebug, 0
	if !errors.Is(err, net.ErrClosed) && !errors.Is(err, tunnel.Busy) {
		if n, ok := g.entrance.sparse.Tell(g.RemoteAddr()); ok {
			level, more = slog.LevelInfo, n
		}
	}
	g.entrance.log.Log(ctx, level, "handshake failed", "addr", g.RemoteAddr().String(), "err", err, "others", more)
	return err
}

// enter leaves where g was and takes a place in p, if it has one.
func (g *handshake) enter(p *strangers.Pending) bool {
	if g.leave != nil {
		g.leave()
		g.leave = nil
	}
	if p != nil {
		g.leave = p.Enter(g.Conn)
	}
	return g.leave != nil
}

// Read reads from the client. During the handshake that is when others have
// their turn.
func (g *handshake) Read(p []byte) (int, error) {
	if g.ctx == nil {
		return g.Conn.Read(p)
	}
	g.rest()
	if !g.spoken {
		g.enter(g.entrance.silent)
	}
	n, err := g.Conn.Read(p)
	if err != nil {
		return n, err
	}
	return n, g.turn()
}

// Write answers the client.
func (g *handshake) Write(p []byte) (int, error) {
	g.spoken = g.spoken || g.ctx != nil
	return g.Conn.Write(p)
}

// turn waits for a token, whoever came first: for one that has been answered, as long as
// there is time. Who has not must have a place to be answered in.
func (g *handshake) turn() error {
	var tooLong <-chan time.Time
	if !g.spoken {
		g.enter(nil)
		t := time.NewTimer(g.entrance.longest)
		defer t.Stop()
		tooLong = t.C
	}
	select {
	case g.entrance.tokens <- struct{}{}:
		g.holding = true
	case <-tooLong:
		g.entrance.dismiss(g.Conn)
		return fmt.Errorf("%w: no turn for %v", tunnel.Busy, g.entrance.longest)
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	}
	if !g.spoken && !g.enter(g.entrance.answered) {
		g.entrance.dismiss(g.Conn)
		return fmt.Errorf("%w: others wait to be answered", tunnel.Busy)
	}
	return nil
}

// rest ends a turn.
func (g *handshake) rest() {
	if g.holding {
		g.holding = false
		<-g.entrance.tokens
	}
}

// NetConn is the connection itself.
func (g *handshake) NetConn() net.Conn { return g.Conn }
