//go:build !linux

// Path where the kernel sends no notifications: polling.

package agent

import "context"

// systemRouting polls.
func systemRouting() routing {
	return routing{path: sourceOf, watch: func(ctx context.Context, changed func()) { poll(ctx, pathPoll, changed) }}
}
