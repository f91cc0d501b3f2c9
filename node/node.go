// Package node is a node of the cluster: it registers itself, says every ten
// seconds that it is alive, and runs the pods bound to it.
//
// Two heartbeats are independent of each other. The Lease is renewed every quarter
// of its duration, whatever else fails. The status is computed every update period
// and written only when something has changed, or when the report period is over.
// What a status consists of are pure functions of what the machine, the runtime
// and the configuration say.
//
// Nothing of this needs the API to be within reach: pods are kept running, and kept
// on disk, until the API says otherwise. A node whose object is deleted goes on
// without one, as far as the server lets it, and is made anew when it starts again. A
// node that the server does not take for the node any more, because another agent has
// its identity or because its key does not hold the name, stands back, behind a
// fence.Fence, until the server does; then it registers anew.
//
// It is not the agent: it knows no tunnel. It talks to the API server through the
// client it is given, wherever that client's connections go. It serves no API
// either; package kubeletapi does, and learns from Pods what it needs. Containers
// are run by a runtime.Runtime.
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

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

// maxAddresses is how many addresses of a Node its certificate names: who may write its
// status writes them.
const maxAddresses = 64

// KubeletPort is the port under which the kubelet API of a node is known. Nothing
// listens on it, unless the node is reached without a tunnel: it is a name within
// the tunnel.
const KubeletPort = 10250

// Config of a Node. Zero values mean the defaults named.
type Config struct {
	Name    string               // required; see ParseName
	API     kubernetes.Interface // required; see NewAPI
	Runtime runtime.Runtime      // required
	DataDir string               // required: an existing directory, the node's own
	Version string               // kubeletVersion. Required

	// CloseConnections drops the client's connections when heartbeats fail again
	// and again, so that the next try is not made on one that is dead. May be nil.
	CloseConnections func()

	// NoRegister keeps the node from creating its object; it then waits for
	// somebody to make one. Labels and Taints mean nothing then.
	NoRegister bool
	// Labels and Taints are set when the object is created, not later.
	Labels map[string]string // see ParseLabels
	Taints []corev1.Taint    // see ParseTaints
	// Annotations are what the node alone knows of itself: they are set whenever the
	// node starts, and one whose value is empty is taken away.
	Annotations   map[string]string
	Unschedulable bool
	ProviderID    string
	// ExternalCloud leaves addresses to a cloud controller manager, and has no pods
	// scheduled before it has seen the node.
	ExternalCloud bool

	// IPs of the node, primary first; empty means to find them. See ParseIPs.
	IPs []netip.Addr
	// Hostname address; empty means Name.
	Hostname string
	// KubeletPort is the port of the kubelet API that the status tells of; zero means
	// the constant of that name.
	KubeletPort int32

	MaxPods int // 110
	// MaxImages is how many images the status lists, the largest ones; -1 means all,
	// nil DefaultMaxImages.
	MaxImages *int
	// Reserved is what pods may not have of the machine. See ParseReserved.
	Reserved   corev1.ResourceList
	Thresholds Thresholds

	StatusUpdate  time.Duration // how often the status is computed: 10 s
	StatusReport  time.Duration // how often it is written without a change: 5 min, or StatusUpdate where only that is set
	LeaseDuration time.Duration // renewed every quarter of it, full seconds: 40 s

	// Fence is up while another agent with this node's identity is the node: no
	// heartbeat is sent then, and no pod runs. Nil means never. See package fence.
	Fence *fence.Fence

	// Shutdown has a shutdown of the machine wait until pods have ended, in these phases,
	// the lowest priority first. None, or none with a grace, means that it does not.
	Shutdown []pods.Phase

	// ManifestPath is a directory of files that define static pods, or one such file;
	// empty means none. They are read every ManifestPeriod: staticpods.DefaultPeriod.
	ManifestPath   string
	ManifestPeriod time.Duration

	// Pods tunes how pods are run; what names the node in it is filled in here.
	Pods pods.Config

	Registerer prometheus.Registerer // nil means no metrics
	Log        *slog.Logger          // nil discards
}

// A Node is made by New.
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
	hurry     chan struct{}            // has the status written at once

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
		// The uid of a Node in its own events is its name, so that they can be found
		// before there is an object.
		ref: corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: cfg.Name, UID: typesUID(cfg.Name)},
	}
	n.resolve = n.findAddresses
	n.events = events.New(events.Config{
		Sink: func(namespace string) events.Sink { return cfg.API.CoreV1().Events(namespace) },
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

// Pods answers for the pods of the node; it is what kubeletapi asks.
func (n *Node) Pods() *pods.Runner { return n.pods }

// IPs returns the InternalIPs of the node as last found, primary first. It is nil
// until they have been looked for.
func (n *Node) IPs() []string {
	if p := n.addresses.Load(); p != nil {
		return *p
	}
	return nil
}

// Addresses are those that the API has of the node. There are none before they are known,
// which takes until a cloud controller manager has seen the node where one is to set them.
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
	// The libraries of Kubernetes log through the context. What a user has to know
	// is said here; theirs is detail.
	ctx = logr.NewContext(ctx, logr.FromSlogHandler(demoted{n.log.Handler()}))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.refreshAddresses(ctx)
	if n.static != nil {
		n.static.Read() // before what an earlier run has left is judged by it
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
			n.self.set(nil) // what becomes of it behind the fence is not known
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
	// Behind the fence the object may have been deleted, and what it says may be
	// another agent's.
	n.status.reportAt = time.Time{}
	if !n.register(ctx) {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { n.renewLease(ctx) })
	n.updateStatus(ctx)
}

// tellFence says when the fence goes up and comes down, until ctx is done.
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

// demoted is a slog.Handler that makes every record a detail.
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
