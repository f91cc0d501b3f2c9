// Package node is a node of the cluster: it registers itself, renews its Lease every ten
// seconds, and runs the pods bound to it.
//
// Two heartbeats are independent of each other. The Lease is renewed every quarter of its
// duration, whatever else fails. The status is computed every update period and written
// only when something has changed, or when the report period is over. Each part of a status
// is a pure function of facts about the machine, the runtime and the configuration.
//
// None of this needs the API to be reachable: pods keep running, and are stored on disk,
// until the API says otherwise. If the Node object is deleted the node continues without
// one, as far as the server allows, and creates it when it starts again. If the server no
// longer accepts this agent as the node, because another agent has its identity or because
// its key lost the name, a fence.Fence stops heartbeats and pods until the server does;
// then the node registers again.
//
// It is not the agent: it knows no tunnel, and uses the API client that it is given. It
// serves no API either; package kubeletapi does, with data from Pods. Containers are run by
// a runtime.Runtime.
package node

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/node/events"
	"github.com/hawser-project/hawser/node/fence"
	"github.com/hawser-project/hawser/node/pods"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/staticpods"
)

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS

// maxAddresses bounds the addresses of a Node in its certificate, because any writer of its
// status can add some.
const maxAddresses = 64

// KubeletPort is the port of a node's kubelet API. It is only a name within the tunnel:
// nothing listens on it, unless the node is reached without a tunnel.
const KubeletPort = 10250

// Config of a Node. Zero values mean the defaults named.
type Config struct {
	Name    string          // required; see ParseName
	API     *apiclient.API  // required; see NewAPI
	Runtime runtime.Runtime // required
	DataDir string          // required: an existing directory, the node's own
	Version string          // kubeletVersion. Required

	// CloseConnections closes the client's connections when registering or heartbeats fail
	// repeatedly, so that the next try does not use a dead one. If there are several servers
	// the next connection should be to another. May be nil.
	CloseConnections func()

	// NoRegister keeps the node from creating its object; it waits until another client
	// creates it. Labels and Taints are then ignored.
	NoRegister bool
	// Labels and Taints are set when the object is created, not later.
	Labels map[string]string // see ParseLabels
	Taints []corev1.Taint    // see ParseTaints
	// Annotations are owned by the node: they are set whenever the node starts, and those
	// with an empty value are removed.
	Annotations   map[string]string
	Unschedulable bool
	ProviderID    string
	// ExternalCloud leaves addresses to a cloud controller manager, and adds the taint that
	// keeps pods away until that has initialized the node.
	ExternalCloud bool

	// IPs of the node, primary first; empty means to find them. See ParseIPs.
	IPs []netip.Addr
	// Hostname address; empty means Name.
	Hostname string
	// KubeletPort is the port of the kubelet API in the status; zero means the constant of
	// that name.
	KubeletPort int32

	MaxPods int // 110
	// MaxImages bounds the images in the status, the largest first; -1 means all, nil
	// DefaultMaxImages.
	MaxImages *int
	// Reserved are the machine's resources that are not allocatable to pods. See
	// ParseReserved.
	Reserved   corev1.ResourceList
	Thresholds Thresholds

	StatusUpdate  time.Duration // how often the status is computed: 10 s
	StatusReport  time.Duration // how often it is written without a change: 5 min, or StatusUpdate where only that is set
	LeaseDuration time.Duration // renewed every quarter of it, full seconds: 40 s

	// Fence is up while another agent with this node's identity is the node. Then no
	// heartbeat is sent and no pod runs. Nil means never. See package fence.
	Fence *fence.Fence

	// Shutdown has the phases in which pods are terminated when the machine shuts down, the
	// lowest priority first; the shutdown waits for them. It does not if there is no phase
	// with a grace period.
	Shutdown []pods.Phase

	// ManifestPath is a directory of files that define static pods, or one such file;
	// empty means none. They are read every ManifestPeriod: staticpods.DefaultPeriod.
	ManifestPath   string
	ManifestPeriod time.Duration

	// Pods configures how pods are run; New sets the fields about the node.
	Pods pods.Config

	Registerer prometheus.Registerer // nil means no metrics
	Log        *slog.Logger          // nil discards
}

// A Node registers, reports and runs pods; New makes one.
type Node struct {
	cfg     Config
	log     *slog.Logger
	machine *machine
	events  *events.Recorder
	pods    *pods.Runner
	static  *staticpods.Source // nil for none
	self    *self
	metrics *metrics
	ref     corev1.ObjectReference
	resolve func(ctx context.Context) ([]netip.Addr, error) // a seam of tests

	addresses atomic.Pointer[[]string] // InternalIPs, primary first
	down      atomic.Bool              // the machine shuts down
	hurry     chan struct{}            // requests a status write at once

	// Owned by heartbeat.
	status statusLoop
}

