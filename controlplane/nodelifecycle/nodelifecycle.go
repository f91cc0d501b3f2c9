package nodelifecycle

// Controller: what it is made of, and Run.

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Bounds that are not settings.
const (
	podWorkers   = 4
	taintWorkers = 8                      // nodes whose taints by condition are brought up to date at once
	restPart     = 5                      // of the time between passes is rest between them, at least
	tick         = 100 * time.Millisecond // between looks at the queues of nodes to be tainted
	recheck      = 50 * time.Millisecond  // before such a node that could not be tainted is tried again, at the earliest
	healthTries  = 5                      // attempts to write a node's health in one pass
	healthPause  = 20 * time.Millisecond  // between them
	taintTries   = 5                      // attempts to change taints that others change as well
	taintPause   = 100 * time.Millisecond // between them, and up to twice as long
	callTimeout  = 10 * time.Second       // of one request, and of one taint's attempts together
)

// A Controller is Kubernetes' node-lifecycle-controller.
type Controller struct {
	cfg     Config
	events  record.EventRecorder
	client  kubernetes.Interface
	nodes   corelisters.NodeLister
	leases  coordinationlisters.LeaseNamespaceLister
	pods    corelisters.PodLister
	podsOf  func(node string) ([]*corev1.Pod, error)
	metrics *metrics
	log     *slog.Logger

	nodeInf, leaseInf, podInf cache.SharedIndexInformer
}

// New returns a controller that watches through d.Informers. It starts nothing. cfg should
// have passed Check.
func New(d loop.Deps, cfg Config) (*Controller, error) {
	cfg = cfg.withDefaults()
	nodes, pods, leases := d.Informers.Core().V1().Nodes(), d.Informers.Core().V1().Pods(), d.Informers.Coordination().V1().Leases()
	c := &Controller{
		cfg: cfg, events: loop.Recorder(d.Events), client: d.Client, metrics: newMetrics(d.Metrics),
		nodes: nodes.Lister(), nodeInf: nodes.Informer(),
		pods: pods.Lister(), podInf: pods.Informer(),
		leases: leases.Lister().Leases(corev1.NamespaceNodeLease), leaseInf: leases.Informer(),
	}
	var err error
	if c.podsOf, err = loop.PodsByNode(c.podInf); err != nil {
		return nil, err
	}
	c.log = loop.Logger(d.Log, c.Name())
	if c.cfg.Freezes == nil {
		c.cfg.Freezes = c.events
	}
	return c, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "node-lifecycle-controller" }

// Run watches over nodes until ctx is done. The informers must be running; Run
// waits until those it uses have filled their caches. It may be called again
// after it has returned: what it knew is rebuilt from the caches.
func (c *Controller) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.nodeInf.HasSynced, c.leaseInf.HasSynced, c.podInf.HasSynced) {
		return nil
	}
	r := newRun(c)
	return loop.Together(ctx, r.watch, r.monitor, r.evict, r.tainting.Run, r.marking.Run)
}

// watch feeds the work queues until ctx is done.
func (r *run) watch(ctx context.Context) error {
	var watches loop.Watches
	watches.Add(loop.Watch(r.nodeInf, r.tainting.Add))
	watches.Add(r.watchPods())
	watches.Add(r.arrivals.watch(r.nodeInf, r.leaseInf))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	<-ctx.Done()
	return nil
}

// A run is the state of one call of Run.
type run struct {
	*Controller
	reach    *reach
	queues   queues
	tainting *loop.Queue[string] // nodes whose NoSchedule taints and labels want a look
	marking  *loop.Queue[podKey] // pods that may have to be marked not ready
	records  records
	arrivals *arrivals
	pace     flowcontrol.PassiveRateLimiter // of events of freezes

	// The rest belongs to the monitor.
	outlook      outlook
	observations []observation
	memory       memory
	answered     time.Time // when the API server was last known to answer, but for arrivals
	stopped      time.Time // when the last node of all zones was lost
	failing      bool      // the last pass could not write everything
}

// newRun makes the state of a Run, which has to run both work queues.
func newRun(c *Controller) *run {
	r := &run{Controller: c, queues: queues{byZone: map[string]*zoneQueue{}}, records: records{byName: map[string]*nodeRecord{}}, arrivals: newArrivals()}
	r.pace = flowcontrol.NewTokenBucketPassiveRateLimiter(freezesPerSecond, freezesAtOnce)
	r.reach = &reach{log: c.log, ask: r.ask}
	r.memory = memory{client: c.client.CoordinationV1().Leases(metav1.NamespaceSystem), log: c.log}
	r.tainting = loop.NewQueue(loop.Config[string]{
		Name: "node_lifecycle_controller", Do: r.reconcile, Workers: taintWorkers, Log: c.log,
	})
	r.marking = loop.NewQueue(loop.Config[podKey]{
		Name: "node_lifecycle_controller_pods", Do: r.mark, Workers: podWorkers, MaxDelay: c.cfg.MonitorPeriod, Log: c.log,
	})
	c.metrics.frozen.Reset()
	return r
}

// pause waits for d. It returns false if ctx is done first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
