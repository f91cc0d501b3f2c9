// The life of one session, from its hello to its end.

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// linger is how long an ending session is kept after its last stream.
	linger = 500 * time.Millisecond
	// drainTimeout is how long an agent may take to read the rest of a session without
	// open streams here.
	drainTimeout = 30 * time.Second
	// sendAwayTimeout is how long a refused agent may take to send its hello.
	sendAwayTimeout = 2 * time.Second
)

// session serves s until it ends, is replaced, or ctx is done.
//
// One goroutine of each idle session waits in session, serveMember, serve and watch. Its stack
// needs 4 KiB if these use less than 1,248 bytes, else 8 KiB. What they do before and after
// the wait is therefore in separate functions.
func (h *Hub) session(ctx context.Context, s tunnel.Session) {
	if m := h.receive(ctx, s); m != nil {
		h.serveMember(ctx, m)
	}
}

// receive does the handshake of s. It returns nil if that failed, which it has logged and
// answered.
func (h *Hub) receive(ctx context.Context, s tunnel.Session) *member {
	began := time.Now()
	claimed, _ := h.config.Identify(s.Peer()) // repeated, and its error handled, below
	if err := h.admission.enter(claimed, began); err != nil {
		h.sendAway(ctx, s, err)
		return nil
	}
	var m *member
	greeting, node, err := h.readHello(ctx, s)
	if err == nil {
		m, err = h.welcome(ctx, s, greeting, node)
	}
	h.admission.greeted(time.Since(began))
	leave := sync.OnceFunc(func() { h.admission.leave(claimed) })
	if err != nil {
		leave()
		return nil
	}
	m.settled = leave
	h.admission.seat(1)
	if !m.waits {
		h.connected(m)
	}
	return m
}

// serveMember serves m, which has been admitted, until it ends.
func (h *Hub) serveMember(ctx context.Context, m *member) { h.finish(m, h.serve(ctx, m)) }

// finish cleans up after m, which ended with err.
func (h *Hub) finish(m *member, err error) {
	defer m.settled()
	h.detach(m)
	if errors.Is(err, tunnel.Revoked) {
		h.registry.forget(m.node) // a later node of that name is another one
	}
	h.history.end(m, err)
	h.ledger.close(m)
	h.admission.seat(-1)
	h.metrics.ended.WithLabelValues(m.transport, tunnel.CodeOf(err).Name()).Inc()
	said := "node disconnected"
	if m.waits {
		said = "session ended before its agent answered"
	}
	h.tell(m.logTo(h), slog.LevelInfo, m.node, said, "after", time.Since(m.since).Round(time.Millisecond), "reason", loggable(err))
}

// connected is called when m is registered.
func (h *Hub) connected(m *member) {
	m.settled()
	h.tell(m.logTo(h), slog.LevelInfo, m.node, "node connected", "version", truncated(m.hello.Meta["version"], maxVersion), "transport", m.transport)
}

func (m *member) logTo(h *Hub) *slog.Logger {
	return h.log.With("addr", m.addr.String(), "node", m.node, "session", m.id)
}

// settle registers m after its agent has answered. The error is the reason of a refusal.
func (h *Hub) settle(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	if _, err := h.admit(ctx, m.session, m.hello); err != nil { // the node may have been deleted since its hello
		return err
	}
	place := h.registry.settle(m)
	h.history.attach(m, time.Now(), h.registry.holder) // before those that it replaces end
	if err := h.applyVerdict(m, place); err != nil {
		return err
	}
	m.waits = false
	close(m.seated)
	h.connected(m)
	return nil
}

// detach unregisters m.
func (h *Hub) detach(m *member) {
	older := h.registry.detach(m, m.leaving())
	if older == nil {
		return
	}
	h.tell(h.log, slog.LevelInfo, m.node, "an older session of the node serves it again", "node", m.node, "from", m.id, "to", older.id)
	h.history.attach(older, time.Now(), h.registry.holder)
}

// readHello waits for the hello of s and returns its node. On error s has been ended, and the
// error logged.
func (h *Hub) readHello(ctx context.Context, s tunnel.Session) (*tunnel.Greeting, string, error) {
	log := h.log.With("addr", s.Peer().Addr.String())
	hctx, cancel := context.WithTimeout(ctx, helloTimeout)
	greeting, err := tunnel.Await(hctx, s)
	cancel()
	if err != nil {
		h.metrics.refused.WithLabelValues(tunnel.CodeOf(err).Name()).Inc()
		if more, ok := h.silent.Allow(s.Peer().Addr); ok {
			log.Info("agent did not say hello", "err", err, "others", more)
		}
		return nil, "", err
	}
	node, err := h.admit(ctx, s, greeting.Hello)
	if err != nil {
		proved, perr := h.config.Identify(s.Peer())
		if more, ok := h.turned.Allow(turnedAway{proved, tunnel.CodeOf(err)}); ok {
			log.Warn("agent turned away", "node", greeting.Node, "err", err, "others", more)
		}
		if perr == nil && (errors.Is(err, tunnel.Denied) || errors.Is(err, tunnel.Revoked)) {
			h.history.refuse(proved, s.Peer().Addr.String(), err)
		}
		h.refuse(greeting, err)
		return nil, "", err
	}
	return greeting, node, nil
}

