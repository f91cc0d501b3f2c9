// This file is the Runner: it has the workers and tells them what is wanted.

package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/node/fence"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/volumes"
)

// Events is where a Runner tells what happened. *events.Recorder is one.
type Events interface {
	Event(ref corev1.ObjectReference, eventType, reason, message string)
}

// DefaultPatience is Config.Patience where nothing else is said.
const DefaultPatience = 10 * time.Second

// Config of a Runner. Zero durations mean the defaults named.
type Config struct {
	NodeName string          // required
	API      *apiclient.API  // required
	Runtime  runtime.Runtime // required
	Events   Events          // required
	// Dir is the data directory. Pods are kept in DIR/pods/UID, logs in
	// DIR/logs/NAMESPACE_NAME_UID. Required.
	Dir string

	// Static has the pods that run whatever the API says; nil means none. Runner.Wake
	// tells that it may return others now.
	Static Static
	// Node returns the node as the API last had it, or nil while that is not known;
	// pods that have not been admitted then wait, except static ones. A nil func
	// admits without a node, and has no mirrors.
	// Runner.Wake tells that it may return something else now.
	Node func() *corev1.Node
	// HostIPs returns the addresses of the node, primary first. Nil means none.
	HostIPs func() []string
	// MaxPods is how many pods run at the same time where the node's allocatable
	// does not say; zero means 110.
	MaxPods int
	// APIServer is where programs in pods find the API server, HOST:PORT. Empty: they are
	// not told.
	APIServer string
	// PodMaxPIDs is how many processes a pod may have; zero means any number.
	PodMaxPIDs int64
	// SeccompDefault gives containers that name no seccomp profile RuntimeDefault
	// instead of Unconfined.
	SeccompDefault bool

	CrashDelay    time.Duration // wait before the second restart, doubled each time: 10 s
	MaxCrashDelay time.Duration // its bound: 5 min
	CrashReset    time.Duration // having run that long makes a container well again: 10 min
	RetryDelay    time.Duration // bound of retries of volumes, sandboxes, configuration: 10 s
	WriteRetry    time.Duration // bound of retries of writes to the API: 30 s
	VolumeRefresh time.Duration // how often content from the API is brought up to date: 60 s
	ObjectTTL     time.Duration // how long a ConfigMap or Secret read is good for: 30 s
	Housekeeping  time.Duration // how often leftovers are looked for: 2 min
	Collect       time.Duration // how often containers that have ended are: 1 min
	// Patience is how long containers that do not run wait at the start for the API
	// to say whether they still should; after that the files on disk say so: DefaultPatience.
	Patience time.Duration

	// Retention says which containers that have ended are kept. Nil means the
	// kubelet's defaults: one of each container, whatever its age.
	Retention *Retention

	// Fence is up while another agent with this node's identity runs the pods. Those
	// that run here are then stopped, each within its grace, and the API is told
	// nothing. Nil means never.
	Fence *fence.Fence

	Metrics *Metrics     // nil means none
	Log     *slog.Logger // nil discards
}

// A Runner runs the pods of one node.
type Runner struct {
	cfg     Config
	log     *slog.Logger
	places  places
	objects *objects
	volumes *volumes.Set
	// whereabouts are variables that each container has, and may have otherwise.
	whereabouts map[string]string
	lister      lister
	writes      chan struct{} // tokens of writes to the API under way
	removals    chan struct{} // tokens of removals of containers under way
	source      *source
	wake        chan struct{}
	mirroring   chan struct{} // wakes keepMirrors
	recalled    chan struct{} // closed once the pods of an earlier run are known

	mu      sync.Mutex
	workers map[types.UID]*worker
	// ended has the pods whose worker has ended while the API still listed them, so
	// that they are not taken for new ones.
	ended map[types.UID]bool
	// traces are the pods the runtime holds something of, as last listed, without
	// those whose worker has ended since.
	traces map[types.UID]runtime.PodID
	// removing has the directories that are being removed, of pods that are gone.
	removing map[types.UID][]string
	// closing says that the machine shuts down: no new pod is admitted.
	closing bool

	// Owned by Run.
	runtimeName string
	patience    time.Time                // the end of Config.Patience
	known       map[types.UID]checkpoint // read at the start, until the worker is made
	held        map[types.UID]bool       // wait for an older pod of their name
}

