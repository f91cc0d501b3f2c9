// Package deployment moves the pods of each Deployment to its present template, a
// few at a time.
//
// The pods of a Deployment are in ReplicaSets, one for each template that it has
// had and still remembers. The controller makes no pods: it makes ReplicaSets and
// changes how many pods each shall have, and package replicaset does the rest. The
// ReplicaSet whose template is the Deployment's is the fresh one here, the others
// are old. Names, annotations, conditions and events are those of Kubernetes' own
// controller, so either can go on where the other has stopped.
//
// A look at a Deployment goes through four steps. It takes the ReplicaSets that are
// the Deployment's (see package children). It decides, on copies, what changes: the
// revision of the fresh set, and the sizes of all. It writes the sets that have
// changed. Then it writes the status. One look makes the fresh set larger or the
// old ones smaller, not both, so that each step is decided by what the last one led
// to.
//
// What it is not: it does not undo a rollout. kubectl does that by giving the
// Deployment an earlier template, whose ReplicaSet then is the fresh one again.
package deployment

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// DefaultWorkers is how many Deployments are worked on at once if not told
// otherwise.
const DefaultWorkers = 5

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // Deployments worked on at once; zero means DefaultWorkers
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-deployment-syncs", DefaultWorkers, "Deployments worked on at once")
}

// A Controller is Kubernetes' deployment-controller.
type Controller struct {
	cfg         Config
	events      record.EventRecorder
	client      kubernetes.Interface
	deployments appslisters.DeploymentLister
	inf         cache.SharedIndexInformer
	setLister   appslisters.ReplicaSetLister
	sets        *children.Children[*appsv1.ReplicaSet]
	pods        cache.SharedIndexInformer
	podsOf      func(namespace string, set types.UID) ([]*corev1.Pod, error)
	log         *slog.Logger
}

// New returns a controller that watches through d.Informers. It fails if d's informers
// have stopped.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	deployments, sets := d.Informers.Apps().V1().Deployments(), d.Informers.Apps().V1().ReplicaSets()
	ctl := &Controller{
		cfg: c, events: loop.Recorder(d.Events), client: d.Client, deployments: deployments.Lister(), inf: deployments.Informer(),
		setLister: sets.Lister(), pods: d.Informers.Core().V1().Pods().Informer(),
	}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	var err error
	if ctl.podsOf, err = children.Controlled[*corev1.Pod](ctl.pods); err != nil {
		return nil, err
	}
	ctl.sets, err = children.New(children.Config[*appsv1.ReplicaSet]{
		Client:   func(ns string) children.Client[*appsv1.ReplicaSet] { return d.Client.AppsV1().ReplicaSets(ns) },
		Informer: sets.Informer(), Noun: "replica set", Kind: appsv1.SchemeGroupVersion.WithKind("Deployment"),
		Live: func(ctx context.Context, ns, name string) (metav1.Object, error) {
			return d.Client.AppsV1().Deployments(ns).Get(ctx, name, metav1.GetOptions{})
		},
	})
	if err != nil {
		return nil, err
	}
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "deployment-controller" }

// Run keeps ReplicaSets until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, Log: c.log})
	var watches loop.Watches
	watches.Add(loop.Watch(c.inf, q.Add))
	watches.Add(c.sets.Watch(q.Add, c.matching))
	watches.Add(c.watchEnds(q.Add))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

// matching returns the keys of the Deployments that might adopt rs.
func (c *Controller) matching(rs *appsv1.ReplicaSet) []string {
	all, err := c.deployments.Deployments(rs.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	return children.Matching(all, func(o *appsv1.Deployment) *metav1.LabelSelector { return o.Spec.Selector }, rs)
}

// watchEnds calls add with the key of each Deployment that waits for the end of its
// old pods, whenever one of its pods has ended or is gone.
func (c *Controller) watchEnds(add func(key string)) (stop func(), err error) {
	tell := func(p *corev1.Pod) {
		if d := c.deploymentOf(p); d != nil && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			add(d.Namespace + "/" + d.Name)
		}
	}
	return loop.Handle(c.pods, cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(was, is any) {
			old, ok := was.(*corev1.Pod)
			p, also := is.(*corev1.Pod)
			if ok && also && children.Ended(p) && !children.Ended(old) {
				tell(p)
			}
		},
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if p, ok := obj.(*corev1.Pod); ok {
				tell(p)
			}
		},
	})
}

// deploymentOf returns the Deployment whose ReplicaSet controls p; nil if there is none.
func (c *Controller) deploymentOf(p *corev1.Pod) *appsv1.Deployment {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return nil
	}
	rs, err := c.setLister.ReplicaSets(p.Namespace).Get(ref.Name)
	if err != nil || rs.UID != ref.UID {
		return nil
	}
	if ref = metav1.GetControllerOfNoCopy(rs); ref == nil || ref.Kind != "Deployment" {
		return nil
	}
	d, err := c.deployments.Deployments(p.Namespace).Get(ref.Name)
	if err != nil || d.UID != ref.UID {
		return nil
	}
	return d
}

func (c *Controller) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	d, err := c.deployments.Deployments(ns).Get(name)
	if apierrors.IsNotFound(err) {
		c.sets.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil || selector.Empty() {
		c.log.Warn("the selector cannot be used", "deployment", key, "error", err)
		return 0, nil
	}
	o := children.Owner{Object: d, Selector: selector}
	sets, err := c.sets.Of(ctx, o)
	if err != nil {
		return 0, err
	}
	l := newLook(d, sets, time.Now())
	rollout, err := c.act(ctx, o, l)
	if err != nil {
		return 0, err
	}
	l.observe(rollout)
	if err := c.write(ctx, l); err != nil {
		return 0, err
	}
	if !rollout {
		return 0, nil
	}
	return l.deadline(), nil
}

// act changes ReplicaSets. It tells whether the Deployment is being rolled out, as
// opposed to paused, scaled or deleted: only then is its progress judged.
func (c *Controller) act(ctx context.Context, o children.Owner, l *look) (rollout bool, err error) {
	if l.d.DeletionTimestamp != nil {
		return false, nil
	}
	l.notePause()
	l.revise()
	paused := l.d.Spec.Paused
	tidy := false // whether nothing has changed, so that old sets may go
	switch {
	case paused || l.scaled():
		l.rescale()
		tidy = paused
	case !l.rolling():
		rollout = true
		tidy, err = c.recreate(ctx, o, l)
	case l.fresh == nil:
		rollout = true
		err = c.create(ctx, o, l)
	default:
		rollout = true
		tidy = !l.grow() && !l.shrink()
	}
	if err != nil {
		return rollout, err
	}
	if err = c.save(ctx, l); err != nil {
		return rollout, err
	}
	if tidy && (paused || complete(l.d, &l.d.Status)) {
		_, err = c.sets.Delete(ctx, o, l.obsolete())
	}
	return rollout, err
}
