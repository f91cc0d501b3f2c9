// What the libraries of Kubernetes log.

package node

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// logr hands on errors without asking whether anybody wants records of their
// level.
func TestLibrariesAreOnlyHeardWhenAskedFor(t *testing.T) {
	for _, tt := range []struct {
		level slog.Level
		want  int // records
	}{{slog.LevelInfo, 0}, {slog.LevelDebug, 2}} {
		var b bytes.Buffer
		h := slog.NewTextHandler(&b, &slog.HandlerOptions{Level: tt.level})
		log := logr.FromSlogHandler(demoted{h}).WithName("library").WithValues("k", "v")
		log.Error(errors.New("cause"), "failed")
		log.Info("fine")
		if got := strings.Count(b.String(), "level=DEBUG"); got != tt.want || strings.Count(b.String(), "\n") != tt.want {
			t.Errorf("at %v: %q, want %d details", tt.level, b.String(), tt.want)
		}
	}
}
