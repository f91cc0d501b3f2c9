// Package controlplane runs the controllers: the loops that make the cluster
// what its objects say it should be.
//
// Each controller is a package of its own below this one and knows no other.
// Here they are made from one table, given what they share (clients, informers,
// an event recorder) and run side by side. One that fails, by an error or by a
// panic, is started again by itself after a pause, while the others go on; it
// begins from what the API server holds, so nothing is lost with it.
//
// All a controller gets of the cluster is a client, so the same loops run beside
// this project's API server and beside any other. Run does not care who called
// it: it can be the whole life of a process, or what a leader does while it is
// one.
//
// What it is not: the API server is not made here (package apiserver is below
// this one too), nor is anything dialed.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// A Controller is a loop with a name. Run returns nil when ctx is done, having
// joined all it started, and may be called again. It returns an error for a
// fault that it cannot get over by itself.
type Controller interface {
	Name() string
	Run(ctx context.Context) error
}

// Bounds of a Config that leaves them zero.
const (
	DefaultQPS        = 200
	DefaultBurst      = 400
	DefaultMinRestart = time.Second
	DefaultMaxRestart = time.Minute
)

// Config configures a ControlPlane. Client, SigningCertFile and SigningKeyFile
// are required; the latter two only if the signer is enabled.
type Config struct {
	// Client is how the controllers reach the API server, as
	// system:kube-controller-manager. SchedulerClient is the scheduler's, as
	// system:kube-scheduler; nil means Client. A QPS of zero means DefaultQPS
	// and DefaultBurst.
	Client, SchedulerClient *rest.Config
	// Enabled names the controllers to run: "*" for all, NAME to add one, -NAME
	// to leave one out. Nil means all.
	Enabled []string

	// SigningCertFile and SigningKeyFile are the authority that signs
	// certificates, and SigningDuration the longest that they last; zero means
	// csr.DefaultDuration.
	SigningCertFile, SigningKeyFile string
	SigningDuration                 time.Duration
	// RequestCleanPeriod is how often certificate requests that are done with
	// are looked for; zero means csr.DefaultCleanPeriod.
	RequestCleanPeriod time.Duration
	// NamespaceRecheck is how soon a namespace that is being deleted is looked at
	// again; zero means namespace.DefaultRecheck.
	NamespaceRecheck time.Duration
	// SchedulerMinBackoff and SchedulerMaxBackoff bound how long a pod that fits
	// nowhere waits; zero means the scheduler's defaults.
	SchedulerMinBackoff, SchedulerMaxBackoff time.Duration

	// MinRestart and MaxRestart bound the pause before a controller that failed
	// is started again: the first time MinRestart, then twice as long each time,
	// until it has run for ten times MaxRestart. Zero means DefaultMinRestart and
	// DefaultMaxRestart.
	MinRestart, MaxRestart time.Duration

	Metrics prometheus.Registerer // nil means none
	Log     *slog.Logger          // nil means discard
}

// A ControlPlane is a set of controllers.
type ControlPlane struct {
	cfg     Config
	log     *slog.Logger
	entries []entry
	metrics *metrics
	ready   chan struct{}
	once    sync.Once // closes ready
}

