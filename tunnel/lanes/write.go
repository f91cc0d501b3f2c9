// Write: what is said at home, when a direction moves, and how it comes home.

package lanes

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// outbound is how this end's direction is being written.
type outbound struct {
	// pend are bytes about the stream that go before anything else at home, in
	// room; then owed bytes of the stream are due of an item whose size has been
	// said.
	pend []byte
	owed int
	room [32]byte // more than a number, a wish and a size

	leg     *leg // where the bytes go; nil at home
	settled bool // and the peer has been told

	said  int       // at home of late: bytes, with some taken off as time goes by
	at    time.Time // when that was
	retry time.Time // no lane before that
}

// smallest is how much may be put together with its size in one write.
const smallest = 16 << 10

// scratch recycles the buffers for that. It is a cache and holds nothing that
// anybody could observe.
var scratch = sync.Pool{New: func() any { return new([smallest + 32]byte) }}

// Write writes p, at home or on a leg. It may take a moment to find a lane.
func (st *stream) Write(p []byte) (n int, err error) {
	st.wmu.Lock()
	defer st.wmu.Unlock()
	if err = st.mayWrite(); err != nil {
		return 0, st.opError("write", err)
	}
	for len(p) > 0 && err == nil {
		var m int
		m, err = st.put(p)
		n, p = n+m, p[m:]
	}
	if err != nil {
		return n, st.wrote(len(p) > 0, err)
	}
	return n, nil
}

// mayWrite says why no Write may begin; nil if one may.
func (st *stream) mayWrite() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.stoppedLocked(st.wdl); err != nil {
		return err
	}
	if st.shut {
		return syscall.EPIPE
	}
	return nil
}

// put writes a part of p wherever the direction is.
func (st *stream) put(p []byte) (int, error) {
	o := &st.out
	if o.leg != nil {
		if err := st.settle(); err != nil {
			return 0, err
		}
		n, err := o.leg.child.Write(p)
		o.leg.said.Add(int64(n))
		return n, err
	}
	if o.owed == 0 {
		size, err := st.allowance(min(len(p), maxItem))
		if err != nil || o.leg != nil {
			return 0, err
		}
		o.pend = appendSize(o.pend, size)
		o.owed = size
		o.said += size
	}
	return st.push(p[:min(len(p), o.owed)])
}

// push writes at home what is pending, and p, which is owed.
func (st *stream) push(p []byte) (n int, err error) {
	o := &st.out
	if len(o.pend) > 0 {
		buf := scratch.Get().(*[smallest + 32]byte)
		defer scratch.Put(buf)
		head := copy(buf[:], o.pend)
		with := 0
		if len(p) <= smallest {
			with = copy(buf[head:], p)
		}
		n, err = st.home.Write(buf[:head+with])
		gone := min(n, head)
		o.pend = o.room[:copy(o.room[:], o.pend[gone:])]
		n -= gone
		o.owed -= n
		if err != nil || with == len(p) {
			return n, err
		}
	}
	m, err := st.home.Write(p[n:])
	o.owed -= m
	return n + m, err
}

// allowance says how many of size bytes may be said at home now. If none, the
// direction has moved.
func (st *stream) allowance(size int) (int, error) {
	o, t := &st.out, &st.session.tune
	now := time.Now()
	if !o.at.IsZero() {
		o.said = max(0, o.said-int(min(now.Sub(o.at), time.Hour).Seconds()*float64(t.leak)))
	}
	o.at = now
	if o.said+size <= min(t.far, t.near)/2 {
		return size, nil
	}
	if now.Before(o.retry) || !st.mayMove() {
		o.said = min(o.said, t.far)
		return size, nil
	}
	limit := st.session.limit()
	if o.said+size <= limit/2 {
		return size, nil
	}
	o.ask(st.session.warm(1))
	if left := limit - o.said; left > 0 {
		return min(size, left), nil
	}
	o.said = limit
	switch err := st.move(); {
	case err == nil:
		o.said = 0
		return 0, nil
	case errors.Is(err, errNoLane):
		o.retry = time.Now().Add(t.retry)
		return size, nil
	default:
		return 0, err
	}
}

// ask has the peer asked for lanes, unless it is for none, or what is pending is
// stuck: then it would not hear.
func (o *outbound) ask(lanes int) {
	if lanes > 0 && len(o.pend) <= binary.MaxVarintLen64 {
		o.pend = appendWanted(o.pend, lanes)
	}
}

