// A log that a test reads.

package tunneltest

import (
	"log/slog"
	"strings"
	"sync"
)

// A Log keeps what is logged. The zero value is empty. Its methods may be called concurrently.
type Log struct {
	mu   sync.Mutex // guards the following
	text strings.Builder
}

// Write adds to the log. It never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is what was logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Logger logs to l, from level info on.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