// New checks c. It starts nothing.
func New(c Config) (*ControlPlane, error) {
	if c.Client == nil {
		return nil, errors.New("controllers: no client configuration")
	}
	if c.SchedulerClient == nil {
		c.SchedulerClient = c.Client
	}
	if c.MinRestart <= 0 {
		c.MinRestart = DefaultMinRestart
	}
	if c.MaxRestart <= 0 {
		c.MaxRestart = DefaultMaxRestart
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	entries, err := enabled(c.Enabled)
	if err != nil {
		return nil, err
	}
	return &ControlPlane{
		cfg: c, log: c.Log, entries: entries, metrics: newMetrics(c.Metrics), ready: make(chan struct{}),
	}, nil
}

// Ready is closed once the caches have been filled and every controller has
// been started.
func (p *ControlPlane) Ready() <-chan struct{} { return p.ready }

// Run runs the controllers until ctx is done. It returns an error at once if
// they cannot be made, and nil when asked to stop.
func (p *ControlPlane) Run(ctx context.Context) error {
	s, err := p.share(ctx)
	if err != nil {
		return err
	}
	defer s.events.Shutdown()
	var cs []Controller
	for _, e := range p.entries {
		c, err := e.make(s)
		if err != nil {
			return fmt.Errorf("make %s: %w", e.name, err)
		}
		cs = append(cs, c)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer s.informers.Shutdown() // waits for the informers, which end with ctx
	defer cancel()
	s.informers.Start(ctx.Done())
	for typ, ok := range s.informers.WaitForCacheSync(ctx.Done()) {
		if !ok {
			p.log.Debug("stopped before a cache was filled", "type", typ)
			return nil
		}
	}
	return p.runAll(ctx, cs)
}

func (p *ControlPlane) runAll(ctx context.Context, cs []Controller) error {
	var wg sync.WaitGroup
	for _, c := range cs {
		wg.Go(func() { p.supervise(ctx, c) })
	}
	p.once.Do(func() { close(p.ready) })
	p.log.Info("controllers started", "count", len(cs))
	wg.Wait()
	return nil
}

// supervise runs one controller, again and again, until ctx is done.
func (p *ControlPlane) supervise(ctx context.Context, c Controller) {
	log := p.log.With("controller", c.Name())
	for pause := time.Duration(0); ; {
		p.metrics.running(c.Name(), true)
		began := time.Now()
		err := loop.Protect(func() error { return c.Run(ctx) })
		p.metrics.running(c.Name(), false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > 10*p.cfg.MaxRestart {
			pause = 0
		}
		pause = min(max(2*pause, p.cfg.MinRestart), p.cfg.MaxRestart)
		p.metrics.restart(c.Name())
		attrs := []any{"error", err, "in", pause}
		if broken := new(loop.PanicError); errors.As(err, &broken) {
			attrs = append(attrs, "stack", string(broken.Stack))
		}
		log.Error("controller ended; it will be started again", attrs...)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// shared is what controllers are made from.
type shared struct {
	cfg       Config
	log       *slog.Logger
	client    kubernetes.Interface
	scheduler kubernetes.Interface
	objects   metadata.Interface
	informers informers.SharedInformerFactory
	events    record.EventBroadcaster
}

func (p *ControlPlane) share(ctx context.Context) (*shared, error) {
	client, err := kubernetes.NewForConfig(tuned(p.cfg.Client, "controllers"))
	if err != nil {
		return nil, fmt.Errorf("make the controllers' client: %w", err)
	}
	scheduler, err := kubernetes.NewForConfig(tuned(p.cfg.SchedulerClient, "scheduler"))
	if err != nil {
		return nil, fmt.Errorf("make the scheduler's client: %w", err)
	}
	objects, err := metadata.NewForConfig(tuned(p.cfg.Client, "controllers"))
	if err != nil {
		return nil, fmt.Errorf("make the controllers' client: %w", err)
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: scheduler.CoreV1().Events("")})
	return &shared{
		cfg: p.cfg, log: p.log, client: client, scheduler: scheduler, objects: objects,
		informers: informers.NewSharedInformerFactory(client, 0), events: events,
	}, nil
}

// recorder returns a recorder of events that come from component.
func (s *shared) recorder(component string) record.EventRecorder {
	return s.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}

// tuned returns a copy of c with what every controller wants of a client.
func tuned(c *rest.Config, name string) *rest.Config {
	c = rest.CopyConfig(c)
	rest.AddUserAgent(c, name)
	if c.QPS == 0 {
		c.QPS, c.Burst = DefaultQPS, DefaultBurst
	}
	if c.ContentType == "" {
		c.ContentType = "application/vnd.kubernetes.protobuf"
		c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	}
	return c
}

// Names returns the names of all controllers, which are Kubernetes' own.
func Names() []string {
	var out []string
	for _, e := range table() {
		out = append(out, e.name)
	}
	return out
}

// enabled returns what of the table the selection asks for. An exact name, or
// -name, goes before a star.
func enabled(selection []string) ([]entry, error) {
	if selection == nil {
		selection = []string{"*"}
	}
	all := table()
	for _, s := range selection {
		name := strings.TrimPrefix(s, "-")
		if s != "*" && !slices.ContainsFunc(all, func(e entry) bool { return e.called(name) }) {
			return nil, fmt.Errorf("controllers: there is no %q; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	return slices.DeleteFunc(all, func(e entry) bool { return !e.on(selection) }), nil
}
