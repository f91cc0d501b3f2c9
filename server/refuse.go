// Refusing: the refusal of sessions, new and resumed, and the reasons that agents get.

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// sendAway tells an agent that was not admitted when to retry. If too many wait for their
// hello, it ends the session at once, with the reason if the transport can carry one.
func (h *Hub) sendAway(ctx context.Context, s tunnel.Session, why error) {
	h.metrics.refused.WithLabelValues(tunnel.CodeOf(why).Name()).Inc()
	log := h.log.With("addr", s.Peer().Addr.String())
	log.Debug("agent refused", "err", why)
	done, ok := h.admission.turn()
	if !ok {
		_ = s.Dismiss(tunnel.GoodbyeOf(why)) // never fails
		return
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, sendAwayTimeout)
	defer cancel()
	greeting, err := tunnel.Await(ctx, s)
	if err == nil {
		err = greeting.Refuse(tunnel.GoodbyeOf(why))
	}
	if err != nil {
		log.Debug("agent did not get the refusal", "err", err)
	}
}

// MayResume reports whether the session of this peer may continue on another connection. It
// is for LinkOptions.Resume of the hub's listeners, and calls Config.Admit, within one
// second.
func (h *Hub) MayResume(p tunnel.Peer) error {
	node, err := h.config.Identify(p)
	if err != nil {
		return fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return h.checkPeer(ctx, node, p)
}

// checkPeer calls Config.Admit. A refusal wraps Denied, or the code that Admit returned.
func (h *Hub) checkPeer(ctx context.Context, node string, p tunnel.Peer) error {
	if h.config.Admit == nil {
		return nil
	}
	err := h.config.Admit(ctx, node, p)
	var code tunnel.Code
	if err == nil || errors.As(err, &code) {
		return err
	}
	return fmt.Errorf("%w: %w", tunnel.Denied, err)
}

// Refuse is a refusal that Config.Admit may return. The agent gets code, text and the delay
// of its next attempt.
func Refuse(code tunnel.Code, after time.Duration, text string) error {
	return &refusal{code, after, text}
}
