//go:build !linux

// Path where the kernel sends no notifications: polling.

package agent

import "context"

// systemTerrain polls.
func systemTerrain() terrain {
	return terrain{path: sourceOf, watch: func(ctx context.Context, changed func()) { poll(ctx, pathPoll, changed) }}
}
