// Callers: on whose behalf somebody dials.

package auth

import "context"

// A Caller is who wants a dial, as far as that is known.
type Caller struct {
	Name string
	// Own says that it is the server itself, which looks after its nodes.
	Own bool
}

type callerKey struct{}

// WithCaller says on whose behalf what is dialed with the context is dialed.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf is the caller that ctx carries, or the zero Caller.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}
