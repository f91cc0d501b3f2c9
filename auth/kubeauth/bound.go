package kubeauth

// The objects that tokens of service accounts are bound to.

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
)

// Bound returns the object that a token of account is bound to, from a cache if it has the
// object with that uid. An object that is missing there may be new: it is read from the
// API server, with a rate limit for each account. Secrets are always read, since no cache
// has them. One that was not found is remembered: its uid does not come back, and ended tokens
// of an account must not cost its good ones their reads.
func (o *Objects) Bound(ctx context.Context, account string, r accounttoken.Reference) (metav1.Object, error) {
	s := o.src.Load()
	if s == nil {
		return nil, errNotReady
	}
	if found := s.cached(r); found != nil {
		return found, nil
	}
	if _, gone := o.gone.Get(r); gone {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: r.Kind}, r.Name)
	}
	if !o.live.allow(account, 1) {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("tokens of %s are bound to objects that have to be looked up, at most %d a second", account, livePerSecond), 1)
	}
	found, err := live(ctx, s.client, r)
	if apierrors.IsNotFound(err) || err == nil && found.GetUID() != r.UID {
		o.gone.Add(r, nil, goneTime)
	}
	return found, err
}

// cached returns the object r if a cache has it with its uid, and else nil.
func (s *source) cached(r accounttoken.Reference) metav1.Object {
	store, ok := map[string]cache.Store{"ServiceAccount": s.accounts, "Pod": s.pods, "Node": s.nodes}[r.Kind]
	if !ok {
		return nil
	}
	obj, ok, err := store.GetByKey(cache.NewObjectName(r.Namespace, r.Name).String())
	if err != nil || !ok {
		return nil
	}
	if found, is := obj.(metav1.Object); is && found.GetUID() == r.UID {
		return found
	}
	return nil
}

// live reads the present object r.
func live(ctx context.Context, client kubernetes.Interface, r accounttoken.Reference) (metav1.Object, error) {
	core, o := client.CoreV1(), metav1.GetOptions{}
	switch r.Kind {
	case "ServiceAccount":
		return found(core.ServiceAccounts(r.Namespace).Get(ctx, r.Name, o))
	case "Pod":
		return found(core.Pods(r.Namespace).Get(ctx, r.Name, o))
	case "Secret":
		return found(core.Secrets(r.Namespace).Get(ctx, r.Name, o))
	case "Node":
		return found(core.Nodes().Get(ctx, r.Name, o))
	}
	return nil, fmt.Errorf("tokens are not bound to a %s", r.Kind)
}

// found is obj, or an error and no object.
func found[P interface {
	*corev1.ServiceAccount | *corev1.Pod | *corev1.Secret | *corev1.Node
	metav1.Object
}](obj P, err error) (metav1.Object, error) {
	if err != nil {
		return nil, err
	}
	return obj, nil
}
