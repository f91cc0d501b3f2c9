// Package rootca tells every namespace by which authority its API server is
// known: in the ConfigMap kube-root-ca.crt, under the key ca.crt. Programs in pods
// have it mounted beside their token.
//
// Whoever changes or deletes the ConfigMap gets it back. An authority that is replaced
// is published while the controller runs. Of all ConfigMaps only
// those of that name are watched.
package rootca

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// The ConfigMap, as Kubernetes has it.
const (
	Name = "kube-root-ca.crt"
	Key  = "ca.crt"
	// about is the annotation in which Kubernetes says what the ConfigMap is for.
	about = "kubernetes.io/description"
	what  = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."
)

// DefaultWorkers is how many namespaces are worked on at once if not told otherwise.
const DefaultWorkers = 4

// Config configures a Controller.
type Config struct {
	// CA returns the authorities' certificates, PEM, as they are now. Required.
	CA func() []byte
	// Changed has f called whenever they are others, until stop is called. Nil means
	// that they never are.
	Changed func(f func()) (stop func())
	Workers int // zero means DefaultWorkers
}

// A Controller is Kubernetes' root-ca-certificate-publisher-controller.
type Controller struct {
	cfg        Config
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	inf        cache.SharedIndexInformer
	log        *slog.Logger
}

// New returns a controller that watches namespaces through d.Informers, and ConfigMaps by
// itself. It starts nothing.
func New(d loop.Deps, c Config) (*Controller, error) {
	if c.CA == nil {
		return nil, errors.New("root CA publisher: no CA")
	}
	if c.Changed == nil {
		c.Changed = func(func()) func() { return func() {} }
	}
	loop.Default(&c.Workers, DefaultWorkers)
	ns := d.Informers.Core().V1().Namespaces()
	ctl := &Controller{cfg: c, client: d.Client, namespaces: ns.Lister(), inf: ns.Informer()}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "root-ca-certificate-publisher-controller" }

// Run publishes until ctx is done. The factory's informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	published := coreinformers.NewFilteredConfigMapInformer(c.client, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, Name).String()
	})
	q := loop.NewQueue(loop.Config[string]{
		Name: c.Name(), Workers: c.cfg.Workers, Log: c.log,
		Do: func(ctx context.Context, ns string) (time.Duration, error) {
			return 0, c.sync(ctx, corelisters.NewConfigMapLister(published.GetIndexer()), ns)
		},
	})
	var watches loop.Watches
	watches.Add(loop.Watch(c.inf, q.Add))
	watches.Add(loop.Watch(published, func(key string) {
		if ns, _, err := cache.SplitMetaNamespaceKey(key); err == nil {
			q.Add(ns)
		}
	}))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	defer c.cfg.Changed(func() { c.all(q.Add) })()
	return loop.Together(ctx,
		func(ctx context.Context) error { published.RunWithContext(ctx); return nil },
		func(ctx context.Context) error {
			if !cache.WaitForCacheSync(ctx.Done(), published.HasSynced) {
				return nil // asked to stop
			}
			return q.Run(ctx)
		},
	)
}

// all has every namespace looked at.
func (c *Controller) all(look func(ns string)) {
	list, err := c.namespaces.List(labels.Everything())
	if err != nil {
		c.log.Error("publish another root CA", "err", err)
	}
	for _, ns := range list {
		look(ns.Name)
	}
}

// sync makes one namespace's ConfigMap what it has to be.
func (c *Controller) sync(ctx context.Context, published corelisters.ConfigMapLister, name string) error {
	ns, err := c.namespaces.Get(name)
	if apierrors.IsNotFound(err) || err == nil && (ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating) {
		return nil
	}
	if err != nil {
		return err
	}
	data := map[string]string{Key: string(c.cfg.CA())}
	was, err := published.ConfigMaps(name).Get(Name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = c.client.CoreV1().ConfigMaps(name).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: Name, Annotations: map[string]string{about: what}}, Data: data,
		}, metav1.CreateOptions{})
		// The caches lag behind: the ConfigMap may exist, the namespace may not.
		if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
	case err != nil:
		return err
	case maps.Equal(was.Data, data) && len(was.BinaryData) == 0:
		return nil
	default:
		is := was.DeepCopy()
		is.Data, is.BinaryData = data, nil
		metav1.SetMetaDataAnnotation(&is.ObjectMeta, about, what)
		if _, err = c.client.CoreV1().ConfigMaps(name).Update(ctx, is, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
			return loop.Quiet(err) // somebody else was faster: look again
		}
	}
	if err != nil {
		return fmt.Errorf("publish the root CA in namespace %s: %w", name, err)
	}
	return nil
}
