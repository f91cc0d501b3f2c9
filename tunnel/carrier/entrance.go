// Entrance: strangers, in bounded number, and not all of them computing at a
// time.

package carrier

import (
	"container/list"
	"context"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// maxHandshakes is how many connections of a listener may be in their handshake.
	maxHandshakes = 1024
	// maxQueue is how long a handshake may wait for a turn before newcomers are sent
	// away: a client gives up sooner or later, and whatever was computed for one that
	// has is lost to the others.
	maxQueue = 2 * time.Second
	// maxAnswer is how long a client that has been answered may keep silent before a
	// newcomer gets its place.
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
	limit  int
	tokens chan struct{} // one for each handshake that computes
	log    *slog.Logger
	sparse strangers.Sparse // lines about handshakes that came to nothing

	mu         sync.Mutex       // guards the following
	handshakes list.List        // of *handshake, oldest first
	census     strangers.Census // of handshakes
	closed     bool
	turned     uint64           // refused since the beginning
	crowd      strangers.Sparse // lines about that
}

func newEntrance(limit int, log *slog.Logger) *entrance {
	return &entrance{limit: limit, tokens: make(chan struct{}, runtime.GOMAXPROCS(0)), log: log}
}

// admit finds a place for c, if need be that of a client which has kept us
// waiting: the oldest one of the source that has most places. Without one it says so,
// closes c and returns nil.
func (e *entrance) admit(c net.Conn) *handshake {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		_ = c.Close() // nobody is here any more
		return nil
	}
	now, source := time.Now(), strangers.SourceOf(c.RemoteAddr())
	if e.behindLocked(now) || e.handshakes.Len() >= e.limit && !e.evictLocked(now, source) {
		e.complainLocked()
		e.mu.Unlock()
		dismiss(c)
		e.mu.Lock()
		return nil
	}
	g := &handshake{Conn: c, entrance: e, source: source, since: now}
	g.place = e.handshakes.PushBack(g)
	e.census.Add(source)
	return g
}

// behindLocked says whether anybody has waited for us for too long. The handshakes who
// came first have, if anybody has, so not many need to be asked.
func (e *entrance) behindLocked(now time.Time) bool {
	asked := 0
	for at := e.handshakes.Front(); at != nil && asked < cap(e.tokens)+1; at = at.Next() {
		g, _ := at.Value.(*handshake)
		if g.phase == listening || g.phase == computing {
			continue
		}
		if now.Sub(g.since) > maxQueue {
			return true
		}
		asked++
	}
	return false
}

// evictLocked closes the oldest connection whose client is to blame for its being
// here still: of the source that has to yield to a newcomer's, or of any other if
// nobody there is to blame. Where no source has more than its share, a client that has
// been answered is to blame after maxAnswer only: when thousands come at once, as
// after a cut, each newcomer would else undo what was done for another one.
func (e *entrance) evictLocked(now time.Time, newcomer strangers.Source) bool {
	yields := e.census.Yields(newcomer, e.limit)
	greedy := yields != newcomer && e.census.Of(yields) > 1
	var blamed *handshake
	for at := e.handshakes.Front(); at != nil; at = at.Next() {
		g, _ := at.Value.(*handshake)
		if g.phase != listening || g.served && now.Sub(g.since) < maxAnswer && (!greedy || g.source != yields) {
			continue
		}
		if blamed == nil || g.source == yields {
			blamed = g
		}
		if g.source == yields {
			break
		}
	}
	if blamed == nil {
		return false
	}
	e.removeLocked(blamed)
	blamed.evicted = true
	_ = blamed.Close() // its reader notices
	return true
}

// removeLocked gives back the place of g, which has one.
func (e *entrance) removeLocked(g *handshake) {
	e.handshakes.Remove(g.place)
	e.census.Remove(g.source)
}

