// Package namespace empties namespaces that are being deleted.
//
// A namespace that someone deletes stays, in phase Terminating, for as long as
// its spec carries a finalizer. The controller here asks discovery which kinds
// of object can be in a namespace, deletes them all, pods first because they use
// what the others are, waits for those that take their time, and takes the
// finalizer away when nothing is left. It begins after a grace period: an object
// that a server let in just before must be stored by then, or it would stay.
//
// What is in the way is told in the namespace's conditions. What it is not: it
// does not stop new objects from being created meanwhile, which admission does.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Bounds of a Config that leaves them zero, and of one look at a namespace.
const (
	DefaultWorkers = 4
	DefaultRecheck = time.Second
	DefaultGrace   = 5 * time.Second
	maxRecheck     = 15 * time.Second
	page           = 500 // objects per list request
	maxPages       = 200 // of one kind: an extension server may always have another
)

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // namespaces emptied at once; zero means DefaultWorkers
	// Recheck is how soon a namespace is looked at again while objects in it take
	// their time; zero means DefaultRecheck.
	Recheck time.Duration
	// Grace is how long after a namespace was seen to be deleted it is emptied: a server may
	// not know that yet, or may be storing an object that it let in before. Zero means
	// DefaultGrace.
	Grace time.Duration
}

// A Controller is Kubernetes' namespace-controller.
type Controller struct {
	cfg        Config
	client     kubernetes.Interface
	objects    metadata.Interface
	discovery  discovery.DiscoveryInterface
	namespaces corelisters.NamespaceLister
	inf        cache.SharedIndexInformer
	log        *slog.Logger
}

// New returns a controller that watches through d.Informers.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.Recheck, DefaultRecheck)
	loop.Default(&c.Grace, DefaultGrace)
	n := d.Informers.Core().V1().Namespaces()
	ctl := &Controller{
		cfg: c, client: d.Client, objects: d.Objects, discovery: d.Client.Discovery(),
		namespaces: n.Lister(), inf: n.Informer(),
	}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "namespace-controller" }

// Run empties namespaces until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{
		Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, MaxDelay: maxRecheck, Log: c.log,
	})
	stop, err := loop.Watch(c.inf, func(name string) {
		// A look that a change before the deletion asked for would be too early.
		if ns, err := c.namespaces.Get(name); err == nil && ns.DeletionTimestamp != nil {
			q.AddAfter(name, c.cfg.Grace)
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

func (c *Controller) sync(ctx context.Context, name string) (time.Duration, error) {
	ns, err := c.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return 0, nil
	}
	// The cache may be behind: decide by the namespace as it is.
	ns, err = c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up namespace %s: %w", name, err)
	}
	return c.empty(ctx, ns)
}

// empty makes one attempt at a namespace. It asks for another look while
// objects remain that are on their way out.
func (c *Controller) empty(ctx context.Context, ns *corev1.Namespace) (time.Duration, error) {
	found := &findings{}
	kinds, err := c.kinds()
	if err != nil {
		found.discovery = err
	}
	for _, batch := range podsFirst(kinds) {
		for _, gvr := range batch {
			if err := c.purge(ctx, gvr, ns.Name, found); err != nil {
				found.content = append(found.content, fmt.Errorf("%s: %w", gvr.GroupResource(), err))
			}
		}
		if found.left > 0 || len(found.content) > 0 {
			break // what remains may still need what comes next
		}
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := c.tell(ctx, ns, found); err != nil {
		return 0, err
	}
	switch {
	case found.discovery != nil || len(found.content) > 0:
		return 0, fmt.Errorf("empty namespace %s: %w", ns.Name, errors.Join(append(found.content, found.discovery)...))
	case found.left > 0:
		return c.wait(ns), nil
	}
	return 0, c.finalize(ctx, ns)
}

// wait is longer the longer the namespace has been on its way out, so that one
// that is stuck costs little.
func (c *Controller) wait(ns *corev1.Namespace) time.Duration {
	return min(max(c.cfg.Recheck, time.Since(ns.DeletionTimestamp.Time)/8), maxRecheck)
}

// finalize says that the namespace is empty, which deletes it.
func (c *Controller) finalize(ctx context.Context, ns *corev1.Namespace) error {
	now, err := c.client.CoreV1().Namespaces().Get(ctx, ns.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != ns.UID {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up namespace %s: %w", ns.Name, err)
	}
	now.Spec.Finalizers = slices.DeleteFunc(now.Spec.Finalizers, func(f corev1.FinalizerName) bool {
		return f == corev1.FinalizerKubernetes
	})
	_, err = c.client.CoreV1().Namespaces().Finalize(ctx, now, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finalize namespace %s: %w", ns.Name, err)
	}
	c.log.Info("namespace emptied", "namespace", ns.Name)
	return nil
}

// kinds returns what can be in a namespace and be deleted. If some groups could
// not be asked it returns the others together with an error.
func (c *Controller) kinds() ([]kind, error) {
	lists, err := c.discovery.ServerPreferredNamespacedResources()
	var out []kind
	for _, l := range lists {
		gv, parseErr := schema.ParseGroupVersion(l.GroupVersion)
		if parseErr != nil {
			err = errors.Join(err, parseErr)
			continue
		}
		for i := range l.APIResources {
			r := &l.APIResources[i]
			verbs := func(v string) bool { return slices.Contains(r.Verbs, v) }
			if verbs("delete") && verbs("list") {
				out = append(out, kind{gv.WithResource(r.Name), verbs("deletecollection")})
			}
		}
	}
	return out, err
}

// A kind is a resource; collection says whether it can be deleted in one go.
type kind struct {
	schema.GroupVersionResource
	collection bool
}

// podsFirst splits kinds into what is deleted first and what after that is gone.
func podsFirst(kinds []kind) [2][]kind {
	var out [2][]kind
	for _, k := range kinds {
		i := 1
		if k.Group == "" && k.Resource == "pods" {
			i = 0
		}
		out[i] = append(out[i], k)
	}
	return out
}

// purge deletes all objects of one kind and notes what remains.
func (c *Controller) purge(ctx context.Context, k kind, ns string, found *findings) error {
	r := c.objects.Resource(k.GroupVersionResource).Namespace(ns)
	policy := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &policy}
	oneByOne := !k.collection
	if k.collection {
		err := r.DeleteCollection(ctx, opts, metav1.ListOptions{})
		switch {
		case apierrors.IsMethodNotSupported(err):
			oneByOne = true
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("delete all: %w", err)
		}
	}
	next := ""
	for range maxPages {
		list, err := r.List(ctx, metav1.ListOptions{Limit: page, Continue: next})
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if oneByOne && o.DeletionTimestamp == nil {
				if err := r.Delete(ctx, o.Name, opts); err != nil && !apierrors.IsNotFound(err) {
					return fmt.Errorf("delete %s: %w", o.Name, err)
				}
			}
			found.remains(k.GroupResource(), o)
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
	return fmt.Errorf("list: there are more than %d objects, the others are for later", maxPages*page)
}
