// Package endpointslice says where Services lead: it writes, for each that has a selector,
// the EndpointSlices of its pods, and an Endpoints object for clients that read no slices.
// Endpoints that somebody wrote for a Service without a selector become slices likewise.
//
// What a slice has to hold is k8s.io/endpointslice's to say: readiness and termination of
// pods, named ports, both families of addresses, at most so many endpoints a slice, hints by
// zone. This package watches, and hands it Services one at a time. The Endpoints are made
// of the slices, so the two never tell different things for long.
package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	nodeutil "k8s.io/component-helpers/node/util"
	reconcile "k8s.io/endpointslice"
	"k8s.io/endpointslice/metrics"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/endpointslice/util"

	"github.com/hawser-project/hawser/controlplane/loop"
)

const (
	// DefaultWorkers is how many Services are worked on at once if not told otherwise.
	DefaultWorkers = 5
	// DefaultMaxEndpoints is how many endpoints a slice holds if not told otherwise, and
	// MaxEndpoints what it may hold.
	DefaultMaxEndpoints, MaxEndpoints = 100, 1000
	// allNodes is the key of a look at all nodes, which none of a Service is. One is had
	// nodesDelay after a node has changed, whatever changes meanwhile: thousands join in
	// the same minutes.
	allNodes, nodesDelay = "", time.Second
	// ManagedBy is the value of the label discoveryv1.LabelManagedBy of the slices that
	// the controller writes, as in Kubernetes.
	ManagedBy = "endpointslice-controller.k8s.io"
)

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers      int // Services worked on at once; zero means DefaultWorkers
	MaxEndpoints int // of a slice; zero means DefaultMaxEndpoints, and more than MaxEndpoints is that
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-service-endpoint-syncs", DefaultWorkers, "Services whose EndpointSlices are worked on at once")
	f.IntVar(&c.MaxEndpoints, "max-endpoints-per-slice", DefaultMaxEndpoints, fmt.Sprintf("endpoints of one EndpointSlice, at most %d", MaxEndpoints))
}

// A Controller is Kubernetes' endpointslice-controller.
type Controller struct {
	cfg      Config
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	slicesOf func(namespace, service string) ([]*discoveryv1.EndpointSlice, error)
	watched  struct{ services, pods, nodes, slices cache.SharedIndexInformer }
	log      *slog.Logger
	events   record.EventRecorder

	reconciler *reconcile.Reconciler
	tracker    *util.EndpointSliceTracker // what was written and may not have been seen yet
	triggers   *util.TriggerTimeTracker
	topology   *topologycache.TopologyCache

	mu    sync.Mutex           // guards the following
	since map[string]time.Time // since when what was written to a Service has not been seen
}

// New returns a controller that watches through d.Informers. It is an error if d.Informers has been shut down.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.MaxEndpoints, DefaultMaxEndpoints)
	core, written := d.Informers.Core().V1(), d.Informers.Discovery().V1().EndpointSlices().Informer()
	of, err := loop.SlicesByService(written, ManagedBy)
	if err != nil {
		return nil, err
	}
	ctl := &Controller{
		cfg: c, services: core.Services().Lister(), pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), slicesOf: of,
		events: loop.Recorder(d.Events), tracker: util.NewEndpointSliceTracker(), triggers: util.NewTriggerTimeTracker(), topology: topologycache.NewTopologyCache(),
		since: make(map[string]time.Time),
	}
	ctl.watched.services, ctl.watched.pods, ctl.watched.nodes = core.Services().Informer(), core.Pods().Informer(), core.Nodes().Informer()
	ctl.watched.slices = written
	ctl.log = loop.Logger(d.Log, ctl.Name())
	metrics.RegisterMetrics()
	ctl.reconciler = reconcile.NewReconciler(d.Client, ctl.nodes, int32(min(c.MaxEndpoints, MaxEndpoints)), ctl.tracker, ctl.topology, ctl.events, ManagedBy, //nolint:gosec // at most 1,000
		reconcile.WithPreferSameTrafficDistributionEnabled(true))
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "endpointslice-controller" }

// Run keeps slices until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	var q *loop.Queue[string]
	q = loop.NewQueue(loop.Config[string]{Name: c.Name(), Workers: c.cfg.Workers, Log: c.log, Do: func(ctx context.Context, key string) (time.Duration, error) {
		if key == allNodes {
			return 0, c.nodesChanged(q.Add)
		}
		return c.sync(ctx, key)
	}})
	var watches loop.Watches
	watches.Add(loop.Watch(c.watched.services, q.Add))
	watches.Add(loop.Handle(c.watched.pods, changes(c.podChanged(q.Add))))
	watches.Add(loop.Handle(c.watched.slices, changes(c.sliceChanged(q.Add))))
	watches.Add(loop.WatchIf(c.watched.nodes, zoneChanged, func(string) { q.AddAfter(allNodes, nodesDelay) }))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

// changes has f told of all that becomes of an object: was is nil for one that is new, is
// for one that is gone.
func changes(f func(was, is any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(is any) { f(nil, is) },
		UpdateFunc: f,
		DeleteFunc: func(was any) {
			if last, ok := was.(cache.DeletedFinalStateUnknown); ok {
				was = last.Obj
			}
			f(was, nil)
		},
	}
}

