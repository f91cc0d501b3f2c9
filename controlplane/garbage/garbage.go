// Package garbage deletes what has no owner any more, and carries out deletions
// that wait for dependents or let them go.
//
// It watches the metadata of every kind of object there is and keeps a graph of
// who depends on whom, by uid. The graph says what to look at; what is done is
// decided by the objects as the API server has them at that moment.
//
//	in the background   an owner is gone: each dependent that has no other owner
//	                    left is deleted; one that has loses the reference
//	in the foreground   an owner waits with the finalizer foregroundDeletion: its
//	                    dependents are deleted first, and it goes when none is
//	                    left whose reference says blockOwnerDeletion
//	orphaning           an owner waits with the finalizer orphan: the references
//	                    to it are taken away, then it goes; a dependent that is
//	                    seen only afterwards loses its reference, too
//
// An owner that was never seen, because its kind is not watched or its event is
// still to come, stands in the graph as a virtual node; before anything is
// deleted for its sake the API server is asked whether it exists. An owner in
// another namespace does not count as one, and its would-be dependent is told by
// an event.
//
// What it is not: it knows nothing of any kind in particular, and it does not
// collect pods that have ended or lost their node.
package garbage

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/lru"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Bounds of a Config that leaves them zero, and of what is remembered.
const (
	DefaultWorkers  = 20
	DefaultRefresh  = 30 * time.Second
	DefaultPatience = 30 * time.Second
	absentOwners    = 500
	orphanedOwners  = 500
	maxDelay        = 1000 * time.Second
)

// Config configures a Controller. The zero value is good.
type Config struct {
	// Workers is how many objects are worked on at once, of those to delete and
	// of those to orphan each (--concurrent-gc-syncs); zero means DefaultWorkers.
	Workers int
	// Refresh is how often the API server is asked which kinds there are; zero
	// means DefaultRefresh.
	Refresh time.Duration
	// Patience is how long deletions wait for kinds that are new to be listed;
	// zero means DefaultPatience.
	Patience time.Duration
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-gc-syncs", DefaultWorkers, "objects that the garbage collector works on at once")
}

// A Controller is Kubernetes' garbage-collector-controller.
type Controller struct {
	cfg       Config
	events    record.EventRecorder
	objects   metadata.Interface
	discovery discovery.DiscoveryInterface
	metrics   *metrics
	log       *slog.Logger
}

// New returns a controller that finds out by client which kinds there are and
// watches and changes their objects by objects.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.Refresh, DefaultRefresh)
	loop.Default(&c.Patience, DefaultPatience)
	ctl := &Controller{cfg: c, events: loop.Recorder(d.Events), objects: d.Objects, discovery: d.Client.Discovery(), metrics: newMetrics(d.Metrics)}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "garbage-collector-controller" }

// Run collects until ctx is done. It fills its own caches first.
func (c *Controller) Run(ctx context.Context) error {
	r := &run{Controller: c, graph: newGraph(), absent: lru.New(absentOwners), orphaned: lru.New(orphanedOwners)}
	r.deletes = loop.NewQueue(loop.Config[types.UID]{Name: "garbage_collector_attempt_to_delete", Do: r.open(r.delete), Workers: c.cfg.Workers, MaxDelay: maxDelay, Log: c.log})
	r.orphans = loop.NewQueue(loop.Config[types.UID]{Name: "garbage_collector_attempt_to_orphan", Do: r.open(r.orphan), Workers: c.cfg.Workers, MaxDelay: maxDelay, Log: c.log})
	m := &monitors{run: r, running: make(map[kind]*monitor)}
	listed := make(chan struct{})
	once := sync.OnceFunc(func() { close(listed) })
	after := func(f func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-listed:
				return f(ctx)
			case <-ctx.Done():
				return nil
			}
		}
	}
	return loop.Together(ctx, func(ctx context.Context) error { return m.keep(ctx, once) }, after(r.deletes.Run), after(r.orphans.Run))
}

// A run is the state of one Run.
type run struct {
	*Controller
	graph   *graph
	absent  *lru.Cache // of identity: owners that do not exist
	deletes *loop.Queue[types.UID]
	orphans *loop.Queue[types.UID]

	// orphaned holds the uids of the latest owners that were deleted with the policy Orphan.
	// Each kind has a watch of its own, so a dependent may be seen only after its owner is
	// gone.
	orphaned *lru.Cache

	listing sync.RWMutex // held for writing while new kinds are listed
	kinds   kinds        // has its own lock
}

// open lets f work unless kinds are being listed: then it would not know all
// dependents.
func (r *run) open(f loop.Reconcile[types.UID]) loop.Reconcile[types.UID] {
	return func(ctx context.Context, uid types.UID) (time.Duration, error) {
		r.listing.RLock()
		defer r.listing.RUnlock()
		return f(ctx, uid)
	}
}

// do puts what the graph says is to be looked at into the queues.
func (r *run) do(w work) {
	for _, uid := range w.delete {
		r.deletes.Add(uid)
	}
	for _, uid := range w.orphan {
		r.orphans.Add(uid)
	}
	for _, s := range w.invalidOwners {
		r.events.Eventf(s.dependent.reference(), "Warning", "OwnerRefInvalidNamespace", "ownerRef %s does not exist in namespace %q", s.owner, s.dependent.namespace)
	}
}
