// Connections that take the place of others.

package qmux

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A hooked connection has something done before each write.
type hooked struct {
	secured
	before *atomic.Pointer[func()]
}

func (h hooked) Write(p []byte) (int, error) {
	if f := h.before.Swap(nil); f != nil {
		(*f)()
	}
	return h.secured.Write(p)
}

// The last of the old connections may be lost just when a new one takes the place of all.
func TestLostWhileReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		var hook atomic.Pointer[func()]
		n.far = func(c *memnet.Conn) secured { return hooked{bare{newBatch(c)}, &hook} }
		id, key, _ := n.hand(t).begin(usual)
		s := <-n.accepted
		n.set(func() { n.far = nil })
		beside := n.hand(t)
		beside.greet(&joining{kind: kindJoin, id: id, secret: key, attempt: 1, insteadOf: insteadOfNone})
		f := beside.await(frameSession)
		_, key, _ = f.session()
		synctest.Wait()
		lose := func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lostLocked(s.firstLocked(), errNoWay)
		}
		hook.Store(&lose)
		p := n.hand(t)
		p.join(id, key, 2)
		p.say(streamFrame(0, 0, "here", false))
		st, err := s.Accept(waiting(t))
		if err != nil {
			t.Fatal(err)
		}
		hears(t, st, "here")
		if l := s.Link(); !l.Parked.IsZero() || l.Resumes != 2 {
			t.Errorf("%+v", l)
		}
		n.close(t, s)
	})
}
