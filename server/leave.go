// Leaving: what a server does between the word that it will stop and the end of its
// listeners.

package server

import (
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// textLeaving is what agents and callers are told.
const textLeaving = "server is shutting down"

// Leave tells agents that the server is about to stop, so that those that know another
// server have a session there before this one's ends, and turns new sessions away.
// Sessions go on and dials are answered until Run's context is done. It may be called
// again.
func (h *Hub) Leave() {
	h.leaveOnce.Do(func() {
		close(h.leaving)
		for _, m := range h.registry.everyone() {
			m.poke()
		}
	})
}

// isLeaving says whether Leave was called.
func (h *Hub) isLeaving() bool {
	select {
	case <-h.leaving:
		return true
	default:
		return false
	}
}

// DrainBy says until when streams into nodes may go on once Run's context is done, in
// place of Config.DrainTimeout.
func (h *Hub) DrainBy(t time.Time) { h.drainBy.Store(&t) }

// drainTime is how long they may go on from now.
func (h *Hub) drainTime() time.Duration {
	if by := h.drainBy.Load(); by != nil {
		return max(0, time.Until(*by))
	}
	return h.config.DrainTimeout
}

// Open is how many streams into nodes are open that were dialed here, by whatever way.
func (h *Hub) Open() int {
	n := int(h.ledger.around.byServer.Load() + h.ledger.elsewhere.byServer.Load())
	for _, m := range h.registry.everyone() {
		n += m.dialed.count()
	}
	return n
}

// tellLeaving tells m's agent. It returns at once; wg is done once it has been told or the
// session is over.
func (h *Hub) tellLeaving(m *member, wg *sync.WaitGroup) {
	wg.Go(func() {
		if err := m.control.Drain(tunnel.Draining, textLeaving); err != nil {
			h.log.Debug("agent was not told that the server leaves", "node", m.node, "err", err)
		}
	})
}