// maxWrites bounds the writes to the API at the same time.
const maxWrites = 8

// New checks cfg and makes a Runner. It starts nothing.
func New(cfg Config) (*Runner, error) {
	switch {
	case cfg.NodeName == "":
		return nil, errors.New("pods: Config.NodeName is required")
	case cfg.API == nil || cfg.Runtime == nil || cfg.Events == nil:
		return nil, errors.New("pods: Config.API, Runtime and Events are required")
	case cfg.Dir == "":
		return nil, errors.New("pods: Config.Dir is required")
	}
	cfg.MaxPods = cmp.Or(cfg.MaxPods, 110)
	cfg.CrashDelay = cmp.Or(cfg.CrashDelay, 10*time.Second)
	cfg.MaxCrashDelay = cmp.Or(cfg.MaxCrashDelay, 5*time.Minute)
	cfg.CrashReset = cmp.Or(cfg.CrashReset, 10*time.Minute)
	cfg.RetryDelay = cmp.Or(cfg.RetryDelay, 10*time.Second)
	cfg.WriteRetry = cmp.Or(cfg.WriteRetry, 30*time.Second)
	cfg.VolumeRefresh = cmp.Or(cfg.VolumeRefresh, time.Minute)
	cfg.ObjectTTL = cmp.Or(cfg.ObjectTTL, 30*time.Second)
	cfg.Housekeeping = cmp.Or(cfg.Housekeeping, 2*time.Minute)
	cfg.Collect = cmp.Or(cfg.Collect, time.Minute)
	cfg.Retention = cmp.Or(cfg.Retention, &Retention{PerContainer: DefaultPerContainer, Total: DefaultTotal})
	cfg.Patience = cmp.Or(cfg.Patience, DefaultPatience)
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.HostIPs == nil {
		cfg.HostIPs = func() []string { return nil }
	}
	known, err := whereabouts(cfg.APIServer)
	if err != nil {
		return nil, fmt.Errorf("pods: Config.APIServer: %w", err)
	}
	r := &Runner{
		whereabouts: known,
		cfg:         cfg,
		log:         cfg.Log,
		places:      places{dir: cfg.Dir},
		objects:     newObjects(cfg.API, cfg.ObjectTTL),
		lister:      lister{list: cfg.Runtime.Containers},
		writes:      make(chan struct{}, maxWrites),
		removals:    make(chan struct{}, maxRemovals),
		wake:        make(chan struct{}, 1),
		mirroring:   make(chan struct{}, 1),
		recalled:    make(chan struct{}),
		workers:     map[types.UID]*worker{},
		ended:       map[types.UID]bool{},
		known:       map[types.UID]checkpoint{},
		traces:      map[types.UID]runtime.PodID{},
		held:        map[types.UID]bool{},
	}
	r.removing = map[types.UID][]string{}
	r.volumes = volumes.New(r.places.pods(), nil) // only removes
	r.source = newSource(cfg, r.Wake)
	return r, nil
}

// Wake makes the Runner look again at what it is to run.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Recalled is closed once Run knows the pods that an earlier run has left: from then on
// Pod and its like find them, whether or not the API can be reached.
func (r *Runner) Recalled() <-chan struct{} { return r.recalled }

