// Package nodeipam gives each node the range that its pods get their addresses
// from: a block of the cluster's range, or one of each of its two ranges if it
// has an IPv4 and an IPv6 one.
//
// Who has which block is written nowhere but in the nodes. A Run begins by
// reading it from all of them, and no block is given away before that. What
// nodes hold without having been given it here counts as taken too, and a block
// that two nodes hold is free when both are gone.
//
// What it is not: it sets up no network. It routes nothing and tells nobody but
// the Node object.
package nodeipam

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Bounds of a Config that leaves them zero.
const (
	DefaultMaskSizeIPv4 = 24
	DefaultMaskSizeIPv6 = 64
	DefaultWorkers      = 30
	DefaultMinRetry     = 100 * time.Millisecond
	DefaultMaxRetry     = 30 * time.Second
)

// Config configures a Controller. The zero value is good and allocates nothing.
// Ranges are as on the command line, which Check names in its errors.
type Config struct {
	Allocate bool // --allocate-node-cidrs; if it is not set the rest is of no account
	// ClusterCIDR is --cluster-cidr: a range, or one of IPv4 and one of IPv6 with a
	// comma between them. Nodes get their blocks in this order.
	ClusterCIDR string
	// ServiceCIDR is --service-cluster-ip-range, one range or more. Blocks of
	// ClusterCIDR that have addresses in common with it are given to nobody; there
	// must be others. Empty means that it is not known here.
	ServiceCIDR string
	// MaskSize is --node-cidr-mask-size, the length of a block's prefix in bits,
	// for a cluster of one range; MaskSizeIPv4 and MaskSizeIPv6 are
	// --node-cidr-mask-size-ipv4 and -ipv6. Zero means DefaultMaskSizeIPv4 and
	// DefaultMaskSizeIPv6.
	MaskSize, MaskSizeIPv4, MaskSizeIPv6 int

	Workers int // nodes worked on at once; zero means DefaultWorkers
	// MinRetry and MaxRetry bound the wait before a node that could not be served
	// is tried again. One that waits for a free block is tried as soon as there is
	// one, too. Zero means DefaultMinRetry and DefaultMaxRetry.
	MinRetry, MaxRetry time.Duration
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.BoolVar(&c.Allocate, "allocate-node-cidrs", false, "give each node a block of --cluster-cidr for its pods")
	f.StringVar(&c.ClusterCIDR, "cluster-cidr", "", "addresses of pods: a range, or one of IPv4 and one of IPv6 with a comma between them")
	f.IntVar(&c.MaskSize, "node-cidr-mask-size", 0, "prefix length of a node's block of --cluster-cidr (default 24, and 64 for IPv6)")
	f.IntVar(&c.MaskSizeIPv4, "node-cidr-mask-size-ipv4", 0, "prefix length of a node's IPv4 block, where --cluster-cidr has two ranges")
	f.IntVar(&c.MaskSizeIPv6, "node-cidr-mask-size-ipv6", 0, "prefix length of a node's IPv6 block, where --cluster-cidr has two ranges")
}

// A Controller is Kubernetes' node-ipam-controller with its range allocator.
type Controller struct {
	cfg     Config
	events  record.EventRecorder
	client  kubernetes.Interface
	nodes   corelisters.NodeLister
	inf     cache.SharedIndexInformer
	metrics *metrics
	log     *slog.Logger
}

// New returns a controller that watches through d.Informers. It fails as Check does, or if
// the metrics cannot be registered.
func New(d loop.Deps, c Config) (*Controller, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.MinRetry, DefaultMinRetry)
	loop.Default(&c.MaxRetry, DefaultMaxRetry)
	m, err := newMetrics(d.Metrics)
	if err != nil {
		return nil, err
	}
	n := d.Informers.Core().V1().Nodes()
	ctl := &Controller{cfg: c, events: loop.Recorder(d.Events), client: d.Client, nodes: n.Lister(), inf: n.Informer(), metrics: m}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "node-ipam-controller" }

// Run allocates until ctx is done; if allocation is off that is all it waits for.
// The informers must be running. A node that holds what is no part of the cluster's
// ranges, or what another holds, is told of in the log, by an event and a metric; the
// others are served.
func (c *Controller) Run(ctx context.Context) error {
	if !c.cfg.Allocate {
		<-ctx.Done()
		return nil
	}
	if !cache.WaitForCacheSync(ctx.Done(), c.inf.HasSynced) {
		return nil
	}
	pools, err := c.cfg.pools()
	if err != nil {
		return err
	}
	r := &run{Controller: c, outage: loop.NewOutage(c.log), ledger: newLedger(pools, c.metrics)}
	if err = r.readAll(); err != nil {
		return err
	}
	r.queue = loop.NewQueue(loop.Config[string]{
		Name: c.Name(), Do: r.sync, Workers: c.cfg.Workers,
		MinDelay: c.cfg.MinRetry, MaxDelay: c.cfg.MaxRetry, Log: c.log,
	})
	stop, err := loop.WatchIf(c.inf, concerns, r.queue.Add)
	if err != nil {
		return err
	}
	defer stop()
	return r.queue.Run(ctx)
}

// A run is the state of one call of Run.
type run struct {
	*Controller
	queue  *loop.Queue[string] // of nodes, by name
	outage *loop.Outage

	mu     sync.Mutex
	ledger *ledger // guarded by mu
}

// concerns tells whether a change of a node is about its ranges or its end.
// Nodes report their status often.
func concerns(was, is *corev1.Node) bool {
	return was.UID != is.UID || (was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		!slices.Equal(podCIDRs(was), podCIDRs(is))
}

// podCIDRs returns the ranges of a node, which may have only the older field.
func podCIDRs(n *corev1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

// readAll notes what all nodes hold.
func (r *run) readAll() error {
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range nodes {
		if held := podCIDRs(n); len(held) > 0 {
			r.noteLocked(n, held)
		}
	}
	return nil
}

// noteLocked notes what a node holds by its own account. What is wrong with it is
// told, and the rest is noted nevertheless.
func (r *run) noteLocked(n *corev1.Node, held []string) {
	blocks, err := r.ledger.parse(held)
	shared := r.ledger.hold(n.Name, n.UID, blocks)
	m := r.ledger.member(n.Name, n.UID)
	if shared && r.complainLocked(m, n, reasonShared) {
		r.metrics.refused.WithLabelValues("shared").Inc()
		r.log.Warn("node holds addresses that another node holds too; delete one of them to have it given others", "node", n.Name, "ranges", held)
	}
	if err != nil && r.complainLocked(m, n, reasonForeign) {
		r.metrics.refused.WithLabelValues("foreign").Inc()
		r.log.Warn("node holds a range that it should not; delete the node to have it given another, or set --cluster-cidr to what it was", "node", n.Name, "err", err)
	}
}
