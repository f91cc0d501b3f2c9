// Claims: which number is whose, in the store, so that servers that share it give no
// number out twice.

package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// claimsOf is where claims lie, by range and number.
	claimsOf = keyPrefix + "/hawser/ranges/"
	// claimTries is how many numbers that turn out to be another server's are passed over
	// in one search.
	claimTries = 64
	// claimGrace is how long a claim may be there before its service is. It is much longer
	// than a request.
	claimGrace = 10 * time.Minute
	// claimTimeout bounds what nobody waits for.
	claimTimeout = 5 * time.Second
)

// A claim is what lies in the store for a number.
type claim struct {
	Owner types.UID `json:"owner"` // the service
	Since time.Time `json:"since"`
}

// A numbers gives out the numbers of one range. A claim in the store is what makes a
// number somebody's. The pool is a hint at what is free, which may lag behind other
// servers. It is not safe for use by several goroutines at once.
type numbers[T comparable] struct {
	client *clientv3.Client
	prefix string // of the claims' keys
	pool   *pool[T]
	parse  func(text string) (T, error)
}

func newNumbers[T comparable](client *clientv3.Client, name string, p *pool[T], parse func(string) (T, error)) *numbers[T] {
	return &numbers[T]{client: client, prefix: claimsOf + name + "/", pool: p, parse: parse}
}

func (n *numbers[T]) key(v T) string { return n.prefix + fmt.Sprint(v) }

// any takes some free number for the owner. It is false if there is none.
func (n *numbers[T]) any(ctx context.Context, owner types.UID, dry bool) (T, bool, error) {
	var none T
	for range claimTries {
		v, ok := n.pool.any()
		if !ok {
			return none, false, nil
		}
		ok, err := n.claim(ctx, v, owner, dry)
		if err != nil {
			n.pool.release(v)
			return none, false, err
		}
		if ok {
			return v, true, nil
		} // another server has it, and the pool knows now
	}
	return none, false, nil
}

// take takes v for the owner. It is false if v is somebody else's.
func (n *numbers[T]) take(ctx context.Context, v T, owner types.UID, dry bool) (bool, error) {
	ok, err := n.claim(ctx, v, owner, dry)
	if ok {
		n.pool.take(v)
	}
	return ok, err
}

// claim claims v in the store, or says whether that would do.
func (n *numbers[T]) claim(ctx context.Context, v T, owner types.UID, dry bool) (bool, error) {
	text, err := json.Marshal(claim{owner, time.Now().UTC()})
	if err != nil {
		return false, err
	}
	key := n.key(v)
	var then []clientv3.Op
	if !dry {
		then = append(then, clientv3.OpPut(key, string(text)))
	}
	// As steadyClient does: a claim that has been made is the owner's.
	resp, _, err := steadily(ctx, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		return n.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(then...).Else(clientv3.OpGet(key)).Commit()
	})
	if err != nil {
		return false, storeStatus(fmt.Errorf("claim %s: %w", key, err))
	}
	if resp.Succeeded {
		return true, nil
	}
	var is claim
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		if err := json.Unmarshal(kv.Value, &is); err != nil {
			return false, fmt.Errorf("claim %s is broken: %w", key, err)
		}
	}
	return is.Owner == owner, nil
}

// release gives v back if it is the owner's. A claim that stays because the store does
// not answer is taken away by repair.
func (n *numbers[T]) release(v T, owner types.UID) {
	n.pool.release(v)
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	key := n.key(v)
	got, err := n.client.Get(ctx, key)
	if err != nil || len(got.Kvs) == 0 {
		return
	}
	var is claim
	if json.Unmarshal(got.Kvs[0].Value, &is) == nil && is.Owner == owner {
		n.remove(ctx, key, got.Kvs[0].ModRevision)
	}
}

// claimFault is what a request is told about a claim that failed.
func claimFault(err error) error {
	if apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) {
		return err
	}
	return apierrors.NewInternalError(err)
}

func (n *numbers[T]) remove(ctx context.Context, key string, revision int64) {
	// See release for an error.
	_, _ = n.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpDelete(key)).Commit()
}

// repair makes claims for what services have, takes away those that are old and whose
// services do not have them, and has the pool know what is left. held is who has which
// number by what the services say; it must have been read after the claims.
func (n *numbers[T]) repair(ctx context.Context, claims *clientv3.GetResponse, held map[T]types.UID) error {
	fresh := newPool(n.pool.at)
	for _, kv := range claims.Kvs {
		v, err := n.parse(strings.TrimPrefix(string(kv.Key), n.prefix))
		var is claim
		if err != nil || json.Unmarshal(kv.Value, &is) != nil {
			n.remove(ctx, string(kv.Key), kv.ModRevision) // nobody can have made it
			continue
		}
		owner, ok := held[v]
		switch {
		case ok && owner == is.Owner:
			delete(held, v)
		case ok || time.Since(is.Since) > claimGrace:
			n.remove(ctx, string(kv.Key), kv.ModRevision)
			continue
		}
		fresh.take(v)
	}
	for v, owner := range held {
		if _, err := n.claim(ctx, v, owner, false); err != nil {
			return err
		}
		fresh.take(v)
	}
	n.pool = fresh
	return nil
}

// claims are all of the range.
func (n *numbers[T]) claims(ctx context.Context) (*clientv3.GetResponse, error) {
	got, err := n.client.Get(ctx, n.prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read the claims below %s: %w", n.prefix, err)
	}
	return got, nil
}