// Run runs pods until ctx is done and returns nil then, leaving containers as they
// are. An error means that it could not begin, or that the runtime's Watch failed.
func (r *Runner) Run(ctx context.Context) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var (
		wg       sync.WaitGroup
		workers  sync.WaitGroup
		watchErr = make(chan error, 1)
		changes  = make(chan runtime.PodID)
	)
	defer workers.Wait()
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { watchErr <- r.cfg.Runtime.Watch(ctx, changes) })
	wg.Go(func() { r.source.run(ctx) })
	wg.Go(func() { r.keepMirrors(ctx) })
	housekeeping := time.NewTicker(r.cfg.Housekeeping)
	defer housekeeping.Stop()
	passes := time.NewTicker(r.cfg.Collect)
	defer passes.Stop()
	swept := false
	known := sync.OnceFunc(func() { close(r.recalled) })
	r.Wake()
	for {
		fenced, toggled := r.cfg.Fence.State()
		select {
		case <-ctx.Done():
			return nil
		case err := <-watchErr:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch the runtime: %w", cmp.Or(err, errors.New("it stopped watching")))
		case id := <-changes:
			r.nudge(id.UID)
			continue
		case <-toggled:
			r.Wake()
			continue
		case <-housekeeping.C:
			swept = false
		case <-passes.C:
			r.collect(ctx, &workers)
			continue
		case <-r.wake:
		}
		if fenced {
			r.leave()
			swept = false
			known() // none of them runs here any more
			continue
		}
		synced := r.sync(ctx, &workers)
		known()
		if synced && !swept {
			swept = true
			r.sweep(ctx, &workers)
		}
	}
}

// begin finds out what the runtime is, and what an earlier run has left.
func (r *Runner) begin(ctx context.Context) error {
	info, err := r.cfg.Runtime.Info(ctx)
	if err != nil {
		return fmt.Errorf("ask runtime what it is: %w", err)
	}
	r.runtimeName, r.patience = info.Name, time.Now().Add(r.cfg.Patience)
	return r.recall(ctx)
}

func (r *Runner) nudge(uid types.UID) {
	r.mu.Lock()
	w := r.workers[uid]
	r.mu.Unlock()
	if w != nil {
		w.nudge()
	}
}

