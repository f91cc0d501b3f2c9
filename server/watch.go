// Watch: what an established session waits for, and how it ends.

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// serve runs m's control stream and its requests. It returns why the session ended; nil if
// ctx is done and the session drained.
func (h *Hub) serve(ctx context.Context, m *member) error {
	e := h.engage(ctx, m)
	return e.end(h.watch(ctx, m, e))
}

// An engagement has the goroutines that serve a member.
type engagement struct {
	hub    *Hub
	member *member
	run    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
	ended  chan error   // holds the error of the control stream
	served func() error // waits for the requests
	unpoke func() bool
}

// engage starts the goroutines.
func (h *Hub) engage(ctx context.Context, m *member) *engagement {
	e := &engagement{hub: h, member: m, ended: make(chan error, 1)}
	e.run, e.stop = context.WithCancel(context.WithoutCancel(ctx))
	e.unpoke = context.AfterFunc(ctx, m.poke)
	e.wg.Go(e.control)
	e.served = tunnel.StartServing(e.run, m.session, func(ctx context.Context, r *tunnel.Request) { h.request(ctx, m, r) })
	return e
}

// control runs the control stream.
func (e *engagement) control() {
	rtt := e.hub.metrics.rtt.WithLabelValues(e.member.transport)
	e.ended <- e.member.control.Run(e.run, func(d time.Duration) { rtt.Observe(d.Seconds()) })
}

// end stops the goroutines and ends the session, because of err.
func (e *engagement) end(err error) error {
	e.unpoke()
	e.stop()
	if err != nil {
		e.member.ends(err)
	}
	if cerr := e.member.session.Close(); cerr != nil {
		err = errors.Join(err, cerr)
	}
	if serr := e.served(); serr != nil {
		e.hub.log.Debug("session stopped accepting", "node", e.member.node, "err", serr)
	}
	e.wg.Wait()
	return err
}

// A watchState has the events that watch waits for.
type watchState struct {
	notified bool            // the agent was notified that the server leaves
	leaving  <-chan struct{} // nil once the agent announced it
	idle     <-chan struct{} // nil until the session ends with its last stream
	ending   error
	answered <-chan struct{}  // nil unless m waits
	late     <-chan time.Time // likewise
}

// watch returns why the session ended, or must end; nil if ctx is done and the session
// drained. A session that was demoted, or whose agent is about to leave, ends once it has
// no open stream.
func (h *Hub) watch(ctx context.Context, m *member, e *engagement) error {
	v := watchState{leaving: m.control.Draining()}
	if m.waits {
		v.answered, v.late = m.control.Answered(), time.After(helloTimeout)
	}
	for {
		if over, err := h.handlePoke(ctx, m, e, &v); over {
			return err
		}
		over, err := false, error(nil)
		select {
		case err = <-e.ended:
			return err
		case <-m.turned:
		case <-v.leaving:
			v.left(m)
		case <-v.idle:
			if v.idle, over = h.closeIdle(ctx, m, v.ending); over {
				return v.ending
			}
		case <-v.answered:
			over, err = h.answered(ctx, m, &v)
		case <-v.late:
			over, err = true, h.dismissed(m, fmt.Errorf("%w: the agent has not answered its welcome for %v", tunnel.Timeout, helloTimeout))
		}
		if over {
			return err
		}
	}
}

// left records that the agent announced that it leaves.
func (v *watchState) left(m *member) {
	v.leaving, v.idle = nil, m.open.Idle()
	v.ending = fmt.Errorf("%w: the agent has left", tunnel.Draining)
}

// answered registers m, or returns why it is refused.
func (h *Hub) answered(ctx context.Context, m *member, v *watchState) (over bool, err error) {
	v.answered, v.late = nil, nil
	if err = h.settle(ctx, m); err != nil {
		h.metrics.refused.WithLabelValues(tunnel.CodeOf(err).Name()).Inc()
		return true, h.dismissed(m, err)
	}
	return false, nil
}

// dismissed sends the agent the reason why its session ends.
func (h *Hub) dismissed(m *member, why error) error {
	m.ends(why)
	h.hangUp(m, why)
	return why
}

