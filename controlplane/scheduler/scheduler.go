package scheduler

// The scheduler: what it hears, and the loop that decides.

import (
	"context"
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Bounds of a Config that leaves them zero.
const (
	DefaultBinders    = 16
	DefaultMinBackoff = time.Second
	DefaultMaxBackoff = 10 * time.Second
	DefaultRecheck    = time.Minute
)

// Config configures a Scheduler. The zero value is good.
type Config struct {
	// Name is the schedulerName of the pods to schedule; empty means
	// default-scheduler.
	Name    string
	Binders int // bindings written at once; zero means DefaultBinders
	// MinBackoff and MaxBackoff bound how long a pod that fits nowhere waits at
	// least: the first time MinBackoff, then twice as long each time. Zero means
	// DefaultMinBackoff and DefaultMaxBackoff.
	MinBackoff, MaxBackoff time.Duration
	// Recheck is how soon such a pod is looked at again though nothing has
	// changed; zero means DefaultRecheck.
	Recheck time.Duration
}

// A Scheduler is Kubernetes' kube-scheduler, made small.
type Scheduler struct {
	cfg          Config
	events       record.EventRecorder
	client       kubernetes.Interface
	pods         corelisters.PodLister
	podInf       clientcache.SharedIndexInformer
	nodeInf      clientcache.SharedIndexInformer
	namespaces   corelisters.NamespaceLister
	namespaceInf clientcache.SharedIndexInformer
	budgets      policylisters.PodDisruptionBudgetLister
	budgetInf    clientcache.SharedIndexInformer
	metrics      *metrics
	log          *slog.Logger
}

// New returns a scheduler that watches through d.Informers.
func New(d loop.Deps, c Config) (*Scheduler, error) {
	if c.Name == "" {
		c.Name = corev1.DefaultSchedulerName
	}
	loop.Default(&c.Binders, DefaultBinders)
	loop.Default(&c.MinBackoff, DefaultMinBackoff)
	loop.Default(&c.MaxBackoff, DefaultMaxBackoff)
	loop.Default(&c.Recheck, DefaultRecheck)
	s := &Scheduler{
		cfg: c, events: d.Events, client: d.Client, pods: d.Informers.Core().V1().Pods().Lister(),
		podInf: d.Informers.Core().V1().Pods().Informer(), nodeInf: d.Informers.Core().V1().Nodes().Informer(),
		namespaces: d.Informers.Core().V1().Namespaces().Lister(), namespaceInf: d.Informers.Core().V1().Namespaces().Informer(),
		budgets: d.Informers.Policy().V1().PodDisruptionBudgets().Lister(), budgetInf: d.Informers.Policy().V1().PodDisruptionBudgets().Informer(),
	}
	s.log = loop.Logger(d.Log, s.Name())
	var err error
	s.metrics, err = newMetrics(d.Metrics)
	return s, err
}

// Name is the name that the scheduler goes by among the controllers.
func (*Scheduler) Name() string { return "kube-scheduler" }

// Run schedules until ctx is done. The informers must be running. Everything it
// knows is made anew, so that it can be run again.
func (s *Scheduler) Run(ctx context.Context) error {
	r := &run{
		Scheduler: s,
		cache:     newCache(),
		queue:     newQueue(s.cfg),
		binds:     make(chan binding),
		searches:  newSearches(),
	}
	r.cache.namespaceLabels = s.namespaceLabels
	pods, err := s.podInf.AddEventHandler(loop.Guard(r.podEvents()))
	if err != nil {
		return err
	}
	defer func() { _ = s.podInf.RemoveEventHandler(pods) }()
	nodes, err := s.nodeInf.AddEventHandler(loop.Guard(r.nodeEvents()))
	if err != nil {
		return err
	}
	defer func() { _ = s.nodeInf.RemoveEventHandler(nodes) }()
	// A decision made before all that is on the nodes is known would be wrong.
	if !clientcache.WaitForCacheSync(ctx.Done(), pods.HasSynced, nodes.HasSynced, s.namespaceInf.HasSynced, s.budgetInf.HasSynced) {
		return nil
	}
	fs := []func(context.Context) error{r.decide, r.searchAll}
	for range s.cfg.Binders {
		fs = append(fs, r.bindAll)
	}
	return loop.Together(ctx, fs...)
}

// namespaceLabels are those of a namespace, as far as they are known.
func (s *Scheduler) namespaceLabels(name string) labels.Set {
	ns, err := s.namespaces.Get(name)
	if err != nil {
		return nil
	}
	return ns.Labels
}

// run is one Run of a Scheduler.
type run struct {
	*Scheduler
	cache *cache
	queue *queue
	binds chan binding

	searches *searches
}

// A binding is a decision on its way to the API server.
type binding struct {
	pod    *podInfo
	node   string // empty if it fits nowhere
	why    string // then, what kept it out
	turn   turn
	evicts *preemption // then, what is done about it; nil for nothing
}

func (r *run) podEvents() clientcache.ResourceEventHandler {
	return clientcache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				r.podSeen(nil, pod)
			}
		},
		UpdateFunc: func(before, obj any) {
			old, _ := before.(*corev1.Pod)
			if pod, ok := obj.(*corev1.Pod); ok {
				if old != nil && old.UID != pod.UID {
					r.podGone(old)
					old = nil
				}
				r.podSeen(old, pod)
			}
		},
		DeleteFunc: func(obj any) {
			if d, ok := obj.(clientcache.DeletedFinalStateUnknown); ok {
				obj = d.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				r.podGone(pod)
			}
		},
	}
}

