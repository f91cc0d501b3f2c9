// The log of failed attempts, which repeats no failure with each attempt.

package agent

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"
)

// A repeat is a failure that was logged, and how often it has occurred since.
type repeat struct {
	text  string
	at    time.Time
	times int
}

// report logs a failed attempt. While a server fails in the same way, it logs once a minute,
// with a count.
//
// The attempts of an agent that is refused because of another one are far apart. Each is
// logged, with the time of the next.
func (k *keeper) report(server string, err error, wait time.Duration) {
	if errors.Is(err, ErrReplaced) {
		k.agent.log.Error("refused: another agent is this node", "server", server, "next", at(wait), "err", err)
		return
	}
	now, text := time.Now(), stableText(err)
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
	if _, ok := errors.AsType[*Refusal](err); ok {
		k.agent.log.Error("cannot connect", args...)
		return
	}
	k.agent.log.Warn("cannot connect", args...)
}

// at is the time after a wait, to the second.
func at(wait time.Duration) string { return time.Now().Add(wait).Format(time.RFC3339) }

// stableText is the text of an error without the local port, which differs from one attempt to
// the next.
func stableText(err error) string {
	var (
		op    *net.OpError
		whole failures
	)
	if errors.As(err, &whole) {
		texts := make([]string, len(whole))
		for i, one := range whole {
			texts[i] = stableText(one)
		}
		return strings.Join(texts, "; ")
	}
	if errors.As(err, &op) && op.Err != nil {
		return op.Op + " " + op.Err.Error()
	}
	return err.Error()
}
