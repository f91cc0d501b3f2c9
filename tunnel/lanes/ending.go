// Ending: how a stream ends.

package lanes

import (
	"net"
	"time"
)

// CloseWrite ends our direction once all that was written is out. It does not
// wait for that.
func (st *stream) CloseWrite() error {
	st.mu.Lock()
	closed, failed, shut := st.closed, st.failed, st.shut
	st.shut = true
	st.mu.Unlock()
	switch {
	case closed:
		return st.opError("close", net.ErrClosed)
	case failed != nil:
		return st.opError("close", failed)
	case shut:
		return nil
	}
	if st.wmu.TryLock() {
		defer st.wmu.Unlock()
		return st.finish()
	}
	st.session.aside(func() {
		st.wmu.Lock() // whoever was writing is done
		defer st.wmu.Unlock()
		_ = st.finish() // if it fails the stream is broken, and Read will tell
	})
	return nil
}

// finish says the end. The caller holds wmu.
func (st *stream) finish() error {
	st.disembark()
	return st.home.CloseWrite()
}

// Close ends both directions. What was written before still reaches the peer; if
// the peer goes on writing it is told, after a while, that nobody reads.
func (st *stream) Close() error {
	st.mu.Lock()
	if st.closed {
		st.mu.Unlock()
		return nil
	}
	st.closed, st.shut = true, true
	number, coming, going, failed := st.number, st.coming, st.going, st.failed
	st.wakeLocked()
	st.mu.Unlock()
	if failed != nil {
		return nil // and all is aborted already
	}
	st.session.forget(number, false)
	if coming != nil {
		coming.close()
	}
	if going == nil && st.wmu.TryLock() {
		defer st.wmu.Unlock()
		return st.home.Close()
	}
	// Home may be reset soon after it is closed, which must not outrun what is
	// on its way on the leg, and an end must not be said after half a Write. So
	// Read and Write are interrupted here.
	_ = st.home.SetReadDeadline(past) // these fail only where nothing can block
	_ = st.home.SetWriteDeadline(past)
	if going != nil && !going.isEnded() {
		_ = going.child.SetWriteDeadline(past)
	}
	st.session.aside(st.windUp)
	return nil
}

// windUp closes a stream that was in the midst of something: a Write, or a leg of
// ours that the peer may not have read.
func (st *stream) windUp() {
	st.wmu.Lock() // whoever was writing has been interrupted
	st.mu.Lock()
	cut, g := st.cut, st.going
	st.mu.Unlock()
	if cut {
		st.wmu.Unlock()
		st.abortAll(g)
		return
	}
	_ = st.finish() // if it fails the stream is broken, and the peer is told
	st.wmu.Unlock()
	if g != nil {
		t := time.NewTimer(st.session.tune.parting)
		defer t.Stop()
		select {
		case <-g.done:
		case <-t.C:
			g.abort()
		}
	}
	_ = st.home.Close() // likewise
}

func (g *leg) isEnded() bool {
	g.stream.mu.Lock()
	defer g.stream.mu.Unlock()
	return g.ended
}

// Abort ends both directions at once; the peer sees a reset.
func (st *stream) Abort() error {
	st.mu.Lock()
	if st.closed {
		st.mu.Unlock()
		return nil
	}
	st.closed, st.shut = true, true
	number, coming, going := st.number, st.coming, st.going
	st.wakeLocked()
	st.mu.Unlock()
	st.session.forget(number, true)
	st.abortAll(coming, going)
	return nil
}
