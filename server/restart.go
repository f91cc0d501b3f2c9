// Restarts: dials that wait for a node whose agent announced that it leaves.

package server

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// Bounds on waiting dials, into one node and in all. More fail at once.
const (
	maxAwaitingNode = 256
	maxAwaiting     = 4096
)

// An awaited node is one for which dials wait.
type awaited struct {
	dials int
	news  chan struct{} // closed, and replaced, when waiting dials should retry or stop waiting
}

// HasLeft is the error of a dial into a node that has no session because its agent
// announced that it leaves. It may be restarting.
func HasLeft(node string, d tunnel.Dial) *tunnel.DialError {
	return &tunnel.DialError{Addr: d.Name, Code: tunnel.Draining, Text: "node " + node + " is not connected: its agent has just left"}
}

// expected reports whether node has no session because its agent announced within
// Config.RestartPatience that it leaves.
func (h *Hub) expected(node string) bool {
	h.registry.mu.Lock()
	defer h.registry.mu.Unlock()
	e := h.registry.nodes[node]
	return e != nil && e.gone != nil && e.left && time.Since(e.gone.since) < h.config.RestartPatience
}

// Expected reports whether a node without a session at the server that sent o may reconnect
// soon, because its agent announced recently that it leaves.
func (h *Hub) Expected(o *Observation) bool {
	return o.State == Detached && o.Cause == Left && time.Since(o.At) < h.config.RestartPatience
}

// dialWaiting dials, and retries at each change of a node whose agent is leaving or has left,
// for Config.RestartPatience.
func (h *Hub) dialWaiting(ctx context.Context, node string, d tunnel.Dial, dial func() (*conn, way, error)) (*conn, way, error) {
	c, w, err := dial()
	if tunnel.CodeOf(err) != tunnel.Draining || h.config.RestartPatience == 0 || !h.registry.await(node) {
		return c, w, err
	}
	defer h.registry.giveUp(node)
	late := time.After(h.config.RestartPatience)
	for {
		news := h.registry.newsOf(node)
		if c, w, err = dial(); tunnel.CodeOf(err) != tunnel.Draining || h.stopping.Load() {
			return c, w, err
		}
		select {
		case <-news:
		case <-late:
			return nil, w, err
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return nil, w, tunnel.NewDialError(d.Name, cause)
			}
			return nil, w, err
		}
	}
}

// await reports whether one more dial may wait for node. If so, the caller must call
// giveUp.
func (r *registry) await(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.awaited[node]
	if r.awaiting >= maxAwaiting || a != nil && a.dials >= maxAwaitingNode {
		return false
	}
	if a == nil {
		a = &awaited{news: make(chan struct{})}
		if r.awaited == nil {
			r.awaited = make(map[string]*awaited)
		}
		r.awaited[node] = a
	}
	a.dials++
	r.awaiting++
	return true
}

func (r *registry) giveUp(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaiting--
	if a := r.awaited[node]; a.dials > 1 {
		a.dials--
		return
	}
	delete(r.awaited, node)
}

// newsOf returns a channel that is closed at the next change of an awaited node.
func (r *registry) newsOf(node string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.awaited[node].news
}

// wakeLocked makes the dials that wait for node retry.
func (r *registry) wakeLocked(node string) {
	if a := r.awaited[node]; a != nil {
		close(a.news)
		a.news = make(chan struct{})
	}
}

// wakeAll makes all waiting dials retry.
func (r *registry) wakeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.awaited {
		r.wakeLocked(node)
	}
}

// dialsAwaiting is how many dials wait.
func (r *registry) dialsAwaiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.awaiting
}