// podSeen notes a pod that is new or has changed. before is nil if it is new.
func (r *run) podSeen(before, pod *corev1.Pod) {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		r.podGone(pod)
	case pod.Spec.NodeName != "":
		r.cache.setPod(pod)
		r.queue.remove(name)
		if before == nil || before.Spec.NodeName == "" || !maps.Equal(before.Labels, pod.Labels) {
			r.queue.changed(byPods) // a pod may have waited for one with affinity to it
		}
		if before != nil && before.Spec.NodeName != "" && !equality.Semantic.DeepEqual(before.Spec.Containers, pod.Spec.Containers) {
			r.queue.changed(byRoom) // resized, perhaps to less
		}
	case r.mine(pod):
		r.cache.pending(before, pod)
		if before == nil || relevant(before, pod) {
			r.queue.add(name, corev1helpers.PodPriority(pod))
		}
	default:
		r.queue.remove(name)
		r.cache.endNomination(keyOf(pod))
	}
}

// podGone notes a pod that needs no place any more.
func (r *run) podGone(pod *corev1.Pod) {
	r.queue.remove(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	r.cache.endNomination(keyOf(pod))
	if r.cache.removePod(keyOf(pod)) {
		r.queue.changed(byRoom | byPods)
	}
}

// mine tells whether the pod is for this scheduler to bind, now.
func (r *run) mine(pod *corev1.Pod) bool {
	name := pod.Spec.SchedulerName
	if name == "" {
		name = corev1.DefaultSchedulerName
	}
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && name == r.cfg.Name && len(pod.Spec.SchedulingGates) == 0
}

// relevant tells whether what changed in a pod can change where it fits. Its
// status, which we write ourselves, cannot.
func relevant(before, now *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(before.Spec, now.Spec) ||
		!equality.Semantic.DeepEqual(before.Labels, now.Labels)
}

func (r *run) nodeEvents() clientcache.ResourceEventHandler {
	return clientcache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if n, ok := obj.(*corev1.Node); ok {
				r.cache.setNode(n)
				r.queue.changed(byAny)
			}
		},
		UpdateFunc: func(before, obj any) {
			old, _ := before.(*corev1.Node)
			if n, ok := obj.(*corev1.Node); ok {
				r.cache.setNode(n)
				r.queue.changed(offers(old, n))
			}
		},
		DeleteFunc: func(obj any) {
			if d, ok := obj.(clientcache.DeletedFinalStateUnknown); ok {
				obj = d.Obj
			}
			if n, ok := obj.(*corev1.Node); ok {
				// Pods nominated to it look for another node. Topology spreads no longer count it.
				r.queue.rouse(r.cache.removeNode(n.Name)...)
				r.queue.changed(byPods)
			}
		},
	}
}

// offers tells what has changed in a node that can help a pod. Its heartbeats, by
// far the most frequent change, cannot. before is nil if it is not known.
func offers(before, now *corev1.Node) cause {
	if before == nil || before.UID != now.UID {
		return byAny
	}
	var what cause
	if before.Spec.Unschedulable != now.Spec.Unschedulable || !equality.Semantic.DeepEqual(before.Spec.Taints, now.Spec.Taints) {
		what |= byTaints
	}
	if !maps.Equal(before.Labels, now.Labels) {
		what |= byLabels
	}
	if !equality.Semantic.DeepEqual(before.Status.Allocatable, now.Status.Allocatable) {
		what |= byRoom
	}
	return what
}

// decide takes pods from the queue, one by one, until ctx is done.
func (r *run) decide(ctx context.Context) error {
	for {
		t, ok := r.queue.take(ctx)
		if !ok {
			return nil
		}
		name := t.name
		pod, err := r.pods.Pods(name.Namespace).Get(name.Name)
		if err != nil || !r.mine(pod) {
			r.queue.done(t)
			continue
		}
		if r.cache.has(keyOf(pod)) {
			continue // it is being bound: who does that tells what came of it
		}
		p := newPodInfo(pod)
		b := binding{pod: p, turn: t}
		var needs cause
		err = loop.Protect(func() error {
			b.node, b.why, needs = r.cache.place(p)
			return nil
		})
		if loop.Broken(r.log, "pod "+name.String(), err) {
			r.queue.failed(t, 0)
			continue
		}
		if b.node == "" {
			// Parked before it is told, so that nothing that happens meanwhile
			// is missed.
			r.queue.failed(t, needs)
			var told bool
			if b, told = r.wantsSearch(b, needs); !told {
				continue
			}
		}
		if !r.send(ctx, b) {
			return nil
		}
	}
}

// send gives a decision to those who write it. It returns false if ctx is done first.
func (r *run) send(ctx context.Context, b binding) bool {
	select {
	case <-ctx.Done():
		return false
	case r.binds <- b:
		return true
	}
}
