package apiserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A brokenWatcher answers and then fails, after so long.
type brokenWatcher struct {
	clientv3.Watcher
	after time.Duration
	last  clientv3.WatchResponse
}

func (w brokenWatcher) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	c := make(chan clientv3.WatchResponse)
	go func() {
		defer close(c)
		time.Sleep(w.after) // the bubble's clock
		for _, r := range []clientv3.WatchResponse{{Created: true}, w.last} {
			select {
			case c <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return c
}

// TestWatchesThatFail: a watch that fails does so after a second at the earliest, unless
// that is for a compaction or nobody waits for it any more; nothing else is held up.
func TestWatchesThatFail(t *testing.T) {
	failed := clientv3.WatchResponse{Canceled: true}
	for name, tc := range map[string]struct {
		watcher brokenWatcher
		cancel  time.Duration
		first   time.Duration
		last    time.Duration
	}{
		"at once":      {watcher: brokenWatcher{last: failed}, last: watchLeast},
		"later":        {watcher: brokenWatcher{after: time.Minute, last: failed}, first: time.Minute, last: time.Minute},
		"compacted":    {watcher: brokenWatcher{last: clientv3.WatchResponse{Canceled: true, CompactRevision: 7}}},
		"an event":     {watcher: brokenWatcher{last: clientv3.WatchResponse{Events: []*clientv3.Event{{}}}}},
		"nobody cares": {watcher: brokenWatcher{last: failed}, cancel: time.Millisecond, last: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.cancel > 0 {
					time.AfterFunc(tc.cancel, cancel)
				}
				began := time.Now()
				c := steadyWatcher{tc.watcher}.Watch(ctx, "k")
				if r, ok := <-c; !ok || !r.Created || time.Since(began) != tc.first {
					t.Errorf("first %+v after %v, want it after %v", r, time.Since(began), tc.first)
				}
				r, ok := <-c
				if ok != (r.Err() != nil || len(r.Events) > 0) || time.Since(began) != tc.last {
					t.Errorf("then %+v, %t after %v, want it after %v", r, ok, time.Since(began), tc.last)
				}
				if _, ok := <-c; ok {
					t.Error("it does not end")
				}
			})
		})
	}
}
