// Package daemonset keeps one pod of each DaemonSet on each node that it is for.
//
// A node is a DaemonSet's if the template's node name, selector and node affinity match
// it and the template tolerates its taints, beside those that every daemon tolerates:
// not ready, unreachable, cordoned, under pressure. The pod is made with a node affinity
// by the node's name, and the scheduler binds it, if there is room. A pod stays on a node
// that it could not be made for any more, as long as only NoSchedule taints are the cause.
//
// Templates that were are kept as ControllerRevisions (see package revision); a pod has
// the hash of its own as a label. Names, labels, revisions, annotations and events are
// those of Kubernetes' own controller, so either can go on where the other has stopped.
//
// A look at a DaemonSet goes through five steps. It takes the revisions and the pods that
// are the DaemonSet's (see package children). It decides, for each node, whether a pod is
// missing or too much. It decides which pods are replaced for the sake of the template.
// It deletes and makes pods. Then it writes the status.
//
// What it is not: it does not bind pods, and it evicts nobody to make room.
package daemonset

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/revision"
)

// Defaults of a Config, which are Kubernetes' own.
const (
	DefaultWorkers    = 2
	DefaultMinBackoff = time.Second
	DefaultMaxBackoff = 15 * time.Minute
)

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // DaemonSets worked on at once; zero means DefaultWorkers
	// MinBackoff is how long to wait before the pod of a node that failed is replaced, if
	// the last one there was replaced for that too; each further time doubles it, up to
	// MaxBackoff, until the DaemonSet is changed or no pod has failed there for twice as
	// long. Zero means DefaultMinBackoff and DefaultMaxBackoff.
	MinBackoff, MaxBackoff time.Duration
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-daemonset-syncs", DefaultWorkers, "DaemonSets worked on at once")
}

// A Controller is Kubernetes' daemonset-controller.
type Controller struct {
	cfg     Config
	events  record.EventRecorder
	client  kubernetes.Interface
	sets    appslisters.DaemonSetLister
	inf     cache.SharedIndexInformer
	nodes   corelisters.NodeLister
	nodeInf cache.SharedIndexInformer
	pods    *children.Pods
	history *revision.History
	pauses  *children.Pauses
	log     *slog.Logger
}

// New returns a controller that watches through d.Informers. It fails if d's informers
// have stopped.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.MinBackoff, DefaultMinBackoff)
	loop.Default(&c.MaxBackoff, max(DefaultMaxBackoff, c.MinBackoff))
	d.Events = loop.Recorder(d.Events)
	sets, nodes, kind := d.Informers.Apps().V1().DaemonSets(), d.Informers.Core().V1().Nodes(), appsv1.SchemeGroupVersion.WithKind("DaemonSet")
	ctl := &Controller{
		cfg: c, events: d.Events, client: d.Client, sets: sets.Lister(), inf: sets.Informer(), nodes: nodes.Lister(), nodeInf: nodes.Informer(),
		pauses: children.NewPauses(c.MinBackoff, c.MaxBackoff),
	}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	live := func(ctx context.Context, ns, name string) (metav1.Object, error) {
		return d.Client.AppsV1().DaemonSets(ns).Get(ctx, name, metav1.GetOptions{})
	}
	var err error
	if ctl.pods, err = children.New(children.Config[*corev1.Pod]{
		Client: children.PodClient(d.Client), Informer: d.Informers.Core().V1().Pods().Informer(), Noun: "pod", Kind: kind, Live: live, Events: d.Events,
	}); err != nil {
		return nil, err
	}
	ctl.history, err = revision.New(d.Client, d.Informers, revision.Config{
		Kind: kind, Live: live, Label: appsv1.DefaultDaemonSetUniqueLabelKey, Hash: revision.TemplateHash,
	})
	if err != nil {
		return nil, err
	}
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "daemonset-controller" }

// Run keeps pods until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, Log: c.log})
	var watches loop.Watches
	watches.Add(loop.Watch(c.inf, q.Add))
	watches.Add(c.pods.Watch(q.Add, func(p *corev1.Pod) []string { return c.matching(p) }))
	watches.Add(c.history.Watch(q.Add, func(r *revision.Revision) []string { return c.matching(r) }))
	watches.Add(c.watchNodes(q.Add))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

