// The log lines that nodes cause: a bounded number about each node.

package server

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// maxVersion bounds what is logged of an agent's version, in bytes.
	maxVersion = 64
	// maxGoodbye bounds what is logged of a session's end, in bytes, if its agent gave the
	// reason.
	maxGoodbye = 256
)

// A nodeLine is a text that is logged about a node.
type nodeLine struct{ node, text string }

// tell logs text about a node to log, unless that was often logged lately. It then adds how
// many lines about all nodes were left out.
func (h *Hub) tell(log *slog.Logger, level slog.Level, node, text string, args ...any) {
	others, ok := h.lines.Allow(nodeLine{node, text})
	if !ok {
		return
	}
	if others > 0 {
		args = append(args, "others", others)
	}
	log.Log(context.Background(), level, text, args...)
}

// loggable is err, or the beginning of its text if it is long and the agent's.
func loggable(err error) any {
	if _, ok := errors.AsType[*tunnel.Goodbye](err); ok {
		return truncated(err.Error(), maxGoodbye)
	}
	return err
}

// truncated is s, or at most n bytes of its beginning.
func truncated(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