// handlePoke handles a poke of m. It returns whether the session has ended, and why.
func (h *Hub) handlePoke(ctx context.Context, m *member, e *engagement, v *watchState) (over bool, err error) {
	if why := m.why.Load(); why != nil {
		return true, h.dismissed(m, *why)
	}
	if ctx.Err() != nil {
		return true, h.drain(m, e.ended)
	}
	if !v.notified && h.isLeaving() {
		v.notified = true
		h.tellLeaving(e)
	}
	switch {
	case h.registry.isDemoted(m):
		if v.idle == nil {
			v.idle, v.ending = m.open.Idle(), fmt.Errorf("%w: the agent has moved to another session", tunnel.Draining)
		}
	case !m.leaving():
		v.idle = nil
	}
	return false, nil
}

// closeIdle ends a session without open streams: it sends the agent a goodbye, and the agent
// closes the session once it has read the data in flight. If a stream was opened meanwhile,
// closeIdle does nothing and returns when to try again. If m gets the node's dials again, it
// does nothing. If m is expelled it returns at once.
func (h *Hub) closeIdle(ctx context.Context, m *member, why error) (idle <-chan struct{}, over bool) {
	ctx, cancel := m.untilExpelled(ctx)
	defer cancel()
	if !m.leaving() { // it may be about to open a stream that it started before it migrated
		select {
		case <-time.After(linger):
		case <-m.session.Context().Done():
		case <-ctx.Done():
		}
		if m.open.Count() > 0 {
			return m.open.Idle(), false
		}
	}
	if m.expelled.Load() || !h.registry.markClosing(m) {
		return nil, false
	}
	pctx, stop := context.WithTimeout(ctx, drainTimeout)
	defer stop()
	if err := m.control.Part(pctx, tunnel.GoodbyeOf(why)); err != nil {
		h.log.Debug("session did not close cleanly", "node", m.node, "err", err)
	}
	return nil, !m.expelled.Load()
}

// drain notifies the agent, waits until the streams that the hub dialed have ended, at most
// until the deadline, and closes the session. It returns why the session ended if it ended
// before, or m was expelled.
func (h *Hub) drain(m *member, ended <-chan error) error {
	h.registry.drain(m, m.leaving()) // an older session drains as well
	until := time.Now().Add(h.drainTime())
	ctx, cancel := m.untilExpelled(context.Background())
	defer cancel()
	err := announceDrain(ctx, m, max(time.Second, time.Until(until)))
	if m.expelled.Load() {
		return h.dismissed(m, *m.why.Load())
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		h.log.Debug("agent takes no word that the server leaves", "node", m.node, "err", err)
	} else if err != nil {
		return err
	}
	select {
	case <-m.dialed.Idle():
	case <-time.After(time.Until(until)):
	case err := <-ended:
		return err
	case <-ctx.Done():
		return h.dismissed(m, *m.why.Load())
	}
	// Data of the last stream may still be in flight to its reader at the node. The agent
	// closes the session when it has been read. It has the rest of the time for that, and
	// at least one second.
	pctx, stop := context.WithTimeout(ctx, max(time.Second, time.Until(until)))
	defer stop()
	m.ends(fmt.Errorf("%w: %s", tunnel.Draining, textLeaving))
	if err := m.control.Part(pctx, &tunnel.Goodbye{Code: tunnel.Draining, Text: textLeaving}); err != nil {
		h.log.Debug("session did not close cleanly", "node", m.node, "err", err)
	}
	return nil
}

// announceDrain tells m's agent that the server leaves, within a time: an agent that reads nothing
// would block it for hours. If m is expelled meanwhile, it ends the session.
func announceDrain(ctx context.Context, m *member, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if m.expelled.Load() {
			_ = m.session.Dismiss(tunnel.GoodbyeOf(*m.why.Load())) // never fails
		}
	})()
	return m.control.Drain(ctx, tunnel.Draining, textLeaving)
}

func (h *Hub) hangUp(m *member, why error) {
	if err := m.control.HangUp(tunnel.GoodbyeOf(why)); err != nil {
		h.log.Debug("session did not close cleanly", "node", m.node, "err", err)
	}
}
