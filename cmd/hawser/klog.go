// klog, which Kubernetes' libraries log with, led into our own log.

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

// bridgeKlog makes the libraries log through log, from warnings up. What they
// narrate below that is theirs to know; with --v 4 it is let through. Unless it is nil, told is
// whether a trouble has said what is the matter with the API server.
func bridgeKlog(log *slog.Logger, told *atomic.Bool) {
	klog.SetSlogLogger(slog.New(newQuiet(log.Handler(), log.Enabled(context.Background(), slog.LevelDebug), told)))
}

func newQuiet(h slog.Handler, verbose bool, told *atomic.Bool) quiet {
	return quiet{
		Handler: h, verbose: verbose, told: told,
		caused: &strangers.LogLimiter{}, events: &strangers.LogLimiter{}, watches: &lasting{of: make(map[string]*spell)}, keys: &standing{},
	}
}

// quiet drops records below Warn unless verbose.
type quiet struct {
	slog.Handler
	verbose bool
	told    *atomic.Bool          // what is the matter with the API server; nil if nobody tells that
	caused  *strangers.LogLimiter // by text
	events  *strangers.LogLimiter // that are not written, by text and reason
	watches *lasting              // that fail, and events, while nobody has told why
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

// unwritten is how libraries begin what they say of events that they could not write.
var unwritten = []string{"Unable to write event", "Server rejected event"}

// fault is the error of a record, nil if it has none.
func fault(r *slog.Record) (found error) {
	r.Attrs(func(a slog.Attr) bool {
		found, _ = a.Value.Any().(error)
		return found == nil
	})
	return found
}

// left says whether what a request has failed of is left to others to say, if there is anything to
// say. A trouble needs some seconds, and may find nothing: then that goes on is said once a minute.
func (q quiet) left(message string, err error) bool {
	if errors.Is(err, context.Canceled) {
		return true
	}
	if q.told == nil || !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) && !errors.As(err, new(*url.Error)) {
		return false
	}
	return !q.watches.tell(message) || q.told.Load()
}

// lasting tells, once a minute, of faults that have gone on for a minute without a pause as long.
type lasting struct {
	mu sync.Mutex
	of map[string]*spell // by text
}

type spell struct{ told, last time.Time }

func (l *lasting) tell(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, s := time.Now(), l.of[text]
	if s == nil || now.Sub(s.last) >= time.Minute {
		s = &spell{told: now}
		l.of[text] = s
	}
	s.last = now
	if now.Sub(s.told) < time.Minute {
		return false
	}
	s.told = now
	return true
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	ofEvent := slices.ContainsFunc(unwritten, func(text string) bool { return strings.HasPrefix(r.Message, text) })
	if !q.verbose && (slices.Contains(chatter, r.Message) || (ofEvent || r.Message == endedWatch) && q.left(r.Message, fault(&r))) {
		return nil
	}
	if ofEvent {
		return q.event(ctx, &r)
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

// event handles a record about an event that was not written: what it was about is in the
// log, once a minute for all events of a reason, and not all that it has.
func (q quiet) event(ctx context.Context, r *slog.Record) error {
	short, reason := slog.NewRecord(r.Time, r.Level, r.Message, r.PC), ""
	r.Attrs(func(a slog.Attr) bool {
		e, ok := a.Value.Any().(*corev1.Event)
		if !ok {
			short.AddAttrs(a)
			return true
		}
		reason = e.Reason
		o := &e.InvolvedObject
		short.AddAttrs(slog.String("reason", reason), slog.String("object", strings.TrimSpace(o.Kind+" "+strings.TrimPrefix(o.Namespace+"/"+o.Name, "/"))))
		return true
	})
	others, now := q.events.Allow(r.Message + " " + reason)
	if !now {
		return nil
	}
	short.AddAttrs(slog.Int("others", others))
	return q.Handler.Handle(ctx, short)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	q.Handler = q.Handler.WithAttrs(attrs)
	return q
}

func (q quiet) WithGroup(name string) slog.Handler {
	q.Handler = q.Handler.WithGroup(name)
	return q
}
