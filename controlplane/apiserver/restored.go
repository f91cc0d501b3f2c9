// Restored stores: a watch from a version that the store does not have has to begin anew.

package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// A restorable store may have been replaced by an older copy of itself while the server was away.
// Its clients do not know that: they would go on to watch from a version that is not written yet,
// and be told nothing until it is, nor ever of what was undone.
type restorable struct {
	storage.Interface
	synced func() (version uint64, ok bool) // the version that its cache has reached; nil without a cache
}

// Watch implements storage.Interface. A version that the store has not reached is expired, which
// is what clients begin anew after. That of another server on the same store may be newer than
// the cache, but not than the store.
func (r restorable) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if from, err := r.Versioner().ParseResourceVersion(opts.ResourceVersion); err == nil && from > 0 && !r.reached(from) {
		now, err := r.GetCurrentResourceVersion(ctx)
		if err == nil && from > now {
			return nil, apierrors.NewResourceExpired(fmt.Sprintf("resource version %d is not written yet, the latest is %d, perhaps of a store that was restored: list again", from, now))
		}
	}
	return r.Interface.Watch(ctx, key, opts)
}

func (r restorable) reached(version uint64) bool {
	if r.synced == nil {
		return false
	}
	synced, ok := r.synced()
	return ok && version <= synced
}
