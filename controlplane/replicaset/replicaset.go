// Package replicaset keeps as many pods of a kind as each ReplicaSet asks for.
//
// A look at a ReplicaSet takes its pods (see package children), leaves out those
// that have ended or are being deleted, makes what is missing from the template
// or deletes what is too much, and writes down in the status what there is. A
// pod that is being deleted does not count however long it takes to go, so a pod
// evicted from a node that cannot hear of it is replaced elsewhere at once.
//
// What it is not: it does not replace pods whose template has changed; package
// deployment does that by making ReplicaSets.
package replicaset

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// DefaultWorkers is how many ReplicaSets are worked on at once if not told
// otherwise.
const DefaultWorkers = 5

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // ReplicaSets worked on at once; zero means DefaultWorkers
	// MinBackoff is how long to wait before pods are made when those that were made
	// last in the place of failed ones failed as well; each further time doubles it,
	// up to MaxBackoff, until one is ready or the ReplicaSet is changed. Zero means
	// children.DefaultMinBackoff and children.DefaultMaxBackoff.
	MinBackoff, MaxBackoff time.Duration
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-replicaset-syncs", DefaultWorkers, "ReplicaSets worked on at once")
}

// A Controller is Kubernetes' replicaset-controller.
type Controller struct {
	cfg    Config
	client kubernetes.Interface
	sets   appslisters.ReplicaSetLister
	inf    cache.SharedIndexInformer
	pods   *children.Pods
	family func(namespace string, owner types.UID) ([]*appsv1.ReplicaSet, error)
	log    *slog.Logger

	mu     sync.Mutex
	pauses map[string]*pause // guarded by mu; by namespace/name of the ReplicaSet
}

// New returns a controller that watches through d.Informers. It fails if d's informers
// have stopped.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.MinBackoff, children.DefaultMinBackoff)
	loop.Default(&c.MaxBackoff, max(children.DefaultMaxBackoff, c.MinBackoff))
	sets := d.Informers.Apps().V1().ReplicaSets()
	ctl := &Controller{cfg: c, client: d.Client, sets: sets.Lister(), inf: sets.Informer(), pauses: make(map[string]*pause)}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	var err error
	if ctl.family, err = children.Controlled[*appsv1.ReplicaSet](ctl.inf); err != nil {
		return nil, err
	}
	ctl.pods, err = children.New(children.Config[*corev1.Pod]{
		Client: children.PodClient(d.Client), Informer: d.Informers.Core().V1().Pods().Informer(), Noun: "pod", Kind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		Live: func(ctx context.Context, ns, name string) (metav1.Object, error) {
			return d.Client.AppsV1().ReplicaSets(ns).Get(ctx, name, metav1.GetOptions{})
		},
		Adopt: func(_ children.Owner, p *corev1.Pod) bool { return children.Active(p) }, Events: d.Events,
	})
	if err != nil {
		return nil, err
	}
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "replicaset-controller" }

// Run keeps pods until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, Log: c.log})
	var watches loop.Watches
	watches.Add(loop.Watch(c.inf, q.Add))
	watches.Add(c.pods.Watch(q.Add, c.matching))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

// matching returns the keys of the ReplicaSets that might adopt p.
func (c *Controller) matching(p *corev1.Pod) []string {
	sets, err := c.sets.ReplicaSets(p.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	return children.Matching(sets, func(o *appsv1.ReplicaSet) *metav1.LabelSelector { return o.Spec.Selector }, p)
}

func (c *Controller) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	rs, err := c.sets.ReplicaSets(ns).Get(name)
	if apierrors.IsNotFound(err) {
		c.pods.Forget(key)
		c.forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		c.log.Warn("the selector cannot be read", "replicaset", key, "error", err)
		return 0, nil
	}
	if selector.Empty() {
		return 0, nil // would be about every pod there is
	}
	o := children.Owner{Object: rs, Selector: selector}
	pods, err := c.pods.Of(ctx, o)
	if err != nil {
		return 0, err
	}
	var wait time.Duration
	var failed error
	if rs.DeletionTimestamp == nil {
		wait, failed = c.scale(ctx, key, o, rs, pods)
	}
	status, again := observe(rs, pods, failed, time.Now())
	if wait > 0 && (again == 0 || wait < again) {
		again = wait
	}
	if err := c.write(ctx, rs, status); err != nil {
		return 0, err
	}
	return again, failed
}

// scale makes or deletes pods so that there are as many as rs wants. It returns when
// more can be made, if it is too early.
func (c *Controller) scale(ctx context.Context, key string, o children.Owner, rs *appsv1.ReplicaSet, pods []*corev1.Pod) (time.Duration, error) {
	wait, active := c.pauseOf(key, rs, pods, time.Now()), children.Filter(pods, children.Active)
	surplus := len(active) - wanted(rs)
	switch {
	case surplus < 0 && wait > 0:
		return wait, nil
	case surplus < 0:
		c.madeFor(key)
		_, err := c.pods.Create(ctx, o, min(-surplus, children.MaxWrites), func(int) *corev1.Pod {
			return children.FromTemplate(o, &rs.Spec.Template)
		})
		return 0, err
	case surplus > 0:
		company, err := c.company(rs)
		if err != nil {
			return 0, err
		}
		children.ByWorth(active, company, time.Now())
		_, err = c.pods.Delete(ctx, o, active[:min(surplus, children.MaxWrites)])
		return 0, err
	}
	return 0, nil
}

func wanted(rs *appsv1.ReplicaSet) int {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return int(*rs.Spec.Replicas)
}

// company counts, by node, the active pods of rs and of the sets that have the
// same controller: the old and the new set of one deployment.
func (c *Controller) company(rs *appsv1.ReplicaSet) (func(node string) int, error) {
	family := []*appsv1.ReplicaSet{rs}
	if ref := metav1.GetControllerOfNoCopy(rs); ref != nil {
		var err error
		if family, err = c.family(rs.Namespace, ref.UID); err != nil {
			return nil, err
		}
	}
	on := make(map[string]int)
	for _, member := range family {
		pods, err := c.pods.Controlled(member.Namespace, member.UID)
		if err != nil {
			return nil, err
		}
		for _, p := range children.Filter(pods, children.Active) {
			on[p.Spec.NodeName]++
		}
	}
	return func(node string) int { return on[node] }, nil
}
