// Package tainteviction deletes pods from nodes whose NoExecute taints they do
// not tolerate, or have tolerated for long enough.
//
// A pod goes at once if one of the taints is not tolerated, and otherwise when
// the first tolerationSeconds runs out. That time counts from when the taint was
// added, not from when this process saw it, so a restart or a new leader does not
// begin it anew; see since. While a node stays tainted the time of a pod is only
// ever brought forward: what lengthens a toleration comes too late for a pod that
// is already counting. When the taints go, so does the eviction.
//
// Deletion is graceful, with the pod's own grace period. If the node cannot be
// reached nobody confirms it, and the pod stays Terminating: that is meant.
//
// What it is not: it taints no node, it has no rate limit and asks no disruption
// budget. A taint with effect NoExecute is an order.
package tainteviction

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Bounds of a Config that leaves them zero.
const (
	DefaultWorkers  = 8
	DefaultMinRetry = 10 * time.Millisecond
	DefaultMaxRetry = 30 * time.Second
)

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // pods worked on at once; zero means DefaultWorkers
	// MinRetry and MaxRetry bound the wait before an eviction that failed is tried
	// again, which it is until it succeeds or is called off. Zero means
	// DefaultMinRetry and DefaultMaxRetry.
	MinRetry, MaxRetry time.Duration
}

// A Controller is Kubernetes' taint-eviction-controller.
type Controller struct {
	cfg        Config
	events     record.EventRecorder
	client     kubernetes.Interface
	pods       corelisters.PodLister
	podInf     cache.SharedIndexInformer
	nodeInf    cache.SharedIndexInformer
	podsOfNode func(node string) ([]*corev1.Pod, error)
	metrics    *metrics
	log        *slog.Logger
}

// New returns a controller that watches through d.Informers. It fails if d.Informers has been shut
// down or the metrics cannot be registered.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.MinRetry, DefaultMinRetry)
	loop.Default(&c.MaxRetry, DefaultMaxRetry)
	m, err := newMetrics(d.Metrics)
	if err != nil {
		return nil, err
	}
	pods := d.Informers.Core().V1().Pods()
	byNode, err := loop.PodsByNode(pods.Informer())
	if err != nil {
		return nil, err
	}
	ctl := &Controller{
		cfg: c, events: loop.Recorder(d.Events), client: d.Client, pods: pods.Lister(), podInf: pods.Informer(),
		nodeInf: d.Informers.Core().V1().Nodes().Informer(), podsOfNode: byNode, metrics: m,
	}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "taint-eviction-controller" }

// Run evicts pods until ctx is done. The informers must be running. Nothing is
// kept from one Run to the next: what is to be done follows from the objects.
func (c *Controller) Run(ctx context.Context) error {
	r := &run{
		Controller: c,
		outage:     loop.NewOutage(c.log),
		nodes:      make(map[string]*node),
		evictions:  make(map[string]*eviction),
	}
	r.queue = loop.NewQueue(loop.Config[string]{
		Name: c.Name(), Do: r.sync, Workers: c.cfg.Workers,
		MinDelay: c.cfg.MinRetry, MaxDelay: c.cfg.MaxRetry, Log: c.log,
	})
	var watches loop.Watches
	watches.Add(loop.Handle(c.nodeInf, cache.ResourceEventHandlerFuncs{
		AddFunc:    r.nodeSeen,
		UpdateFunc: func(_, obj any) { r.nodeSeen(obj) },
		DeleteFunc: r.nodeGone,
	}))
	watches.Add(loop.WatchIf(c.podInf, concerns, r.queue.Add))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return r.queue.Run(ctx)
}

// A run is the state of one call of Run.
type run struct {
	*Controller
	queue  *loop.Queue[string] // of pods, by namespace/name
	outage *loop.Outage

	mu        sync.Mutex
	epochs    uint64               // guarded by mu: how often a node became tainted
	nodes     map[string]*node     // guarded by mu: every node of the cache
	evictions map[string]*eviction // guarded by mu: by key; an entry is its key's worker's
}

// concerns tells whether a change of a pod can change when it has to go.
func concerns(was, is *corev1.Pod) bool {
	return was.UID != is.UID || was.Spec.NodeName != is.Spec.NodeName ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		!equality.Semantic.DeepEqual(was.Spec.Tolerations, is.Spec.Tolerations)
}

// nodeSeen notes a node's taints before anything looks at its pods, in the order
// in which they changed: a taint that went and came back is a new one.
func (r *run) nodeSeen(obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok || !r.note(n, time.Now()) {
		return
	}
	pods, err := r.podsOfNode(n.Name)
	if err != nil {
		r.log.Error("cannot look up pods", "node", n.Name, "error", err)
		return
	}
	for _, p := range pods {
		r.queue.Add(p.Namespace + "/" + p.Name)
	}
}

// nodeGone forgets a node. Evictions from it that are due stay due: the pods are
// as little wanted there as before.
func (r *run) nodeGone(obj any) {
	if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.nodes, name)
	}
}
