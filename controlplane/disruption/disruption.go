// Package disruption keeps the sums of PodDisruptionBudgets: how many pods each
// one covers, how many of them are healthy, how many have to be, and so how many
// may be disrupted now.
//
// The API server charges a budget when it evicts a pod, and notes the pod in the
// budget's status. Until the cache shows that pod as being deleted, or two
// minutes have passed and it evidently will not be, it is counted as gone, so
// that a lagging cache cannot spend the same budget twice. Both write the status
// only in the version that they have read.
//
// A budget whose sums cannot be made allows nothing and says why in its
// condition DisruptionAllowed. What it is not: nothing is evicted here, and
// deletions that do not ask (a taint, a scale-down, kubectl delete) cost nothing.
package disruption

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// Bounds of a Config that leaves them zero.
const (
	DefaultWorkers         = 2
	DefaultDeletionTimeout = 2 * time.Minute
)

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // budgets worked on at once; zero means DefaultWorkers
	// DeletionTimeout is how long a pod whose eviction was granted counts as gone, and one with
	// the condition DisruptionTarget keeps it, although it is not being deleted; zero means
	// DefaultDeletionTimeout.
	DeletionTimeout time.Duration
}

// A Controller is Kubernetes' disruption-controller.
type Controller struct {
	cfg     Config
	events  record.EventRecorder
	client  kubernetes.Interface
	budgets policylisters.PodDisruptionBudgetLister
	pods    corelisters.PodLister
	scales  *scales
	inf     cache.SharedIndexInformer // of budgets
	podInf  cache.SharedIndexInformer
	log     *slog.Logger

	mu sync.Mutex // guards the following
	// selectors are those of budgets, by namespace and key of the budget. A change of a pod is
	// compared with all budgets of its namespace, which may be thousands.
	selectors map[string]map[string]labels.Selector
}

// New returns a controller that watches through d.Informers.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.DeletionTimeout, DefaultDeletionTimeout)
	budgets, pods := d.Informers.Policy().V1().PodDisruptionBudgets(), d.Informers.Core().V1().Pods()
	ctl := &Controller{
		cfg: c, events: loop.Recorder(d.Events), client: d.Client, budgets: budgets.Lister(), pods: pods.Lister(), scales: newScales(d.Client, d.Custom, d.Informers),
		inf: budgets.Informer(), podInf: pods.Informer(), selectors: make(map[string]map[string]labels.Selector),
	}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "disruption-controller" }

// Run keeps budgets until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, Log: c.log})
	stale := loop.NewQueue(loop.Config[string]{Name: c.Name() + "-stale-pods", Do: c.clearTarget, Workers: 1, Log: c.log})
	var watches loop.Watches
	watches.Add(loop.Watch(c.inf, func(key string) {
		c.readSelector(key) // before sync lists pods: none that comes in between is missed
		q.Add(key)
	}))
	watches.Add(c.watchPods(q.Add))
	watches.Add(c.watchTargets(stale.Add))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return loop.Together(ctx, q.Run, stale.Run)
}

// watchPods calls add with each budget that covers a pod which has changed, or
// covered it before.
func (c *Controller) watchPods(add func(key string)) (stop func(), err error) {
	tell := func(obj any) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if p, ok := obj.(*corev1.Pod); ok {
			c.covering(p, add)
		}
	}
	return loop.Handle(c.podInf, cache.ResourceEventHandlerFuncs{
		AddFunc: tell,
		UpdateFunc: func(was, is any) {
			tell(is)
			old, ok := was.(*corev1.Pod)
			pod, also := is.(*corev1.Pod)
			if ok && also && !maps.Equal(old.Labels, pod.Labels) {
				tell(old)
			}
		},
		DeleteFunc: tell,
	})
}

// readSelector reads the selector of a budget, or forgets it if there is no such budget.
func (c *Controller) readSelector(key string) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return // nobody's
	}
	var selector labels.Selector
	b, err := c.budgets.PodDisruptionBudgets(ns).Get(name)
	if err == nil {
		selector, err = metav1.LabelSelectorAsSelector(b.Spec.Selector)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		if c.selectors[ns] == nil {
			c.selectors[ns] = make(map[string]labels.Selector)
		}
		c.selectors[ns][key] = selector
		return
	}
	delete(c.selectors[ns], key)
	if len(c.selectors[ns]) == 0 {
		delete(c.selectors, ns)
	}
}

