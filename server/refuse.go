// Refusing: who gets no session, or may not go on with one, and what they are told.

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// sendAway tells an agent for which there is no place when to come back. If even
// waiting for its hello would be too much, the session ends at once, without a word
// unless its end carries one.
func (h *Hub) sendAway(ctx context.Context, s tunnel.Session, why error) {
	h.metrics.refused.WithLabelValues(label(why)).Inc()
	log := h.log.With("addr", s.Peer().Addr.String())
	log.Debug("agent sent away", "err", why)
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
		log.Debug("agent could not be told", "err", err)
	}
}

// MayResume says whether the session of this peer may go on on another
// connection: LinkOptions.Resume of the hub's listeners should be it. It asks
// Config.Admit, with a second's time.
func (h *Hub) MayResume(p tunnel.Peer) error {
	node, err := h.config.Identify(p)
	if err != nil {
		return fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return h.mayBe(ctx, node, p)
}

// mayBe asks Config.Admit. Its refusal wraps Denied, or the code that Admit gave it.
func (h *Hub) mayBe(ctx context.Context, node string, p tunnel.Peer) error {
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

// Refuse is a refusal that Config.Admit may return: the agent is told code and text,
// and to come back after a time.
func Refuse(code tunnel.Code, after time.Duration, text string) error {
	return &refusal{code, after, text}
}
