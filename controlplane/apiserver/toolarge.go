// Objects that are too large for the store.

package apiserver

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// sizedClient tells a writer whose object is too large for etcd that it is the
// writer's fault and how large the object is. etcd's own error names neither, and
// would reach the writer as 500, which clients try again.
type sizedClient struct{ kubernetes.Interface }

func (c sizedClient) OptimisticPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	resp, err := c.Interface.OptimisticPut(ctx, key, value, expectedRevision, opts)
	if err != nil && errors.Is(rpctypes.Error(err), rpctypes.ErrRequestTooLarge) {
		return resp, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the object takes %d bytes in the store, which is more than etcd accepts (--max-request-bytes, 1.5 MiB by default)", len(value)))
	}
	return resp, err
}
