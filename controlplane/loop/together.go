package loop

// Together runs functions side by side and contains their panics.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
)

// A PanicError is a panic that Protect caught.
type PanicError struct {
	Value any    // what was passed to panic
	Stack []byte // the stack of the goroutine that panicked
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value if an error was thrown.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Protect calls f and returns its error, or a *PanicError if f panicked.
//
// Controllers share a process, and one that trips over an odd object must not
// take the API server and the tunnels with it. This is the only place that
// recovers; the state of what panicked is thrown away, not repaired.
func Protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil { //nolint:forbidigo // the one place that contains a controller's panic
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

// Broken tells whether err is a panic. One is counted and logged, with its stack and
// what it cost.
func Broken(log *slog.Logger, cost string, err error) bool {
	broken := new(PanicError)
	if !errors.As(err, &broken) {
		return false
	}
	panics.Inc()
	log.Error("a controller panicked; it goes on with other objects", "object", cost, "error", err, "stack", string(broken.Stack))
	return true
}

// Contain calls f and tells whether it returned. If it panicked, that has been counted
// and logged, with what it cost.
func Contain(log *slog.Logger, cost func() string, f func()) bool {
	err := Protect(func() error {
		f()
		return nil
	})
	return err == nil || !Broken(log, cost(), err)
}

// Together runs every f with a context that ends when ctx does or when one of
// them fails, and returns once all have returned. The result is the first
// error; it is nil if they all ended because ctx did.
func Together(ctx context.Context, fs ...func(ctx context.Context) error) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, f := range fs {
		g.Go(func() error { return Protect(func() error { return f(gctx) }) })
	}
	return g.Wait()
}
