// The streams that agents open to the API server.

package server

import (
	"context"
	"fmt"
	"sync"

	"github.com/hawser-project/hawser/tunnel"
)

// maxAPIStreams bounds the streams to the API server of one node, in all its sessions
// together. Each may be a socket of this process. An agent may open one for each connection
// that programs of its machine make.
const maxAPIStreams = 1024

// An apiStreams counts the open streams to the API server.
type apiStreams struct {
	mu   sync.Mutex     // guards the following
	open map[string]int // by node
}

// enter reports whether node may have one more. The caller must then call leave.
func (a *apiStreams) enter(node string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[node] >= maxAPIStreams {
		return false
	}
	if a.open == nil {
		a.open = make(map[string]int)
	}
	a.open[node]++
	return true
}

func (a *apiStreams) leave(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[node]--; a.open[node] == 0 {
		delete(a.open, node)
	}
}

// request serves a stream that the agent opened.
func (h *Hub) request(ctx context.Context, m *member, r *tunnel.Request) {
	switch {
	case r.Addr != APIServer || r.Network != "tcp":
		h.reject(m, r, tunnel.Denied, "agents may only dial "+APIServer)
	case h.config.API == nil:
		h.reject(m, r, tunnel.Refused, "this server has no API server")
	case !h.toAPI.enter(m.node):
		h.reject(m, r, tunnel.Busy, fmt.Sprintf("this node has %d streams to the API server", maxAPIStreams))
	default:
		h.handOver(ctx, m, r)
	}
}

func (h *Hub) reject(m *member, r *tunnel.Request, code tunnel.Code, text string) {
	h.log.Debug("agent's dial denied", "node", m.node, "target", r.Addr, "reason", text)
	if err := r.Reject(code, text); err != nil {
		h.log.Debug("agent's dial could not be answered", "node", m.node, "err", err)
	}
}

// awaitSeat waits while m does for its agent's answer, and reports whether that has come.
func (m *member) awaitSeat(ctx context.Context) bool {
	if m.seated == nil {
		return true
	}
	select {
	case <-m.seated:
		return true
	case <-ctx.Done():
		return false
	}
}

// handOver gives the stream to the API server, once m's agent has answered its welcome: a
// session that would replace another one has no access before.
func (h *Hub) handOver(ctx context.Context, m *member, r *tunnel.Request) {
	ctx, cancel := r.Context(ctx)
	defer cancel()
	if !m.awaitSeat(ctx) {
		h.toAPI.leave(m.node)
		h.reject(m, r, tunnel.Busy, "the agent has not answered its welcome")
		return
	}
	s, err := r.Accept()
	if err != nil { // the opener has ended it
		h.toAPI.leave(m.node)
		return
	}
	c := m.track(openerAgent, s, m.addr)
	ended := c.Ended
	c.Ended = func(aborted bool) {
		ended(aborted)
		h.toAPI.leave(m.node)
	}
	if err := h.config.API(ctx, c); err != nil {
		h.log.Debug("API server did not take the agent's connection", "node", m.node, "err", err)
		_ = c.Abort() // nothing uses it any more
	}
}
