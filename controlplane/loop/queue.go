package loop

// Queue is the work queue of a controller and the workers that empty it.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
)

// Bounds of a Queue whose Config leaves them zero.
const (
	DefaultWorkers  = 2
	DefaultMinDelay = 20 * time.Millisecond
	DefaultMaxDelay = time.Minute
)

// A Reconcile makes the world match the object at key, which may be gone.
// again > 0 asks for another look after that time. An error asks for one with
// back-off; it is logged unless it is Quiet or the context has ended, and once a minute
// where many fail because the API server refuses them or cannot be asked.
type Reconcile[K comparable] func(ctx context.Context, key K) (again time.Duration, err error)

// Config configures a Queue. Name and Do are required.
type Config[K comparable] struct {
	Name    string
	Do      Reconcile[K]
	Workers int // how many keys are worked on at once; zero means DefaultWorkers
	// MinDelay and MaxDelay bound the back-off of a key whose Reconcile fails:
	// the first retry waits MinDelay, each further one twice as long. Zero
	// means DefaultMinDelay and DefaultMaxDelay.
	MinDelay, MaxDelay time.Duration
	Log                *slog.Logger // nil means discard
}

// A Queue holds each key at most once and hands it to one worker at a time. Its
// methods may be called from any goroutine; keys added after Run has returned
// are dropped. A controller makes its queue anew each time it runs.
type Queue[K comparable] struct {
	cfg     Config[K]
	refused refusals

	mu    sync.Mutex                              // guards the following
	early map[K]time.Duration                     // keys added before Run, and how long after its start to look
	q     workqueue.TypedRateLimitingInterface[K] // nil before Run, which alone reads it without mu
}

// Quiet marks an error as an expected reason to look again: the key is retried
// with back-off and nothing is logged above debug level.
func Quiet(err error) error { return &quietError{err} }

type quietError struct{ error }

func (e *quietError) Unwrap() error { return e.error }

// IsQuiet tells whether err has been made Quiet.
func IsQuiet(err error) bool {
	var quiet *quietError
	return errors.As(err, &quiet)
}

// StatusError returns the error of a Reconcile for err, the API server's answer to a write
// of an object's status. what names the object. It is nil if the object does not exist any
// more. A conflict is Quiet: the cache is behind, and its next change causes a retry.
func StatusError(what string, err error) error {
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return Quiet(err)
	}
	return fmt.Errorf("write the status of %s: %w", what, err)
}

// NewQueue returns a queue. It starts nothing; Run may be called once.
func NewQueue[K comparable](c Config[K]) *Queue[K] {
	Default(&c.Workers, DefaultWorkers)
	Default(&c.MinDelay, DefaultMinDelay)
	Default(&c.MaxDelay, DefaultMaxDelay)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Queue[K]{cfg: c, early: make(map[K]time.Duration)}
}

// Add asks for a look at key.
func (q *Queue[K]) Add(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.q == nil {
		q.early[key] = 0
		return
	}
	q.q.Add(key)
}

// AddAfter asks for a look at key after a time. One look answers all that ask for the same
// key until then: the earliest time counts. Before Run the time counts from its start.
func (q *Queue[K]) AddAfter(key K, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.q == nil {
		if had, ok := q.early[key]; !ok || d < had {
			q.early[key] = d
		}
		return
	}
	q.q.AddAfter(key, d)
}

// open begins to hand out keys.
func (q *Queue[K]) open() {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[K](q.cfg.MinDelay, q.cfg.MaxDelay)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.q = workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[K]{Name: q.cfg.Name})
	for key, d := range q.early {
		q.q.AddAfter(key, d) // zero adds at once
	}
	q.early = nil
}

// Run works on keys until ctx is done. A Reconcile that panics has failed, for its
// key alone.
func (q *Queue[K]) Run(ctx context.Context) error {
	q.open()
	defer q.q.ShutDown()
	fs := []func(context.Context) error{func(ctx context.Context) error {
		<-ctx.Done()
		q.q.ShutDown()
		return nil
	}}
	for range q.cfg.Workers {
		fs = append(fs, q.work)
	}
	return Together(ctx, fs...)
}

func (q *Queue[K]) work(ctx context.Context) error {
	for {
		key, shutdown := q.q.Get()
		if shutdown {
			return nil
		}
		q.one(ctx, key)
	}
}

// one works on one key.
func (q *Queue[K]) one(ctx context.Context, key K) {
	defer q.q.Done(key)
	if ctx.Err() != nil {
		return
	}
	var again time.Duration
	err := Protect(func() (err error) {
		again, err = q.cfg.Do(ctx, key)
		return err
	})
	if err != nil {
		q.report(ctx, key, err)
		q.q.AddRateLimited(key)
		return
	}
	q.q.Forget(key)
	if again > 0 {
		q.q.AddAfter(key, again)
	}
}

func (q *Queue[K]) report(ctx context.Context, key K, err error) {
	switch {
	case Broken(q.cfg.Log, fmt.Sprintf("%s: %v", q.cfg.Name, key), err):
	case ctx.Err() != nil:
	case IsQuiet(err):
		q.cfg.Log.Debug("not yet", "key", key, "reason", err)
	default:
		others, now := q.refused.tell(err)
		if !now {
			return
		}
		attrs := []any{"key", key, "error", err, "tries", q.q.NumRequeues(key) + 1}
		if others > 0 {
			attrs = append(attrs, "others", others)
		}
		q.cfg.Log.Warn("will retry", attrs...)
	}
}