// welcome makes a member of s and sends the welcome. On error s has been ended, and the
// error logged.
func (h *Hub) welcome(ctx context.Context, s tunnel.Session, greeting *tunnel.Greeting, node string) (*member, error) {
	m := &member{
		id: h.lastID.Add(1), node: node, hello: greeting.Hello,
		session: s, transport: cmp.Or(s.Peer().Transport, "memory"), addr: s.Peer().Addr, since: time.Now(),
		turned: make(chan struct{}, 1),
	}
	m.control = greeting.Control(tunnel.Welcome{Session: m.id, Meta: tunnel.Meta{"version": h.config.Version, serverKey: h.id}})
	h.history.watch(m)
	// Entered before the session that it replaces is left: the node's sums last
	// as long as the ledger has one of its sessions.
	h.ledger.open(m)
	place := h.registry.attach(m)
	if m.waits = place.waits; m.waits {
		m.seated = make(chan struct{})
	}
	h.history.attach(m, m.since, h.registry.holder)
	if err := h.applyVerdict(m, place); err != nil {
		h.refuse(greeting, err)
		h.ledger.close(m)
		return nil, err
	}
	// Checked again now that End finds the session: End may have been called before it was
	// registered.
	if err := h.checkPeer(ctx, node, s.Peer()); err != nil {
		h.detach(m)
		h.refuse(greeting, err)
		h.history.end(m, err)
		h.ledger.close(m)
		return nil, err
	}
	wctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	if err := m.control.Welcome(wctx); err != nil {
		h.tell(h.log, slog.LevelInfo, node, "agent left before it was welcome", "node", node, "addr", m.addr.String(), "err", err)
		h.detach(m)
		h.history.end(m, err)
		h.ledger.close(m)
		return nil, err
	}
	return m, nil
}

// End ends, for the reason why, the sessions of a node for which stale is true, and returns
// how many. It does not wait until they have ended. Config.Admit must refuse new sessions
// already.
func (h *Hub) End(node string, stale func(tunnel.Peer) bool, why error) int {
	n := 0
	for _, m := range h.registry.membersOf(node) {
		if stale(m.session.Peer()) {
			m.expel(why)
			n++
		}
	}
	return n
}

// admit returns the node of a session, or why it is refused.
func (h *Hub) admit(ctx context.Context, s tunnel.Session, hello tunnel.Hello) (string, error) {
	node, err := h.config.Identify(s.Peer())
	if err != nil {
		return "", fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	if hello.Node != node {
		return "", fmt.Errorf("%w: the certificate is for node %q, the agent calls itself %q", tunnel.Denied, node, hello.Node)
	}
	if h.isLeaving() {
		return "", fmt.Errorf("%w: %s", tunnel.Draining, textLeaving)
	}
	if err := h.checkPeer(ctx, node, s.Peer()); err != nil {
		return "", err
	}
	return node, nil
}

// applyVerdict carries out the registry's verdict: it ends or demotes the older sessions, unless
// the new one waits, or returns why the new one is refused.
func (h *Hub) applyVerdict(m *member, s seat) error {
	if s.waits {
		return nil
	}
	switch s.verdict {
	case reconnect:
		reason := "reconnect"
		if s.demoted != nil {
			reason = "moved"
			h.tell(h.log, slog.LevelInfo, m.node, "the node moves to another session", "node", m.node, "from", s.demoted.id, "to", m.id)
		}
		h.metrics.replaced.WithLabelValues(reason).Inc()
		dismiss(s.dismissed, fmt.Errorf("%w: the agent reconnected from %s", tunnel.Replaced, m.addr))
	case takeover:
		h.metrics.replaced.WithLabelValues("takeover").Inc()
		h.tell(h.log, slog.LevelInfo, m.node, "another instance of the node takes over", "node", m.node, "new", m.addr.String(), "old", s.there.where())
		dismiss(s.dismissed, takenOver(fmt.Sprint("from ", m.addr), s.there))
	case stale:
		// It is no other agent, and not to think that another one is the node.
		return &refusal{tunnel.Busy, soonest, "a later session of this agent is connected already"}
	case fenced:
		return h.refuseFenced(m, s.there)
	case barred:
		return h.refuseBarred(m, &s.gone)
	}
	return nil
}

func dismiss(members []*member, why error) {
	for _, m := range members {
		m.dismiss(why)
	}
}

// refuse counts the refusal, sends it to the agent and closes the session.
func (h *Hub) refuse(g *tunnel.Greeting, err error) {
	h.metrics.refused.WithLabelValues(tunnel.CodeOf(err).Name()).Inc()
	if rerr := g.Refuse(tunnel.GoodbyeOf(err)); rerr != nil {
		h.log.Debug("refused session did not close cleanly", "err", rerr)
	}
}
