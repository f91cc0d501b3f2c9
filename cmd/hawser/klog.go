// klog, which Kubernetes' libraries log with, led into our own log.

package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

// bridgeKlog makes the libraries log through log, from warnings up. What they
// narrate below that is theirs to know; with --v 4 it is let through.
func bridgeKlog(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(quiet{log.Handler(), log.Enabled(context.Background(), slog.LevelDebug), &strangers.LogLimiter{}, &standing{}}))
}

// quiet drops records below Warn unless verbose.
type quiet struct {
	slog.Handler
	verbose bool
	caused  *strangers.LogLimiter // by text
	keys    *standing
}

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return (q.verbose || level >= slog.LevelWarn) && q.Handler.Enabled(ctx, level)
}

// chatter is what libraries call an error and is none: a client that has gone.
var chatter = []string{"Error on socket receive", "Error proxying data from client to backend", "Error proxying data from backend to client", "Post-timeout activity"}

// unhandled is how libraries begin what they have nobody to tell. Clients can cause
// thousands of those a second, by taking back what they have asked for.
const unhandled = "Unhandled Error"

// caused are the messages of which there can be as many as strangers wish.
var caused = []string{unhandled, "Unable to authenticate the request"}

// brokenKeys is how the library says, whenever it looks, that the encryption
// configuration has been replaced by one that is of no use.
const brokenKeys = "error processing encryption config file"

// A standing fault is said once, however often it is found, and again when it is another
// one or has been gone for a while.
type standing struct {
	mu   sync.Mutex // guards the following
	text string
	last time.Time
}

// gone is how long a fault that is looked for every encryptionFollow is not found when it
// has gone.
const gone = 6 * encryptionFollow

func (s *standing) tell(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	fresh := text != s.text || now.Sub(s.last) >= gone
	s.text, s.last = text, now
	return fresh
}

// endedWatch is what libraries say of each watch that ends with the process.
const endedWatch = "Failed to watch"

// canceled says whether the error of a record is that of a context that was told to end.
func canceled(r *slog.Record) (is bool) {
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		is = ok && errors.Is(err, context.Canceled)
		return !is
	})
	return is
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if !q.verbose && (slices.Contains(chatter, r.Message) || r.Message == endedWatch && canceled(&r)) {
		return nil
	}
	if slices.Contains(caused, r.Message) {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool {
			text += a.String() + " "
			return true
		})
		if strings.Contains(text, brokenKeys) {
			if !q.keys.tell(text) {
				return nil
			}
			return q.Handler.Handle(ctx, r)
		}
		others, now := q.caused.Allow(text)
		if !now {
			return nil
		}
		r.AddAttrs(slog.Int("others", others))
	}
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quiet{q.Handler.WithAttrs(attrs), q.verbose, q.caused, q.keys}
}

func (q quiet) WithGroup(name string) slog.Handler {
	return quiet{q.Handler.WithGroup(name), q.verbose, q.caused, q.keys}
}
