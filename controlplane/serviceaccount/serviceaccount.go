// Package serviceaccount gives each namespace the service account that its pods have
// unless they name another: "default". Whoever deletes it gets another one. Secrets that ask
// for a token of an account get one.
package serviceaccount

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Name is that of the account.
const Name = "default"

// A Controller is Kubernetes' serviceaccount-controller.
type Controller struct {
	client                         kubernetes.Interface
	namespaces                     corelisters.NamespaceLister
	accounts                       corelisters.ServiceAccountLister
	namespaceEvents, accountEvents cache.SharedIndexInformer
	log                            *slog.Logger
}

// Config configures a Controller: there is nothing to set.
type Config struct{}

// New returns a controller that watches namespaces and service accounts through d.Informers. It
// starts nothing.
func New(d loop.Deps, _ Config) (*Controller, error) {
	namespaces, accounts := d.Informers.Core().V1().Namespaces(), d.Informers.Core().V1().ServiceAccounts()
	c := &Controller{
		client: d.Client, namespaces: namespaces.Lister(), accounts: accounts.Lister(),
		namespaceEvents: namespaces.Informer(), accountEvents: accounts.Informer(),
	}
	c.log = loop.Logger(d.Log, c.Name())
	return c, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "serviceaccount-controller" }

// Run makes accounts until ctx is done. The factory's informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{
		Name: c.Name(), Workers: 1, Log: c.log,
		Do: func(ctx context.Context, namespace string) (time.Duration, error) { return 0, c.sync(ctx, namespace) },
	})
	var watches loop.Watches
	watches.Add(loop.Watch(c.namespaceEvents, q.Add))
	watches.Add(loop.Watch(c.accountEvents, func(key string) {
		if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil && name == Name {
			q.Add(namespace)
		}
	}))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

// sync makes one namespace's account if it is missing.
func (c *Controller) sync(ctx context.Context, name string) error {
	ns, err := c.namespaces.Get(name)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == corev1.NamespaceTerminating {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err = c.accounts.ServiceAccounts(name).Get(Name); !apierrors.IsNotFound(err) {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: Name}}
	_, err = c.client.CoreV1().ServiceAccounts(name).Create(ctx, account, metav1.CreateOptions{})
	// The caches lag behind: the account may exist, the namespace may not.
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return fmt.Errorf("service account %s/%s: %w", name, Name, err)
}