// sync makes workers for pods that have none and tells the others what changed.
// It reports whether all is known that is to run.
func (r *Runner) sync(ctx context.Context, wg *sync.WaitGroup) bool {
	want := r.wanted()
	want.recall(r.known)
	pods := want.pods
	order := make([]*corev1.Pod, 0, len(pods))
	for _, p := range pods {
		order = append(order, p)
	}
	slices.SortFunc(order, func(a, b *corev1.Pod) int {
		if one := want.static[a.UID]; one != want.static[b.UID] {
			return map[bool]int{true: -1, false: 1}[one]
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.ended {
		if pods[uid] == nil {
			delete(r.ended, uid)
		}
	}
	for uid := range r.held {
		if pods[uid] == nil {
			delete(r.held, uid)
		}
	}
	r.dismissLocked(ctx, wg, &want)
	for _, p := range order {
		if w := r.workers[p.UID]; w != nil {
			w.want(p)
		} else if !r.ended[p.UID] {
			r.takeUpLocked(ctx, wg, p, want.static[p.UID])
		}
	}
	r.showLocked()
	r.cfg.Metrics.workers.Set(float64(len(r.workers)))
	return want.synced && want.read
}

// dismissLocked sees to it that what is not wanted any more goes.
func (r *Runner) dismissLocked(ctx context.Context, wg *sync.WaitGroup, want *wanted) {
	for uid, w := range r.workers {
		if want.lacks(uid, w.static) {
			w.wantGone()
		}
	}
	for uid, c := range r.known {
		if !want.lacks(uid, c.Static) {
			continue
		}
		delete(r.known, uid)
		if r.workers[uid] == nil {
			r.startLocked(ctx, wg, newWorker(r, c.Pod, workerOptions{last: &c.Pod.Status, admitted: true, gone: true, static: c.Static}))
		}
	}
}

// takeUpLocked makes a worker for a pod that has none, unless there is nothing to
// do for it, it is not known yet whether it fits, or an older pod of its name has
// not gone.
func (r *Runner) takeUpLocked(ctx context.Context, wg *sync.WaitGroup, p *corev1.Pod, static bool) {
	c, remembered := r.known[p.UID]
	_, traced := r.traces[p.UID]
	recalled := remembered && c.Pod == p
	o := workerOptions{
		admitted: remembered && c.Admitted || traced, recalled: recalled,
		gone: recalled && c.Gone, inputs: c.inputs, allocatable: c.Allocatable, static: static,
	}
	if remembered {
		o.last = &c.Pod.Status
	}
	ended := !static && (terminal(p.Status.Phase) || remembered && terminal(c.Pod.Status.Phase))
	if ended && p.DeletionTimestamp == nil && !remembered && !traced {
		return
	}
	if r.removing[p.UID] != nil || r.holdLocked(p, static) {
		return
	}
	if !ended && !o.admitted && p.DeletionTimestamp == nil {
		var known bool
		if o.refused, known = r.admitLocked(p, static); !known {
			return
		}
		o.admitted = o.refused == nil
	}
	delete(r.known, p.UID)
	r.startLocked(ctx, wg, newWorker(r, p, o))
}

// admitLocked says why a new pod may not run here, if it may not, and whether that is
// known. A static pod is not refused because of a shutdown: it waits for its end.
func (r *Runner) admitLocked(p *corev1.Pod, static bool) (_ *refusal, known bool) {
	if r.closing {
		if static {
			return nil, false
		}
		return &refusal{reasonNodeShutdown, messageNodeShutdown}, true
	}
	var node *corev1.Node
	if r.cfg.Node != nil {
		if node = r.cfg.Node(); node == nil && !static {
			return nil, false
		}
	}
	return admit(p, node, r.activeLocked(), r.cfg.MaxPods), true
}

// holdLocked reports whether the pod has to wait until another one of its name,
// which the API has replaced by it, has gone from this node with all its processes:
// a name is an identity, and must not be used twice at the same time. A static pod and
// one of the API do not wait for each other, or who may make pods could keep a static one
// from running.
func (r *Runner) holdLocked(p *corev1.Pod, static bool) bool {
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	var other types.UID
	for uid, w := range r.workers {
		if uid != p.UID && w.id.NamespacedName == name && w.static == static {
			other = uid
		}
	}
	for uid, id := range r.traces {
		if uid != p.UID && id.NamespacedName == name && r.staticLocked(uid) == static {
			other = uid
		}
	}
	if other == "" {
		delete(r.held, p.UID)
		return false
	}
	if !r.held[p.UID] {
		r.held[p.UID] = true
		r.log.Info("a pod waits until the older one of its name has ended",
			"namespace", p.Namespace, "pod", p.Name, "uid", string(p.UID), "older", string(other))
	}
	return true
}

// leave has all pods stopped that run here, because another agent runs them.
func (r *Runner) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known) // as the other agent leaves them, not as they were here
	for _, w := range r.workers {
		w.leave()
	}
	r.cfg.Metrics.workers.Set(float64(len(r.workers)))
}

// activeLocked lists the pods that take room on the node.
func (r *Runner) activeLocked() []*corev1.Pod {
	var list []*corev1.Pod
	for _, w := range r.workers {
		if p, active := w.claim(); active {
			list = append(list, p)
		}
	}
	return list
}

func (r *Runner) startLocked(ctx context.Context, wg *sync.WaitGroup, w *worker) {
	uid := w.id.UID
	r.workers[uid] = w
	wg.Go(func() {
		settled := w.run(ctx)
		r.mu.Lock()
		delete(r.workers, uid)
		if r.ended[uid] = settled && !w.static; settled { // a file may come back
			delete(r.traces, uid)
		}
		r.mu.Unlock()
		r.Wake()
	})
}