// covering calls add with each budget that covers p.
func (c *Controller) covering(p *corev1.Pod, add func(key string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, selector := range c.selectors[p.Namespace] {
		if selector.Matches(labels.Set(p.Labels)) {
			add(key)
		}
	}
}

func (c *Controller) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	b, err := c.budgets.PodDisruptionBudgets(ns).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	status, again, err := c.sums(ctx, b)
	if err != nil {
		if bad := c.write(ctx, b, failed(b, err)); bad != nil {
			return 0, bad
		}
		return 0, fmt.Errorf("sums of disruption budget %s: %w", key, err)
	}
	if err := c.write(ctx, b, status); err != nil {
		return 0, err
	}
	return again, nil
}

// sums returns b's status as it should be, and when to look again because a pod
// that did not go counts again by then.
func (c *Controller) sums(ctx context.Context, b *policyv1.PodDisruptionBudget) (*policyv1.PodDisruptionBudgetStatus, time.Duration, error) {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return nil, 0, fmt.Errorf("read the selector: %w", err)
	}
	pods, err := c.pods.Pods(b.Namespace).List(selector)
	if err != nil {
		return nil, 0, err
	}
	// The first that cannot be counted is named in the status, which would change with each look.
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	if len(pods) == 0 {
		c.events.Eventf(b, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	expected, desired, unmanaged, err := c.expect(ctx, b, pods)
	if err != nil {
		c.events.Eventf(b, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", err)
		return nil, 0, err
	}
	if unmanaged > 0 {
		c.events.Eventf(b, corev1.EventTypeWarning, "UnmanagedPods",
			"Pods selected by this PodDisruptionBudget (selector: %v) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.", selector)
	}
	disrupted, again := c.disrupted(b, pods, time.Now())
	healthy := 0
	for _, p := range pods {
		if _, going := disrupted[p.Name]; !going && p.DeletionTimestamp == nil && children.Ready(p) {
			healthy++
		}
	}
	allowed := healthy - desired
	if expected <= 0 || allowed < 0 {
		allowed = 0
	}
	s := b.Status.DeepCopy()
	s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods = int32(healthy), int32(desired), int32(expected)
	s.DisruptionsAllowed, s.DisruptedPods, s.ObservedGeneration = int32(allowed), disrupted, b.Generation
	conditioned := &policyv1.PodDisruptionBudget{Status: *s}
	pdbhelper.UpdateDisruptionAllowedCondition(conditioned)
	return &conditioned.Status, again, nil
}

// disrupted returns those of the pods noted in b that still count as gone
// although the cache does not show them as being deleted, and when the first of
// them will no longer.
func (c *Controller) disrupted(b *policyv1.PodDisruptionBudget, pods []*corev1.Pod, now time.Time) (map[string]metav1.Time, time.Duration) {
	var out map[string]metav1.Time
	var again time.Duration
	for _, p := range pods {
		at, noted := b.Status.DisruptedPods[p.Name]
		if !noted || p.DeletionTimestamp != nil {
			continue
		}
		left := at.Add(c.cfg.DeletionTimeout).Sub(now)
		if left <= 0 {
			c.events.Eventf(p, corev1.EventTypeWarning, "NotDeleted", "Pod was expected by PDB %s/%s to be deleted but it wasn't", b.Namespace, b.Name)
			continue
		}
		if out == nil {
			out = make(map[string]metav1.Time)
		}
		out[p.Name] = at
		if again == 0 || left < again {
			again = left
		}
	}
	return out, again
}

// failed is b's status when the sums could not be made: nothing is allowed.
func failed(b *policyv1.PodDisruptionBudget, err error) *policyv1.PodDisruptionBudgetStatus {
	s := b.Status.DeepCopy()
	s.DisruptionsAllowed, s.ObservedGeneration = 0, b.Generation
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, ObservedGeneration: b.Generation,
		Reason: policyv1.SyncFailedReason, Message: err.Error(),
	})
	return s
}
