// Race: concurrent attempts, each with a head start over the next (RFC 8305, "happy
// eyeballs").

package agent

import (
	"context"
	"strings"
	"sync"
	"time"
)

// failures are the errors of all attempts, in the order in which they failed.
type failures []error

// Error is one line.
func (f failures) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap gives them all.
func (f failures) Unwrap() []error { return f }

// join returns failures as one error; a single one is returned as it is.
func (f failures) join() error {
	if len(f) == 1 {
		return f[0]
	}
	return f
}

// race makes up to n attempts and returns the result of the first to succeed. Each is
// started when the one before has failed, or headStart later. The contexts of the others
// are canceled, and their late results are passed to drop. pending is done when they have
// returned. The error is that of a single attempt, or failures.
func race[T any](ctx context.Context, pending *sync.WaitGroup, n int, headStart time.Duration,
	attempt func(ctx context.Context, i int) (T, error), drop func(T),
) (T, error) {
	type outcome struct {
		result T
		err    error
	}
	var none T
	ctx, cancel := context.WithCancel(ctx)
	outcomes := make(chan outcome, n)
	started, ended := 0, 0
	begin := func() {
		i := started
		started++
		pending.Go(func() {
			result, err := attempt(ctx, i)
			outcomes <- outcome{result, err}
		})
	}
	defer func() {
		cancel()
		if left := started - ended; left > 0 {
			pending.Go(func() {
				for range left {
					if o := <-outcomes; o.err == nil {
						drop(o.result)
					}
				}
			})
		}
	}()
	start := time.NewTimer(headStart)
	defer start.Stop()
	begin()
	var failed failures
	for ended < n {
		select {
		case o := <-outcomes:
			ended++
			if o.err == nil {
				return o.result, nil
			}
			failed = append(failed, o.err)
		case <-start.C:
		case <-ctx.Done():
			if len(failed) == 0 {
				return none, context.Cause(ctx)
			}
			return none, append(failed, context.Cause(ctx)).join()
		}
		if started < n && ctx.Err() == nil {
			begin()
			start.Reset(headStart)
		}
	}
	return none, failed.join()
}
