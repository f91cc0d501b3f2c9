// Reaching: what a dial func says before it has a connection to give.

package carrier

import "context"

// reachedKey is the key of a context that has somebody told.
type reachedKey struct{}

// OnReached has f called by Reached of the context that it returns, each time, from
// any goroutine.
func OnReached(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, reachedKey{}, f)
}

// Reached tells whoever wants a connection to be dialed with ctx that something has
// answered: what still takes time, as a handshake does, is not for want of a path.
// Who waits for that tries no more paths beside it, or fewer.
func Reached(ctx context.Context) {
	if f, ok := ctx.Value(reachedKey{}).(func()); ok {
		f()
	}
}
