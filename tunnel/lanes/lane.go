// Lane: a session beside lane 0, and the legs on it.

package lanes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A lane is a session beside lane 0.
type lane struct {
	of      *Session
	number  int
	session tunnel.Session

	// of.mu guards the following.
	legs     map[*leg]struct{} // both ends'
	reserved int               // places for legs that are about to begin
	begun    uint32            // legs that this end has begun
	met      uint32            // legs of the peer's
	quiet    time.Time         // since when nothing has begun or ended
	retiring bool              // no leg may begin
}

// A leg is a stretch of one direction of a stream on a lane.
type leg struct {
	lane  *lane
	child tunnel.Stream
	// stream is nil, in the other direction, until the leg is delivered.
	stream  *stream
	claimed chan *stream // has the stream, if the leg came before its number

	head  []byte       // of the prefix, not written yet; the stream's wmu guards it
	said  atomic.Int64 // bytes since the last sweep
	calm  int          // sweeps in which little was said; tend owns it
	once  sync.Once
	done  chan struct{} // closed when it is over for this end
	ended bool          // our end is said; the stream's mu guards it
}

func (l *lane) loadLocked() int { return len(l.legs) + l.reserved }

// usableLocked says whether a leg may begin.
func (l *lane) usableLocked() bool {
	if l.retiring || l.session.Context().Err() != nil {
		return false
	}
	state, _ := tunnel.LinkOf(l.session)
	return state.Parked.IsZero()
}

// release gives back a place that pick has reserved.
func (l *lane) release() {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.reserved--
	l.quiet = time.Now()
}

// begin opens a leg of st's in a reserved place. ctx bounds the opening.
func (l *lane) begin(ctx context.Context, st *stream, number uint64) (*leg, error) {
	child, err := l.session.Open(ctx)
	if err != nil {
		return nil, err
	}
	head := prefix{kind: kindLeg, stream: number}.encode()
	g := &leg{lane: l, child: child, stream: st, head: head[:], done: make(chan struct{})}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.legs[g] = struct{}{}
	return g, nil
}

// over takes the leg off its lane.
func (g *leg) over() {
	g.once.Do(func() {
		l := g.lane
		l.of.mu.Lock()
		defer l.of.mu.Unlock()
		delete(l.legs, g)
		l.quiet = time.Now()
		close(g.done)
	})
}

// isOver says whether the peer has read the leg to its end, or it was given up.
func (g *leg) isOver() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// close winds the leg up: what the peer goes on saying is heard for a while, and
// then it is told.
func (g *leg) close() {
	_ = g.child.Close() // nobody is interested any more
	g.over()
}

func (g *leg) abort() {
	_ = tunnel.Abort(g.child) // likewise
	g.over()
}

// seeOff waits until the peer has read a leg that this end has ended.
func (g *leg) seeOff() {
	var b [1]byte
	_, err := g.child.Read(b[:])
	if errors.Is(err, io.EOF) {
		g.close()
		return
	}
	g.abort() // reset, dead, or said something that it had not to
}

// run serves the lane until its session ends.
func (l *lane) run() {
	s := l.of
	s.log.Info("lane added", "lane", l.number)
	var wg sync.WaitGroup
	wg.Go(func() { l.accept(&wg) })
	l.tend()
	wg.Wait()
	cause := fmt.Errorf("lane %d: %w", l.number, context.Cause(l.session.Context()))
	s.mu.Lock()
	delete(s.lanes, l.number)
	if l.retiring {
		cause = errRetired
	}
	s.ended.add(l.number, cause)
	s.demand.asked = min(s.demand.asked, len(s.lanes))
	state, _ := tunnel.LinkOf(l.session)
	state.Queued = 0
	add(&s.past, state)
	s.notifyLocked()
	var left []*leg
	for g := range l.legs {
		left = append(left, g)
	}
	s.mu.Unlock()
	for _, g := range left {
		g.stream.bereave(g, cause)
	}
	s.log.Info("lane ended", "lane", l.number, "reason", cause)
}

// accept takes what the peer opens. It counts in wg what it starts.
func (l *lane) accept(wg *sync.WaitGroup) {
	for {
		child, err := l.session.Accept(l.session.Context())
		if err != nil {
			if l.session.Context().Err() == nil {
				if !l.isEnd(err) {
					l.of.log.Warn("lane is broken", "lane", l.number, "err", err)
				}
				_ = l.session.Close() // run tells
			}
			return
		}
		wg.Go(func() { l.receive(child) })
	}
}

