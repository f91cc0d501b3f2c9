// Callers: on whose behalf a dial is made.

package auth

import "context"

// A Caller is the client on whose behalf a dial is made, as far as it is known.
type Caller struct {
	Name string
	// Own is whether it is the server itself.
	Own bool
}

type callerKey struct{}

// WithCaller returns a context whose dials are made on behalf of c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf is the caller that ctx carries, or the zero Caller.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}