// complainLocked counts a client that is sent away, and tells the log now and then.
func (e *entrance) complainLocked() {
	e.turned++
	if more, ok := e.crowd.Tell(nil); ok {
		e.log.Warn("too many handshakes at a time: clients are sent away", "limit", e.limit, "others", more)
	}
}

// count is how many handshakes there are, and how many have been refused.
func (e *entrance) count() (handshakes int, refused uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.handshakes.Len(), e.turned
}

// dismiss sends a client away that has not been heard.
func dismiss(c net.Conn) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond)) // seven bytes fit, or else there is nobody
	_, _ = c.Write(sorry[:])                                 // likewise
	_ = c.Close()
}

// close closes every connection in its handshake and all that come later.
func (e *entrance) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for at := e.handshakes.Front(); at != nil; at = at.Next() {
		g, _ := at.Value.(*handshake)
		_ = g.Close() // its reader notices
	}
}

// A phase is what a handshake is about.
type phase uint8

const (
	coming    phase = iota // has only just been admitted
	listening              // waits for its client
	queued                 // has heard from its client and waits for its turn
	computing
)

// A handshake is a connection that takes turns while it is in its handshake, and is
// transparent afterwards.
type handshake struct {
	net.Conn
	entrance *entrance
	place    *list.Element
	source   strangers.Source
	inside   atomic.Bool // the handshake is over

	// Owned by the goroutine that shakes hands.
	over    <-chan struct{} // closed when the time for that is over
	holding bool            // a token

	// The entrance's mutex guards the following.
	phase   phase
	since   time.Time // when that began
	served  bool      // has been answered
	evicted bool
}

// shake shakes hands with f, for as long as ctx lets it, and gives the place
// back.
func (g *handshake) shake(ctx context.Context, f func(context.Context) error) error {
	g.over = ctx.Done()
	err := f(ctx)
	g.rest()
	g.inside.Store(true)
	g.entrance.mu.Lock()
	defer g.entrance.mu.Unlock()
	if !g.evicted {
		g.entrance.removeLocked(g)
	}
	return err
}

// Read reads from the client. During the handshake that is when others have
// their turn.
func (g *handshake) Read(p []byte) (int, error) {
	if g.inside.Load() {
		return g.Conn.Read(p)
	}
	g.rest()
	g.enter(listening)
	n, err := g.Conn.Read(p)
	g.enter(queued)
	select {
	case g.entrance.tokens <- struct{}{}:
		g.holding = true
		g.enter(computing)
	case <-g.over:
		return n, os.ErrDeadlineExceeded
	}
	return n, err
}

// Write answers the client.
func (g *handshake) Write(p []byte) (int, error) {
	if !g.inside.Load() {
		g.answered()
	}
	return g.Conn.Write(p)
}

func (g *handshake) answered() {
	g.entrance.mu.Lock()
	defer g.entrance.mu.Unlock()
	g.served = true
}

// rest ends a turn.
func (g *handshake) rest() {
	if g.holding {
		g.holding = false
		<-g.entrance.tokens
	}
}

func (g *handshake) enter(p phase) {
	g.entrance.mu.Lock()
	defer g.entrance.mu.Unlock()
	g.phase, g.since = p, time.Now()
}

// failed tells the log of a handshake that failed: one that was cut short because
// of others is no news, nor is every one of a client that tries again and again.
func (g *handshake) failed(ctx context.Context, err error) {
	g.entrance.mu.Lock()
	evicted := g.evicted
	g.entrance.mu.Unlock()
	level, more := slog.LevelDebug, 0
	if !evicted {
		if n, ok := g.entrance.sparse.Tell(g.RemoteAddr()); ok {
			level, more = slog.LevelInfo, n
		}
	}
	g.entrance.log.Log(ctx, level, "handshake failed", "addr", g.RemoteAddr().String(), "err", err, "others", more)
}

// NetConn is the connection itself.
func (g *handshake) NetConn() net.Conn { return g.Conn }

// CloseWrite ends our direction.
func (g *handshake) CloseWrite() error { return tunnel.CloseWrite(g.Conn) }
