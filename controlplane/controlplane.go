// Package controlplane runs the controllers: the loops that make the cluster
// what its objects say it should be.
//
// Each controller is a package of its own below this one and knows no other. It is made
// by New(loop.Deps, Config), and what can be set of it by flags is added by its Config's
// AddFlags. Here they are made from one table, given what they share (clients, informers,
// an event recorder, metrics, a log) and run side by side. One that fails, by an error or by a
// panic, is started again by itself after a pause, while the others go on; it
// begins from what the API server holds, so nothing is lost with it. Each waits for
// the kinds that it watches, and for no others: one that cannot be listed, for want
// of permission or because of an object that cannot be read, stops only those who
// need it.
//
// All a controller gets of the cluster is a client, so the same loops run beside
// this project's API server and beside any other.
//
// Of several processes that run controllers for one cluster only the leader's act
// (package leader), but for the few that speak of their own process alone.
//
// What it is not: the API server is not made here (package apiserver is below
// this one too), nor is anything dialed.
package controlplane

import (
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/controlplane/cronjob"
	"github.com/hawser-project/hawser/controlplane/csr"
	"github.com/hawser-project/hawser/controlplane/daemonset"
	"github.com/hawser-project/hawser/controlplane/deployment"
	"github.com/hawser-project/hawser/controlplane/endpointslice"
	"github.com/hawser-project/hawser/controlplane/garbage"
	"github.com/hawser-project/hawser/controlplane/job"
	"github.com/hawser-project/hawser/controlplane/leader"
	"github.com/hawser-project/hawser/controlplane/loadbalancer"
	"github.com/hawser-project/hawser/controlplane/nodeipam"
	"github.com/hawser-project/hawser/controlplane/nodelifecycle"
	"github.com/hawser-project/hawser/controlplane/podgc"
	"github.com/hawser-project/hawser/controlplane/replicaset"
	"github.com/hawser-project/hawser/controlplane/resourcequota"
	"github.com/hawser-project/hawser/controlplane/statefulset"
	"github.com/hawser-project/hawser/controlplane/ttlafterfinished"
)

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS

// Bounds of a Config that leaves them zero.
const (
	DefaultQPS        = 2000 // a zone of a thousand nodes is lost in a second
	DefaultBurst      = 4000
	DefaultMinRestart = time.Second
	DefaultMaxRestart = time.Minute
	DefaultReadyBound = 30 * time.Second
)

// Config configures a ControlPlane. Client is required, and the files of Signer if the signer
// is enabled.
type Config struct {
	// Client is how the controllers reach the API server, as
	// system:kube-controller-manager. SchedulerClient is the scheduler's, as
	// system:kube-scheduler; nil means Client. A QPS of zero means DefaultQPS
	// and DefaultBurst.
	Client, SchedulerClient *rest.Config
	// Enabled names the controllers to run: "*" for all, NAME to add one, -NAME
	// to leave one out. Nil means all.
	Enabled []string

	// Signer is the authority that signs certificates, and how long they last. Files and
	// Server are filled in.
	Signer csr.SignerConfig
	// Files reads those of authorities, whenever they have changed. Nil means one of its own.
	Files *auth.Files
	// ServerNames are those of the API server, which no node gets; nil means those
	// that every server has.
	ServerNames *auth.ServerNames
	// RequestCleanPeriod is how often certificate requests that are done with
	// are looked for; zero means csr.DefaultCleanPeriod.
	RequestCleanPeriod time.Duration
	// NamespaceRecheck is how soon a namespace that is being deleted is looked at
	// again; zero means namespace.DefaultRecheck.
	NamespaceRecheck time.Duration
	// Lifecycle says when nodes are lost and how fast they are evicted from; zero
	// means nodelifecycle.DefaultPolicy.
	Lifecycle nodelifecycle.Policy
	// Tunnel is what this process knows of the nodes' tunnels; nil means that it
	// has none.
	Tunnel *Tunnel
	// LoadBalancer is where this process listens for Services. Nil means nowhere.
	LoadBalancer *loadbalancer.Config
	// PodGC is the pod garbage collector's, and IPAM the allocator's of pod CIDRs.
	PodGC podgc.Config
	IPAM  nodeipam.Config
	// CollectGarbage says whether objects go with their owners. The API server
	// must have been told the same.
	CollectGarbage bool
	// The following are the configurations of the controllers of these names.
	Garbage       garbage.Config
	Deployment    deployment.Config
	ReplicaSet    replicaset.Config
	DaemonSet     daemonset.Config
	StatefulSet   statefulset.Config
	Job           job.Config
	CronJob       cronjob.Config
	EndpointSlice endpointslice.Config
	Endpoints     endpointslice.EndpointsConfig
	Mirror        endpointslice.MirrorConfig
	FinishedJob   ttlafterfinished.Config
	Quota         resourcequota.Config
	// SchedulerMinBackoff and SchedulerMaxBackoff bound how long a pod that fits
	// nowhere waits; zero means the scheduler's defaults.
	SchedulerMinBackoff, SchedulerMaxBackoff time.Duration

	// Leader is how a leader is elected among those who run the same controllers
	// for one cluster; its Client, Events and Log are filled in. Nil means that
	// nobody else does.
	Leader *leader.Config

	// MinRestart and MaxRestart bound the pause before a controller that failed
	// is started again: the first time MinRestart, then twice as long each time,
	// until it has run for ten times MaxRestart. Zero means DefaultMinRestart and
	// DefaultMaxRestart.
	MinRestart, MaxRestart time.Duration
	// ReadyBound is how long Ready waits for kinds that cannot be listed. The
	// controllers that watch them start later, when they can. Zero means
	// DefaultReadyBound.
	ReadyBound time.Duration

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
	roster  roster
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
	if c.ReadyBound <= 0 {
		c.ReadyBound = DefaultReadyBound
	}
	if c.Files == nil {
		c.Files = &auth.Files{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	entries, err := enabled(c.Enabled)
	if err != nil {
		return nil, err
	}
	if c.Leader != nil {
		if err := c.Leader.Check(); err != nil {
			return nil, err
		}
	}
	p := &ControlPlane{
		cfg: c, log: c.Log, entries: entries, metrics: newMetrics(c.Metrics), ready: make(chan struct{}),
	}
	if c.Metrics != nil {
		c.Metrics.MustRegister(newMissingKinds(p.Missing))
	}
	return p, nil
}

// Names returns the names of all controllers, which are Kubernetes' own.
func Names() []string {
	var out []string
	for _, e := range table() {
		out = append(out, e.name)
	}
	return out
}

// CheckEnabled says whether a selection of controllers (Config.Enabled) makes sense.
func CheckEnabled(selection []string) error {
	_, err := enabled(selection)
	return err
}

// Selected says whether a selection that makes sense has the controller of a name.
func Selected(selection []string, name string) bool {
	entries, err := enabled(selection)
	return err == nil && slices.ContainsFunc(entries, func(e entry) bool { return e.called(name) })
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
