package process

// An agent in a process of its own, so that it can be killed and can be another
// user.

import (
	"log/slog"
	"testing"
)

const agentEnv = "HAWSER_TEST_AGENT"

func agentMain() {}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
