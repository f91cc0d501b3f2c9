// Tests of requests to a store that has no quorum.

package apiserver

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A slowStore answers each request after so long that there is no leader, as a member does,
// or, if that is zero, never.
type slowStore struct {
	kubernetes.Interface
	after time.Duration
}

func (s *slowStore) answer(ctx context.Context) error {
	var late <-chan time.Time
	if s.after > 0 {
		late = time.After(s.after)
	}
	select {
	case <-late:
		return rpctypes.Error(rpctypes.ErrGRPCTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowStore) Get(ctx context.Context, _ string, _ kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	return kubernetes.GetResponse{}, s.answer(ctx)
}

func (s *slowStore) List(ctx context.Context, _ string, _ kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	return kubernetes.ListResponse{}, s.answer(ctx)
}

func (s *slowStore) OptimisticPut(ctx context.Context, _ string, _ []byte, _ int64, _ kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	return kubernetes.PutResponse{}, s.answer(ctx)
}

func (s *slowStore) OptimisticDelete(ctx context.Context, _ string, _ int64, _ kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	return kubernetes.DeleteResponse{}, s.answer(ctx)
}

// askers make each kind of request for an object, or for many.
var askers = map[string]func(context.Context, kubernetes.Interface) error{
	"get": func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.Get(ctx, "k", kubernetes.GetOptions{})
		return err
	},
	"list": func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.List(ctx, "k", kubernetes.ListOptions{})
		return err
	},
	"put": func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.OptimisticPut(ctx, "k", nil, 0, kubernetes.PutOptions{})
		return err
	},
	"delete": func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.OptimisticDelete(ctx, "k", 1, kubernetes.DeleteOptions{})
		return err
	},
}

// TestStoreWithoutQuorum: reads and writes of an object fail within storePatience, in one line that
// names the store, whether its members say why or nothing at all. Lists, which may take
// long, have the request's time.
func TestStoreWithoutQuorum(t *testing.T) {
	for name, after := range map[string]time.Duration{"members say nothing": 0, "members time out": 7 * time.Second, "members time out soon": 2 * time.Second} {
		for kind, ask := range askers {
			t.Run(kind+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), 34*time.Second) // a request's
					defer cancel()
					began := time.Now()
					err := ask(ctx, steadyClient{Interface: &slowStore{after: after}})
					if !apierrors.IsTimeout(err) && !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "the store (etcd) ") || strings.Contains(err.Error(), "\n") {
						t.Errorf("%v", err)
					}
					if took := time.Since(began); took > storePatience && kind != "list" {
						t.Errorf("it took %v to fail", took)
					}
				})
			})
		}
	}
}