// isEnd says whether Accept's err is only how the end of the lane looks from here, a
// moment before the session's context is done.
func (l *lane) isEnd(err error) bool {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	return l.retiring || errors.Is(err, tunnel.ErrSessionClosed) || errors.Is(err, tunnel.Lost) || errors.Is(err, syscall.ECONNRESET)
}

// receive reads how child begins and passes it on.
func (l *lane) receive(child tunnel.Stream) {
	p, err := l.readPrefix(child)
	if err != nil {
		_ = tunnel.Abort(child) // nobody can do anything with it
		l.of.log.Debug("leg without a beginning", "lane", l.number, "err", err)
		return
	}
	if p.kind == kindRetire {
		l.answer(child, p)
		return
	}
	g := &leg{lane: l, child: child, claimed: make(chan *stream, 1), done: make(chan struct{})}
	l.of.mu.Lock()
	l.met++
	l.legs[g] = struct{}{}
	l.quiet = time.Now()
	l.retiring = false // the peer has not heard that it could go, or did not mean it
	l.of.mu.Unlock()
	l.of.deliver(g, p.stream)
}

func (l *lane) readPrefix(child tunnel.Stream) (prefix, error) {
	if err := child.SetReadDeadline(time.Now().Add(l.of.tune.prefix)); err != nil {
		return prefix{}, err
	}
	var b [prefixSize]byte
	if _, err := io.ReadFull(child, b[:]); err != nil {
		return prefix{}, err
	}
	p, err := decodePrefix(b)
	if err != nil {
		return prefix{}, err
	}
	return p, child.SetReadDeadline(time.Time{})
}

// tend ends legs that have calmed down, and the lane once it is idle, until the
// lane's session has ended.
func (l *lane) tend() {
	t := time.NewTicker(l.of.tune.sweep)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-l.session.Context().Done():
			return
		}
		for _, g := range l.ours() {
			if g.said.Swap(0) >= l.of.tune.calm {
				g.calm = 0
			} else if g.calm++; g.calm > 1 {
				g.stream.comeHome(g)
			}
		}
		if l.of.dialing && l.idle() {
			l.retire()
		}
	}
}

// ours are the legs that this end has begun.
func (l *lane) ours() []*leg {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	var ours []*leg
	for g := range l.legs {
		if g.claimed == nil {
			ours = append(ours, g)
		}
	}
	return ours
}

// idle says whether the lane has been without a leg for long, and if so lets none
// begin.
func (l *lane) idle() bool {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.retiring = l.usableLocked() && l.loadLocked() == 0 && time.Since(l.quiet) >= l.of.tune.idle
	return l.retiring
}

// retire ends the lane if the peer has no use for it either: that both ends have
// seen all legs that have begun proves that none is on its way.
func (l *lane) retire() {
	agreed, err := l.propose()
	if err != nil {
		l.of.log.Debug("peer did not say whether a lane may go", "lane", l.number, "err", err)
	}
	if agreed {
		_ = l.session.Close() // its end is what matters
		return
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.retiring = false
	l.quiet = time.Now()
}

func (l *lane) propose() (agreed bool, err error) {
	ctx, cancel := context.WithTimeout(l.session.Context(), l.of.tune.prefix)
	defer cancel()
	child, err := l.session.Open(ctx)
	if err != nil {
		return false, err
	}
	defer child.Close()
	if err = child.SetDeadline(time.Now().Add(l.of.tune.prefix)); err != nil {
		return false, err
	}
	l.of.mu.Lock()
	p := prefix{kind: kindRetire, begun: l.begun, met: l.met}.encode()
	l.of.mu.Unlock()
	if _, err = child.Write(p[:]); err != nil {
		return false, err
	}
	var b [1]byte
	if _, err = io.ReadFull(child, b[:]); err != nil {
		return false, err
	}
	return b[0] == retireYes, nil
}

// answer says whether the lane may go. Counts may differ for good if a leg was
// given up before it was seen: then a long silence must do.
func (l *lane) answer(child tunnel.Stream, p prefix) {
	l.of.mu.Lock()
	all := p.begun == l.met && p.met == l.begun || time.Since(l.quiet) >= 2*l.of.tune.idle
	yes := !l.of.dialing && all && l.loadLocked() == 0
	l.retiring = l.retiring || yes
	l.of.mu.Unlock()
	b := []byte{retireNo}
	if yes {
		b[0] = retireYes
	}
	_ = child.SetWriteDeadline(time.Now().Add(l.of.tune.prefix)) // the lane stays if the peer does not hear
	_, _ = child.Write(b)
	_ = child.Close()
}
