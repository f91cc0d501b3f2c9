package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A fickleStore has one key, and members that fail, before they have done what was asked
// or after.
type fickleStore struct {
	kubernetes.Interface
	value         string
	rev           int64 // of the value, 0 if there is none
	now           int64
	fails, silent int // how many requests fail undone; done
	err           error
	between       func() // what others do after a failure
}

func (s *fickleStore) fail(do func()) error {
	var err error
	switch {
	case s.fails > 0:
		s.fails--
		err = s.err
	case s.silent > 0:
		s.silent--
		do()
		err = s.err
	default:
		do()
		return nil
	}
	if s.between != nil {
		s.between()
	}
	return err
}

func (s *fickleStore) set(value string) { s.now++; s.value, s.rev = value, s.now }

func (s *fickleStore) kv(wanted bool) *mvccpb.KeyValue {
	if !wanted || s.rev == 0 {
		return nil
	}
	return &mvccpb.KeyValue{Value: []byte(s.value), ModRevision: s.rev}
}

func (s *fickleStore) OptimisticPut(_ context.Context, _ string, value []byte, expected int64, o kubernetes.PutOptions) (resp kubernetes.PutResponse, err error) {
	err = s.fail(func() {
		if resp.Succeeded = s.rev == expected; resp.Succeeded {
			s.set(string(value))
		} else {
			resp.KV = s.kv(o.GetOnFailure)
		}
		resp.Revision = s.now
	})
	return resp, err
}

func (s *fickleStore) OptimisticDelete(_ context.Context, _ string, expected int64, o kubernetes.DeleteOptions) (resp kubernetes.DeleteResponse, err error) {
	err = s.fail(func() {
		if resp.Succeeded = s.rev == expected; resp.Succeeded {
			s.now++
			s.rev = 0
		} else {
			resp.KV = s.kv(o.GetOnFailure)
		}
		resp.Revision = s.now
	})
	return resp, err
}

func TestWritesThatMembersFail(t *testing.T) {
	gone, timeout := status.Error(codes.Unavailable, "error reading from server: EOF"), rpctypes.Error(rpctypes.ErrGRPCTimeoutDueToLeaderFail)
	for name, c := range map[string]struct {
		store     fickleStore
		expected  int64
		del       bool
		succeeded bool
		rev       int64 // of the answer
		refused   func(error) bool
	}{
		"create, undone":                      {store: fickleStore{fails: 1, err: gone}, succeeded: true, rev: 1},
		"create, done":                        {store: fickleStore{silent: 1, err: gone}, succeeded: true, rev: 1},
		"create, done by another":             {store: fickleStore{fails: 1, err: gone, value: "theirs", rev: 1, now: 1}, rev: 1},
		"update, undone":                      {store: fickleStore{fails: 1, err: timeout, value: "old", rev: 1, now: 1}, expected: 1, succeeded: true, rev: 2},
		"update, done":                        {store: fickleStore{silent: 1, err: timeout, value: "old", rev: 1, now: 1}, expected: 1, succeeded: true, rev: 2},
		"delete, undone":                      {store: fickleStore{fails: 1, err: gone, value: "old", rev: 1, now: 1}, expected: 1, del: true, succeeded: true, rev: 2},
		"delete, done":                        {store: fickleStore{silent: 1, err: gone, value: "old", rev: 1, now: 1}, expected: 1, del: true, succeeded: true, rev: 2},
		"delete of what was changed":          {store: fickleStore{fails: 1, err: gone, value: "new", rev: 2, now: 2}, expected: 1, del: true, rev: 2},
		"create, undone twice":                {store: fickleStore{fails: 2, err: gone}, succeeded: true, rev: 1},
		"create, never":                       {store: fickleStore{fails: storeTries, err: gone}, refused: apierrors.IsServiceUnavailable},
		"delete, never":                       {store: fickleStore{fails: storeTries, err: timeout, value: "old", rev: 1, now: 1}, expected: 1, del: true, refused: apierrors.IsServiceUnavailable},
		"create, in a request that has ended": {store: fickleStore{fails: 1, err: context.DeadlineExceeded}, refused: apierrors.IsTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			var succeeded bool
			var rev int64
			var err error
			if client := (steadyClient{Interface: &c.store}); c.del {
				var resp kubernetes.DeleteResponse
				resp, err = client.OptimisticDelete(t.Context(), "k", c.expected, kubernetes.DeleteOptions{GetOnFailure: true})
				succeeded, rev = resp.Succeeded, resp.Revision
			} else {
				var resp kubernetes.PutResponse
				resp, err = client.OptimisticPut(t.Context(), "k", []byte("mine"), c.expected, kubernetes.PutOptions{})
				succeeded, rev = resp.Succeeded, resp.Revision
			}
			switch {
			case c.refused != nil:
				if !c.refused(err) || !strings.Contains(err.Error(), "store") {
					t.Errorf("got %v", err)
				}
			case err != nil || succeeded != c.succeeded || rev != c.rev:
				t.Errorf("succeeded %t at %d, %v; want %t at %d", succeeded, rev, err, c.succeeded, c.rev)
			}
		})
	}
	// Another has changed the object between the tries: that is a conflict.
	s := fickleStore{silent: 1, err: gone}
	s.between = func() { s.set("theirs") }
	if resp, err := (steadyClient{Interface: &s}).OptimisticPut(t.Context(), "k", []byte("mine"), 0, kubernetes.PutOptions{}); err != nil || resp.Succeeded || string(resp.KV.Value) != "theirs" {
		t.Errorf("after another's write: %+v, %v", resp, err)
	}
	if err := storeStatus(fmt.Errorf("claim: %w", gone)); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("wrapped: %v", err)
	}
}