// New checks cfg and makes a Node. It starts nothing.
func New(cfg Config) (*Node, error) {
	switch {
	case cfg.API == nil || cfg.Runtime == nil:
		return nil, errors.New("node: Config.API and Runtime are required")
	case cfg.DataDir == "" || cfg.Version == "":
		return nil, errors.New("node: Config.DataDir and Version are required")
	}
	if problems := validation.IsDNS1123Subdomain(cfg.Name); len(problems) > 0 {
		return nil, fmt.Errorf("node name %q: %s", cfg.Name, problems[0])
	}
	if err := checkLabels(cfg.Labels); err != nil {
		return nil, fmt.Errorf("node labels: %w", err)
	}
	if err := defaults(&cfg); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	n := &Node{
		cfg:     cfg,
		log:     cfg.Log,
		machine: &machine{root: "/", dataDir: cfg.DataDir},
		self:    &self{},
		hurry:   make(chan struct{}, 1),
		metrics: newMetrics(cfg.Registerer),
		// The node's events refer to it with its name as uid, as the kubelet's do, because
		// there may be no object yet.
		ref: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: cfg.Name, UID: typesUID(cfg.Name)},
	}
	n.resolve = n.findAddresses
	n.events = events.New(events.Config{
		Sink: func(namespace string) events.Sink { return cfg.API.Events(namespace) },
		Host: cfg.Name, Log: cfg.Log,
	})
	p := cfg.Pods
	if cfg.ManifestPath != "" {
		var err error
		if n.static, err = staticpods.New(staticpods.Config{Path: cfg.ManifestPath, NodeName: cfg.Name, Period: cfg.ManifestPeriod, Log: cfg.Log}); err != nil {
			return nil, fmt.Errorf("node: %w", err)
		}
		p.Static = n.static
	}
	p.NodeName, p.API, p.Runtime, p.Events, p.Dir = cfg.Name, cfg.API, cfg.Runtime, n.events, cfg.DataDir
	p.Node, p.HostIPs, p.MaxPods, p.Log = n.self.node, n.IPs, cfg.MaxPods, cfg.Log
	p.Metrics, p.Fence = pods.NewMetrics(cfg.Registerer), cfg.Fence
	var err error
	if n.pods, err = pods.New(p); err != nil {
		return nil, err
	}
	n.self.changed = n.pods.Wake
	return n, nil
}

func defaults(cfg *Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.CloseConnections == nil {
		cfg.CloseConnections = func() {}
	}
	if cfg.StatusReport == 0 {
		cfg.StatusReport = cmp.Or(cfg.StatusUpdate, 5*time.Minute)
	}
	cfg.StatusUpdate = cmp.Or(cfg.StatusUpdate, 10*time.Second)
	cfg.LeaseDuration = cmp.Or(cfg.LeaseDuration, 40*time.Second)
	cfg.MaxPods = cmp.Or(cfg.MaxPods, 110)
	if cfg.MaxImages == nil {
		cfg.MaxImages = ptr.To(DefaultMaxImages)
	}
	cfg.Hostname = cmp.Or(cfg.Hostname, cfg.Name)
	cfg.KubeletPort = cmp.Or(cfg.KubeletPort, KubeletPort)
	return cfg.Thresholds.defaults()
}

// Pods returns the source of pods for kubeletapi.
func (n *Node) Pods() *pods.Runner { return n.pods }

// IPs returns the node's InternalIPs as last detected, primary first. It is nil before the
// first detection.
func (n *Node) IPs() []string {
	if p := n.addresses.Load(); p != nil {
		return *p
	}
	return nil
}

// Addresses returns the node's addresses in the API. There are none before they are known;
// with ExternalCloud the cloud controller manager sets them.
func (n *Node) Addresses() []netip.Addr {
	node := n.self.node()
	if node == nil || n.cfg.ExternalCloud && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == uninitialized }) {
		return nil
	}
	var all []netip.Addr
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type != corev1.NodeHostName && len(all) < maxAddresses {
			all = append(all, ip.Unmap().WithZone(""))
		}
	}
	return all
}

// Run registers the node, sends heartbeats and runs pods until ctx is done, and
// returns nil then. Pods keep running. An error means that the runtime has failed
// for good.
func (n *Node) Run(ctx context.Context) error {
	// Kubernetes' libraries log through the context. Their lines are logged at debug level.
	ctx = logr.NewContext(ctx, logr.FromSlogHandler(demoted{n.log.Handler()}))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.refreshAddresses(ctx)
	if n.static != nil {
		n.static.Read() // before pods of an earlier run are compared with it
	}
	n.events.Event(n.ref, corev1.EventTypeNormal, "Starting", "Starting kubelet.")

	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.pods.Run(ctx); err != nil {
			cancel(err)
		}
	})
	if n.static != nil {
		wg.Go(func() { n.static.Run(ctx, n.pods.Wake) })
	}
	wg.Go(func() { _ = n.events.Run(ctx) }) // never fails
	wg.Go(func() {
		n.cfg.Fence.While(ctx, func(ctx context.Context) {
			n.self.set(nil) // the object may change while the fence is up
			n.self.run(ctx, n.cfg)
		})
	})
	wg.Go(func() { n.tellFence(ctx) })
	wg.Go(func() {
		if err := n.watchShutdown(ctx); err != nil {
			cancel(err)
		}
	})
	wg.Go(func() { n.cfg.Fence.While(ctx, n.heartbeat) })
	<-ctx.Done()
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// heartbeat registers the node, once, and renews its Lease and status until ctx is
// done.
func (n *Node) heartbeat(ctx context.Context) {
	// While the fence was up the object may have been deleted, or written by another agent.
	n.status.reportAt = time.Time{}
	if !n.register(ctx) {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { n.renewLease(ctx) })
	n.updateStatus(ctx)
}

// tellFence logs when the fence goes up and down, until ctx is done.
func (n *Node) tellFence(ctx context.Context) {
	told := false
	for {
		up, changed := n.cfg.Fence.State()
		switch {
		case up && !told:
			n.log.Error("the server does not take this agent for the node any more: its pods are stopped here, and heartbeats end, until it does again", "node", n.cfg.Name)
		case !up && told:
			n.log.Info("the node is this agent's again", "node", n.cfg.Name)
		}
		told = up
		n.metrics.fence(up)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// demoted is a slog.Handler that logs every record at debug level.
type demoted struct{ slog.Handler }

// Enabled implements slog.Handler.
func (d demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	// logr does not ask Enabled about errors.
	if !d.Handler.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }
