// Package podgc removes pods that nobody else will.
//
// Kubernetes leaves a pod's end to the agent of its node: only there is it known
// that the containers have stopped. Four kinds of pod have nobody to do that, and
// every so often they are looked for and deleted by force: the oldest of those
// that have ended, once they are more than a threshold; those that are being
// deleted on a node that an administrator has declared out of service; those of
// nodes that do not exist any more; and those that were deleted before they had
// a node.
//
// A node that cannot be seen may merely not be known here yet, so its pods are
// left alone for a quarantine, and then the API server is asked.
//
// What it is not: a node that does not answer is not gone, and its pods are not
// touched, however long it takes.
package podgc

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Bounds of a Config that leaves them zero, and DefaultThreshold, which is what
// Kubernetes has for Config.Threshold.
const (
	DefaultThreshold  = 12500
	DefaultPeriod     = 20 * time.Second
	DefaultQuarantine = 40 * time.Second
	DefaultWorkers    = 8
)

// Config configures a Controller. The zero value keeps every pod that has ended
// and is good otherwise.
type Config struct {
	// Threshold is how many pods that have ended are kept; zero or less keeps all.
	Threshold int
	// Period is the time from one look to the next, and Quarantine how long a node
	// must have been missing before its pods are touched. Zero means DefaultPeriod
	// and DefaultQuarantine.
	Period, Quarantine time.Duration
	Workers            int // pods deleted at once; zero means DefaultWorkers
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Threshold, "terminated-pod-gc-threshold", DefaultThreshold, "pods that have ended and are kept; 0 keeps all")
	f.DurationVar(&c.Period, "pod-gc-sync-period", DefaultPeriod, "how often pods are looked for that nobody will end")
	f.DurationVar(&c.Quarantine, "pod-gc-orphan-quarantine", DefaultQuarantine, "how long a node must be missing before its pods are deleted")
}

// A Controller is Kubernetes' pod-garbage-collector-controller.
type Controller struct {
	cfg     Config
	client  kubernetes.Interface
	pods    corelisters.PodLister
	nodes   corelisters.NodeLister
	synced  []cache.InformerSynced
	metrics *metrics
	log     *slog.Logger
}

// New returns a controller that watches through d.Informers. It fails if the metrics cannot
// be registered.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Period, DefaultPeriod)
	loop.Default(&c.Quarantine, DefaultQuarantine)
	loop.Default(&c.Workers, DefaultWorkers)
	m, err := newMetrics(d.Metrics)
	if err != nil {
		return nil, err
	}
	pods, nodes := d.Informers.Core().V1().Pods(), d.Informers.Core().V1().Nodes()
	ctl := &Controller{
		cfg: c, client: d.Client, pods: pods.Lister(), nodes: nodes.Lister(), metrics: m,
		synced: []cache.InformerSynced{pods.Informer().HasSynced, nodes.Informer().HasSynced},
	}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "pod-garbage-collector-controller" }

// Run removes pods until ctx is done. The informers must be running. The
// quarantine of missing nodes begins anew with each Run.
func (c *Controller) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return nil
	}
	r := &run{Controller: c, outage: loop.NewOutage(c.log), missing: make(map[string]time.Time)}
	tick := time.NewTicker(c.cfg.Period)
	defer tick.Stop()
	for {
		if err := r.pass(ctx, time.Now()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// A run is the state of one call of Run, which alone uses it.
type run struct {
	*Controller
	outage  *loop.Outage
	missing map[string]time.Time // since when a node that pods are bound to has not been seen
}

// pass looks for all four kinds of pod, once. Its error is a panic; what the API
// server refuses is tried again with the next pass.
func (r *run) pass(ctx context.Context, now time.Time) error {
	pods, err := r.pods.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	known := make(map[string]*corev1.Node, len(nodes))
	for _, n := range nodes {
		known[n.Name] = n
	}
	chosen := terminated(pods, r.cfg.Threshold)
	chosen = append(chosen, outOfService(pods, known)...)
	chosen = append(chosen, orphaned(pods, r.gone(ctx, pods, known, now))...)
	chosen = append(chosen, unscheduled(pods)...)
	return r.removeAll(ctx, chosen)
}

// gone returns the nodes that pods are bound to and that do not exist: missing
// for the whole quarantine, and unknown to the API server.
func (r *run) gone(ctx context.Context, pods []*corev1.Pod, known map[string]*corev1.Node, now time.Time) map[string]bool {
	missing := make(map[string]time.Time)
	for _, p := range pods {
		name := p.Spec.NodeName
		if name == "" || known[name] != nil {
			continue
		}
		missing[name] = now
		if since, already := r.missing[name]; already {
			missing[name] = since
		}
	}
	r.missing = missing
	out := make(map[string]bool)
	for name, since := range missing {
		if now.Sub(since) < r.cfg.Quarantine {
			continue
		}
		exists, err := r.exists(ctx, name)
		if err = r.outage.Note(err); err != nil {
			r.complain(ctx, "cannot tell whether a node exists", err)
		}
		switch {
		case loop.Unreachable(err):
			return nil // nor can its pods be removed, or any others
		case err != nil:
		case exists:
			delete(missing, name)
		default:
			out[name] = true
		}
	}
	return out
}