// watchServices calls add with the key of each Service of which an object by the same name
// has changed, or a slice that by manages.
func watchServices(named []cache.SharedIndexInformer, slices cache.SharedIndexInformer, by string, add func(key string)) (stop func(), err error) {
	var watches loop.Watches
	for _, inf := range named {
		watches.Add(loop.Watch(inf, add))
	}
	watches.Add(loop.Handle(slices, changes(func(was, is any) {
		for _, obj := range []any{was, is} {
			if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelManagedBy] == by {
				add(s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName])
			}
		}
	})))
	return watches.All()
}

// podChanged adds the Services that select a pod, or did.
func (c *Controller) podChanged(add func(key string)) func(was, is any) {
	return func(was, is any) {
		all, err := util.GetServicesToUpdate(c.services, util.GetPodUpdateProjectionKey(was, is))
		if err != nil {
			c.log.Warn("the services of a pod are not known", "error", err)
		}
		for key := range all {
			add(key)
		}
	}
}

// sliceChanged adds the Service of a slice that somebody else has changed.
func (c *Controller) sliceChanged(add func(key string)) func(was, is any) {
	return func(was, is any) {
		old, _ := was.(*discoveryv1.EndpointSlice)
		slice, _ := is.(*discoveryv1.EndpointSlice)
		switch {
		case slice == nil && old == nil:
			return
		case slice == nil:
			if !managed(old) || c.tracker.HandleDeletion(old) {
				return // ours, which we deleted
			}
			slice = old
		case old != nil && managed(old) && (!managed(slice) || old.Labels[discoveryv1.LabelServiceName] != slice.Labels[discoveryv1.LabelServiceName]):
			// Somebody has taken it away from its Service: the library would wait for it for ever.
			c.tracker.HandleDeletion(old)
			if key, err := reconcile.ServiceControllerKey(old); err == nil {
				add(key)
			}
		case !managed(slice) && (old == nil || !managed(old)), managed(slice) && !c.tracker.ShouldSync(slice):
			return
		}
		if key, err := reconcile.ServiceControllerKey(slice); err == nil {
			add(key)
		}
	}
}

func managed(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == ManagedBy
}

// zoneChanged says whether hints may be others since a node has changed.
func zoneChanged(was, is *corev1.Node) bool {
	return was.Labels[corev1.LabelTopologyZone] != is.Labels[corev1.LabelTopologyZone] ||
		ready(was) != ready(is) || !was.Status.Allocatable.Cpu().Equal(*is.Status.Allocatable.Cpu())
}

func ready(n *corev1.Node) bool {
	_, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// nodesChanged counts nodes by zone anew, and adds the Services whose hints no longer fit.
func (c *Controller) nodesChanged(add func(key string)) error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	// All that it says is, at each change of a Node, which nodes have no zone.
	c.topology.SetNodes(logr.Discard(), nodes)
	for _, key := range c.topology.GetOverloadedServices() {
		add(key)
	}
	return nil
}

// logr is the log for the library, which says little.
func (c *Controller) logr() logr.Logger { return logr.FromSlogHandler(c.log.Handler()) }

func (c *Controller) sync(_ context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	svc, err := c.services.Services(ns).Get(name)
	if apierrors.IsNotFound(err) {
		c.triggers.DeleteService(ns, name)
		c.tracker.DeleteService(ns, name)
		c.reconciler.DeleteService(ns, name)
		c.stale(key, false)
		return 0, nil // the garbage collector has the slices
	}
	if err != nil {
		return 0, err
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.Selector == nil {
		return 0, nil // whoever makes the Service says where it leads
	}
	pods, err := c.pods.Pods(ns).List(labels.ValidatedSetSelector(svc.Spec.Selector))
	if err != nil {
		return 0, err
	}
	have, err := c.slicesOf(ns, name)
	if err != nil {
		return 0, err
	}
	have = living(have)
	if c.stale(key, c.tracker.StaleSlices(svc, have)) {
		return 0, loop.Quiet(errStale)
	}
	// Taken before the write: what changes in between has a time of its own.
	since := c.triggers.ComputeEndpointLastChangeTriggerTime(ns, svc, pods)
	if err := c.reconciler.Reconcile(c.logr(), svc, pods, have, since); err != nil {
		c.events.Eventf(svc, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices", "Error updating Endpoint Slices for Service %s/%s: %v", ns, name, err)
		return 0, fmt.Errorf("endpoint slices of service %s: %w", key, err)
	}
	return 0, nil
}

// stale notes whether what was written has not been seen yet, and says whether to wait for it: for
// staleFor at most. What was taken away before the library had noted it is never seen.
func (c *Controller) stale(key string, is bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !is {
		delete(c.since, key)
		return false
	}
	since, ok := c.since[key]
	if !ok {
		since = time.Now()
		c.since[key] = since
	}
	if time.Since(since) < staleFor {
		return true
	}
	delete(c.since, key)
	if ns, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
		c.tracker.DeleteService(ns, name)
	}
	return false
}

// staleFor is longer than any cache should be behind.
const staleFor = 30 * time.Second

var errStale = errors.New("what was written last has not been seen yet")

// living leaves those of all that nobody is deleting.
func living(all []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(all, func(s *discoveryv1.EndpointSlice) bool { return s.DeletionTimestamp != nil })
}