// matching returns the keys of the DaemonSets that might adopt child.
func (c *Controller) matching(child metav1.Object) []string {
	sets, err := c.sets.DaemonSets(child.GetNamespace()).List(labels.Everything())
	if err != nil {
		return nil
	}
	return children.Matching(sets, func(o *appsv1.DaemonSet) *metav1.LabelSelector { return o.Spec.Selector }, child)
}

// watchNodes calls add with the keys of the DaemonSets whose need of a node has changed.
func (c *Controller) watchNodes(add func(key string)) (stop func(), err error) {
	tell := func(was, is *corev1.Node) {
		sets, err := c.sets.List(labels.Everything())
		if err != nil {
			return
		}
		for _, ds := range sets {
			if f := fitOf(ds); f.of(was) != f.of(is) {
				add(ds.Namespace + "/" + ds.Name)
			}
		}
	}
	return loop.Handle(c.nodeInf, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if n, ok := obj.(*corev1.Node); ok {
				tell(nil, n)
			}
		},
		UpdateFunc: func(was, is any) {
			old, ok := was.(*corev1.Node)
			n, also := is.(*corev1.Node)
			if ok && also && (!maps.Equal(old.Labels, n.Labels) || !equality.Semantic.DeepEqual(old.Spec.Taints, n.Spec.Taints)) {
				tell(old, n)
			}
		},
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if n, ok := obj.(*corev1.Node); ok {
				tell(n, nil)
			}
		},
	})
}

func (c *Controller) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	ds, err := c.sets.DaemonSets(ns).Get(name)
	if apierrors.IsNotFound(err) {
		c.pods.Forget(key)
		c.history.Forget(key)
		c.pauses.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil {
		c.log.Warn("the selector cannot be read", "daemonset", key, "error", err)
		return 0, nil
	}
	if selector.Empty() {
		c.events.Event(ds, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	return c.look(ctx, key, children.Owner{Object: ds, Selector: selector}, ds)
}

// look makes the world match ds. It returns when to look again, if there is something
// that time alone will bring.
func (c *Controller) look(ctx context.Context, key string, o children.Owner, ds *appsv1.DaemonSet) (time.Duration, error) {
	if ds.DeletionTimestamp != nil {
		return 0, nil // its pods go with it, or stay as they are
	}
	all, err := c.history.Of(ctx, o)
	if err != nil {
		return 0, err
	}
	collisions := ds.Status.CollisionCount
	now, collisions, err := c.history.Present(ctx, o, all, &ds.Spec.Template, collisions)
	if err != nil {
		return 0, err
	}
	l, err := c.newLook(ctx, o, ds, all, now)
	if err != nil {
		return 0, err
	}
	l.manage(func(node string) time.Duration {
		return c.pauses.Left(key, l.pause(node), l.now)
	})
	if ds.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		l.roll()
	}
	failed := c.act(ctx, o, l)
	if failed == nil {
		failed = c.history.Trim(ctx, o, all, l.needs, ds.Spec.RevisionHistoryLimit)
	}
	if err := c.write(ctx, ds, l.observe(collisions)); err != nil {
		return 0, err
	}
	return l.again, failed
}

// act deletes and makes the pods that have been decided on.
func (c *Controller) act(ctx context.Context, o children.Owner, l *look) error {
	for _, e := range l.events {
		c.events.Event(l.ds, e.kind, e.reason, e.message)
	}
	l.toDelete = l.toDelete[:min(len(l.toDelete), children.MaxWrites)]
	gone, err := c.pods.Delete(ctx, o, l.toDelete)
	for _, p := range gone {
		if node, failed := l.failed[p.UID]; failed {
			c.pauses.Replaced(l.ds.Namespace+"/"+l.ds.Name, l.pause(node), l.now)
		}
	}
	if err != nil {
		return err
	}
	slices.Sort(l.missing)
	_, err = c.pods.Create(ctx, o, min(len(l.missing), children.MaxWrites), func(i int) *corev1.Pod { return l.pod(o, l.missing[i]) })
	return err
}
