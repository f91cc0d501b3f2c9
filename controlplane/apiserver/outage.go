// Requests to a store that loses members.

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-project/hawser/controlplane/etcd"
)

const (
	// storeTries is how often a write is tried. When the leader of the store is killed, the
	// first try may have been asked of it, and the second of a member that has not noticed
	// and passes it on to the leader, which etcd gives 7 s.
	storeTries = 3
	// storePatience bounds all tries of a write together, and the read of an object, which
	// etcd's own client makes again and again: a store without a quorum answers neither, and
	// the request that waits would have 34 s by Kubernetes.
	storePatience = 15 * time.Second
)

// steadyClient asks again when the member that was asked has gone: another one may have
// the answer. etcd's own client does that for reads only, for it does not know whether a
// write was done. Here each write names the revision that it replaces, so that it is done
// once at most, and what a later try finds says what became of those before.
//
// What cannot be had then is told as what it is, in the API's words. etcd's error would
// reach the writer as 500.
type steadyClient struct{ kubernetes.Interface }

func (c steadyClient) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	resp, err := c.Interface.Get(ctx, key, opts)
	return resp, storeStatus(err)
}

func (c steadyClient) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	resp, err := c.Interface.List(ctx, prefix, opts)
	return resp, storeStatus(err)
}

func (c steadyClient) OptimisticPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	resp, again, err := steadily(ctx, func(ctx context.Context, again bool) (kubernetes.PutResponse, error) {
		opts.GetOnFailure = opts.GetOnFailure || again
		return c.Interface.OptimisticPut(ctx, key, value, expectedRevision, opts)
	})
	if again && err == nil && !resp.Succeeded && resp.KV != nil && bytes.Equal(resp.KV.Value, value) {
		// An earlier try did it: objects have UIDs, so that nobody else writes the same.
		resp.Succeeded, resp.Revision, resp.KV = true, resp.KV.ModRevision, nil
	}
	return resp, storeStatus(err)
}

func (c steadyClient) OptimisticDelete(ctx context.Context, key string, expectedRevision int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	resp, again, err := steadily(ctx, func(ctx context.Context, again bool) (kubernetes.DeleteResponse, error) {
		opts.GetOnFailure = opts.GetOnFailure || again
		return c.Interface.OptimisticDelete(ctx, key, expectedRevision, opts)
	})
	if again && err == nil && !resp.Succeeded && resp.KV == nil {
		resp.Succeeded = true // it is gone, by an earlier try or by somebody else's delete
	}
	return resp, storeStatus(err)
}

// steadily asks storeTries times at most, within storePatience, until a member answers.
// Again says that it was more than once.
func steadily[R any](ctx context.Context, ask func(ctx context.Context, again bool) (R, error)) (resp R, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	resp, err = ask(ctx, false)
	for try := 1; try < storeTries && etcd.Unavailable(err); try++ {
		again = true
		resp, err = ask(ctx, true)
	}
	return resp, again, err
}

// storeStatus is err as the API says it, if it says that the store did not answer.
func storeStatus(err error) error {
	switch {
	case etcd.Unavailable(err):
		return apierrors.NewServiceUnavailable("the store (etcd) does not answer, so that a write may or may not have been done: " + err.Error())
	case etcd.Closed(err):
		return apierrors.NewServiceUnavailable("this server stops, and the store (etcd) had not answered, so that a write may or may not have been done")
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("the store (etcd) did not answer in time, so that a write may or may not have been done", 0)
	}
	return err
}