// mayMove says whether a leg can begin: both ends know the stream's number.
func (st *stream) mayMove() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.number != 0
}

// move begins a leg. It waits for a lane if there may soon be one, and before
// that for the leg before to be read: what would be said at home meanwhile could
// not be read any earlier.
func (st *stream) move() error {
	if err := st.settleUp(); err != nil {
		return err
	}
	s := st.session
	s.wait(1)
	defer s.wait(-1)
	patience := time.NewTimer(s.tune.patience)
	defer patience.Stop()
	for {
		deadline, changes, err := st.goingOn()
		if err != nil {
			return err
		}
		st.out.ask(s.warm(0))
		if len(st.out.pend) > 0 { // before waiting for what it asks for
			if _, err = st.push(nil); err != nil {
				return err
			}
		}
		l, lanes, err := s.pick()
		if err != nil {
			return err
		}
		if l != nil {
			err = st.embark(l)
			l.release()
			return err
		}
		if await(changes, lanes, patience.C, deadline) {
			s.disappoint()
			return errNoLane
		}
	}
}

// settleUp waits until there is no leg.
func (st *stream) settleUp() error {
	for {
		st.mu.Lock()
		g := st.going
		st.mu.Unlock()
		if g == nil || g.isOver() {
			return nil
		}
		deadline, changes, err := st.goingOn()
		if err != nil {
			return err
		}
		await(changes, g.done, nil, deadline)
	}
}

// goingOn says why a Write may not go on, or else until when it may and what is
// closed when that changes.
func (st *stream) goingOn() (deadline time.Time, changes <-chan struct{}, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.wdl, st.changesLocked(), st.stoppedLocked(st.wdl)
}

// embark begins a leg on l.
func (st *stream) embark(l *lane) error {
	ctx, cancel := context.WithTimeout(l.session.Context(), st.session.tune.patience)
	defer cancel()
	st.mu.Lock()
	number := st.number
	st.stop = cancel
	st.mu.Unlock()
	g, err := l.begin(ctx, st, number)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.stop = nil
	if stopped := st.stoppedLocked(st.wdl); stopped != nil {
		if err == nil {
			g.abort()
		}
		return stopped
	}
	if err != nil {
		return errNoLane // that lane is broken, or full
	}
	_ = g.child.SetWriteDeadline(st.wdl) // if it fails, so will Write
	st.going = g
	st.out.leg, st.out.settled = g, false
	st.out.pend = appendMoved(st.out.pend, l.number)
	return nil
}

// settle says on the leg whose it is and then at home where it is.
func (st *stream) settle() error {
	o := &st.out
	if o.settled {
		return nil
	}
	g := o.leg
	if len(g.head) > 0 {
		n, err := g.child.Write(g.head)
		if g.head = g.head[n:]; err != nil {
			return err
		}
		g.lane.of.mu.Lock()
		g.lane.begun++
		g.lane.quiet = time.Now()
		g.lane.of.mu.Unlock()
	}
	if _, err := st.push(nil); err != nil {
		return err
	}
	o.settled = true
	return nil
}

// disembark ends the leg, if there is one: the direction is at home again. The
// caller holds wmu.
func (st *stream) disembark() {
	o := &st.out
	g := o.leg
	if g == nil {
		return
	}
	if !o.settled {
		// Nothing has been said on it. What is pending stays so: if the peer
		// has been told half a word it will be told the other half, or the end.
		g.abort()
		st.over(g)
		return
	}
	o.leg, o.settled = nil, false
	st.mu.Lock()
	g.ended = true
	st.mu.Unlock()
	_ = g.child.CloseWrite() // if it fails, the lane is broken, and its end will tell
	st.session.aside(func() {
		g.seeOff()
		st.over(g)
	})
}

// over notes that g is.
func (st *stream) over(g *leg) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.going == g {
		st.going = nil
	}
}

// comeHome ends a leg on which little is said, unless somebody is saying
// something.
func (st *stream) comeHome(g *leg) {
	if !st.wmu.TryLock() {
		return
	}
	defer st.wmu.Unlock()
	if st.out.leg == g && st.out.settled {
		st.disembark()
	}
}

// wrote is what a Write that failed returns. Cut says whether something is
// missing.
func (st *stream) wrote(cut bool, err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.closed:
		st.cut = st.cut || cut
		err = net.ErrClosed
	case st.failed != nil:
		err = st.failed
	}
	return st.explain("write", err)
}
