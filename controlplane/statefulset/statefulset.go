// Package statefulset keeps the pods of each StatefulSet: one of each ordinal, with a
// name, a host name and claims of its own that the next pod of the ordinal has again.
//
// With the policy OrderedReady one pod is made, deleted or replaced at a time: upward when
// pods are made, downward when they go, and none before the one ahead of it is available.
// With Parallel all are made and deleted at once. A rolling update replaces pods from the
// last ordinal down to the partition. OnDelete replaces what somebody deletes. Recreate is behind
// a gate that is off: a StatefulSet that was stored with it is left alone.
//
// Templates that were are kept as ControllerRevisions (see package revision). A pod has
// the name of its own as a label. The status names the revision that pods below the
// partition are made of, and the one that all are to have. Names, labels, revisions and
// events are those of Kubernetes' own controller, so either can go on where the other has
// stopped.
//
// A look at a StatefulSet goes through four steps. It takes the revisions and the pods
// that are the StatefulSet's (see package children). It decides which pods are missing,
// which go and which have claims to be set right. It does that. Then it writes the status.
//
// What it is not: it binds no claim to a volume.
package statefulset

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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

// Defaults of a Config. That of Workers is Kubernetes' own, which has no back-off: here a
// node that refuses each pod does not set off a loop of writes.
const (
	DefaultWorkers    = 5
	DefaultMinBackoff = time.Second
	DefaultMaxBackoff = 15 * time.Minute
)

// hashLabel is the label of a revision that has its hash.
const hashLabel = "controller.kubernetes.io/hash"

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // StatefulSets worked on at once; zero means DefaultWorkers
	// MinBackoff is how long to wait before a pod that has failed is replaced, if the last
	// one of its ordinal was replaced for that too; each further time doubles it, up to
	// MaxBackoff, until the StatefulSet is changed or none of the ordinal has failed for
	// twice as long. Zero means DefaultMinBackoff and DefaultMaxBackoff.
	MinBackoff, MaxBackoff time.Duration
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-statefulset-syncs", DefaultWorkers, "StatefulSets worked on at once")
}

// A Controller is Kubernetes' statefulset-controller.
type Controller struct {
	cfg     Config
	events  record.EventRecorder
	client  kubernetes.Interface
	sets    appslisters.StatefulSetLister
	inf     cache.SharedIndexInformer
	claims  corelisters.PersistentVolumeClaimLister
	claimed cache.SharedIndexInformer // the claims
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
	sets, claims := d.Informers.Apps().V1().StatefulSets(), d.Informers.Core().V1().PersistentVolumeClaims()
	ctl := &Controller{
		cfg: c, events: loop.Recorder(d.Events), client: d.Client, sets: sets.Lister(), inf: sets.Informer(), claims: claims.Lister(), claimed: claims.Informer(),
		pauses: children.NewPauses(c.MinBackoff, c.MaxBackoff),
	}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	live := func(ctx context.Context, ns, name string) (metav1.Object, error) {
		return d.Client.AppsV1().StatefulSets(ns).Get(ctx, name, metav1.GetOptions{})
	}
	var err error
	if ctl.pods, err = children.New(children.Config[*corev1.Pod]{
		Client: children.PodClient(d.Client), Informer: d.Informers.Core().V1().Pods().Informer(), Noun: "pod", Kind: kind, Live: live,
		// A pod of another name would be no ordinal's.
		Adopt: func(o children.Owner, p *corev1.Pod) bool { _, ok := ordinal(o.GetName(), p.Name); return ok },
	}); err != nil {
		return nil, err
	}
	ctl.history, err = revision.New(d.Client, d.Informers, revision.Config{Kind: kind, Live: live, Label: hashLabel, Hash: revision.DataHash})
	if err != nil {
		return nil, err
	}
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "statefulset-controller" }

// Run keeps pods until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, Log: c.log})
	var watches loop.Watches
	watches.Add(loop.Watch(c.inf, q.Add))
	watches.Add(c.pods.Watch(q.Add, func(p *corev1.Pod) []string { return c.matching(p) }))
	watches.Add(loop.Handle(c.claimed, cache.ResourceEventHandlerFuncs{DeleteFunc: func(claim any) {
		if key, bad := cache.DeletionHandlingMetaNamespaceKeyFunc(claim); bad == nil {
			for _, set := range c.claimants(key) {
				q.Add(set)
			}
		}
	}}))
	watches.Add(c.history.Watch(q.Add, func(r *revision.Revision) []string { return c.matching(r) }))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

// matching returns the keys of the StatefulSets that might adopt child.
func (c *Controller) matching(child metav1.Object) []string {
	sets, err := c.sets.StatefulSets(child.GetNamespace()).List(labels.Everything())
	if err != nil {
		return nil
	}
	return children.Matching(sets, func(o *appsv1.StatefulSet) *metav1.LabelSelector { return o.Spec.Selector }, child)
}

func (c *Controller) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	set, err := c.sets.StatefulSets(ns).Get(name)
	if apierrors.IsNotFound(err) {
		c.pods.Forget(key)
		c.history.Forget(key)
		c.pauses.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil || selector.Empty() {
		c.log.Warn("the selector cannot be read, or selects all pods", "statefulset", key, "error", err)
		return 0, nil
	}
	return c.look(ctx, key, children.Owner{Object: set, Selector: selector}, set)
}

// look makes the world match set. It returns when to look again, if there is something
// that time alone will bring.
func (c *Controller) look(ctx context.Context, key string, o children.Owner, set *appsv1.StatefulSet) (time.Duration, error) {
	if set.DeletionTimestamp != nil {
		return c.observeDeleted(ctx, o, set)
	}
	if set.Spec.UpdateStrategy.Type == appsv1.RecreateStatefulSetStrategyType {
		c.events.Eventf(set, corev1.EventTypeWarning, "UnknownStrategy", "statefulset %s/%s uses Recreate strategy but feature gate StatefulSetRecreateStrategy is disabled", set.Namespace, set.Name)
		return 0, nil
	}
	all, err := c.history.Of(ctx, o)
	if err != nil {
		return 0, err
	}
	update, collisions, err := c.history.Present(ctx, o, all, &set.Spec.Template, set.Status.CollisionCount)
	if err != nil {
		return 0, err
	}
	pods, err := c.pods.Of(ctx, o)
	if err != nil {
		return 0, err
	}
	l := newLook(set, all, update, pods)
	l.decide(func(ordinal int) time.Duration {
		return c.pauses.Left(key, l.place(ordinal), l.now)
	})
	failed := c.act(ctx, o, l)
	if failed == nil {
		failed = c.history.Trim(ctx, o, all, l.needs, set.Spec.RevisionHistoryLimit)
	}
	if err := c.write(ctx, set, l.observe(collisions)); err != nil {
		return 0, err
	}
	return l.again, failed
}

// observeDeleted writes the status of a set that is being deleted. Its pods go with it, or stay as
// they are.
func (c *Controller) observeDeleted(ctx context.Context, o children.Owner, set *appsv1.StatefulSet) (time.Duration, error) {
	pods, err := c.pods.Of(ctx, o)
	if err != nil {
		return 0, err
	}
	named := func(name string) *revision.Revision {
		return &revision.Revision{ObjectMeta: metav1.ObjectMeta{Name: name}} // it may be gone already
	}
	l := newLook(set, nil, named(set.Status.UpdateRevision), pods)
	l.current = named(set.Status.CurrentRevision)
	status := l.observe(set.Status.CollisionCount)
	return l.again, c.write(ctx, set, status)
}
