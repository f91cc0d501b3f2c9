// Leaving: what a server does between the announcement that it will stop and the end of its
// listeners.

package server

import (
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// textLeaving is the reason that agents and callers get.
const textLeaving = "server is shutting down"

// Leave notifies agents that the server is about to stop, so that they connect to another
// server before their session here ends, and refuses new sessions. Sessions and dials
// continue until Run's context is done. It may be called again.
func (h *Hub) Leave() {
	h.leaveOnce.Do(func() {
		close(h.leaving)
		for _, m := range h.registry.everyone() {
			m.poke()
		}
	})
}

// isLeaving reports whether Leave was called.
func (h *Hub) isLeaving() bool {
	select {
	case <-h.leaving:
		return true
	default:
		return false
	}
}

// DrainBy sets the deadline for streams into nodes once Run's context is done, in place of
// Config.DrainTimeout.
func (h *Hub) DrainBy(t time.Time) { h.drainBy.Store(&t) }

// drainTime is the time left until then.
func (h *Hub) drainTime() time.Duration {
	if by := h.drainBy.Load(); by != nil {
		return max(0, time.Until(*by))
	}
	return h.config.DrainTimeout
}

// Open is how many streams into nodes that were dialed here are open, by any route, also of
// sessions that take no dials any more.
func (h *Hub) Open() int {
	n := h.ledger.around.dialed.Count() + h.ledger.elsewhere.dialed.Count()
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	for _, members := range h.ledger.live {
		for m := range members {
			n += m.dialed.Count()
		}
	}
	return n
}

// tellLeaving notifies the agent of e's session. It returns at once; e's goroutines include it
// until the agent was notified or the session ends.
func (h *Hub) tellLeaving(e *engagement) {
	e.wg.Go(func() {
		if err := e.member.control.Drain(e.run, tunnel.Draining, textLeaving); err != nil {
			h.log.Debug("agent was not notified that the server leaves", "node", e.member.node, "err", err)
		}
	})
}
