// Saying why there is no session, once and not with each attempt.

package agent

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"
)

// A repeat is a failure that was logged, and how often it has come back since.
type repeat struct {
	text  string
	at    time.Time
	times int
}

// report writes one line for a failed attempt. While a server fails in the same
// way again and again it does so once a minute, with a count.
//
// An agent that is turned away because of another one, whose attempts are far apart,
// says each time when the next will be: somebody is waiting for that.
func (k *keeper) report(server string, err error, wait time.Duration) {
	if errors.Is(err, ErrReplaced) {
		k.agent.log.Error("turned away: another agent is this node", "server", server, "next", at(wait), "err", err)
		return
	}
	now, text := time.Now(), stable(err)
	last := k.logged[server]
	if last.text == text && now.Sub(last.at) < repeatEvery {
		last.times++
		k.logged[server] = last
		k.agent.log.Debug("cannot connect", "server", server, "retry", wait, "err", err)
		return
	}
	args := []any{slog.String("server", server), slog.Duration("retry", wait), slog.Any("err", err)}
	if last.text == text {
		args = append(args, slog.Int("repeated", last.times))
	}
	k.logged[server] = repeat{text: text, at: now}
	var r *Refusal
	if errors.As(err, &r) {
		k.agent.log.Error("cannot connect", args...)
		return
	}
	k.agent.log.Warn("cannot connect", args...)
}

// at is the time after a wait, to the second.
func at(wait time.Duration) string { return time.Now().Add(wait).Format(time.RFC3339) }

// stable is what of an error stays the same from one attempt to the next: a
// network error also names the local port.
func stable(err error) string {
	var (
		op    *net.OpError
		whole failures
	)
	if errors.As(err, &whole) {
		texts := make([]string, len(whole))
		for i, one := range whole {
			texts[i] = stable(one)
		}
		return strings.Join(texts, "; ")
	}
	if errors.As(err, &op) && op.Err != nil {
		return op.Op + " " + op.Err.Error()
	}
	return err.Error()
}
