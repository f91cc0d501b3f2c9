// Watches of a store that has no leader.

package apiserver

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// watchLeast is how long a watch of the store lasts at least before it fails. While the
// store has no leader a member ends each watch at once, and the watch cache, which takes
// that for a passing fault, begins the next at once: that is thousands each second.
const watchLeast = time.Second

// steadyWatcher has watches that fail early fail later.
type steadyWatcher struct{ clientv3.Watcher }

func (w steadyWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	least := time.Now().Add(watchLeast)
	in, out := w.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() { // until in is closed, or ctx is done
		defer close(out)
		for r := range in {
			if r.Err() != nil && r.CompactRevision == 0 { // after a compaction the next one succeeds
				t := time.NewTimer(time.Until(least))
				select {
				case <-t.C:
				case <-ctx.Done():
					t.Stop()
				}
			}
			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
