// Own streams: the watch of each kind's cache has an etcd stream to itself.

package apiserver

import (
	"context"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// ownStream is the store below the watch cache of one kind. All kinds use one etcd client, which
// puts watches with the same metadata on one stream. etcd tells no progress of a stream while one
// of its watches begins at a revision that is not written yet, as that of a new cache does: a
// reader of any other kind that wants the present state would wait for the next write, or 3 s.
type ownStream struct {
	storage.Interface
	kind string
}

func (s ownStream) context(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "resource", s.kind)
}

// Watch implements storage.Interface.
func (s ownStream) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.Interface.Watch(s.context(ctx), key, opts)
}

// RequestWatchProgress implements storage.Interface.
func (s ownStream) RequestWatchProgress(ctx context.Context) error {
	return s.Interface.RequestWatchProgress(s.context(ctx))
}
