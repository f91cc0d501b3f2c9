// This file is the Runner: it makes the workers and passes the wanted pods to them.

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

// Events records events. *events.Recorder implements it.
type Events interface {
	Event(ref corev1.ObjectReference, eventType, reason, message string)
}

// DefaultPatience is used if Config.Patience is zero.
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
	// Hide lists the files and directories, beside Dir, that the runtime hides from containers. A
	// hostPath in one of them is refused, except for privileged containers.
	Hide []string
	// Answers returns an error for a path of the machine that is in a file system whose server is
	// away: a hostPath is asked for only after that. Nil means that all answer.
	Answers func(ctx context.Context, path string) error

	// Static has the static pods; nil means none. Call Runner.Wake after a change.
	Static Static
	// Node returns the last known Node object, or nil while that is not known; pods that
	// have not been admitted then wait, except static ones. With a nil func, pods are
	// admitted without a node, and there are no mirrors. Call Runner.Wake after a change.
	Node func() *corev1.Node
	// HostIPs returns the addresses of the node, primary first. Nil means none.
	HostIPs func() []string
	// MaxPods is the limit of pods if the node's allocatable has none; zero means 110.
	MaxPods int
	// APIServer is the address of the API server for programs in pods, HOST:PORT. If it is
	// empty, pods get no variables for it.
	APIServer string
	// PodMaxPIDs is how many processes a pod may have; zero means any number.
	PodMaxPIDs int64
	// SeccompDefault gives containers that name no seccomp profile RuntimeDefault
	// instead of Unconfined.
	SeccompDefault bool

	CrashDelay    time.Duration // wait before the second restart, doubled each time: 10 s
	MaxCrashDelay time.Duration // its bound: 5 min
	CrashReset    time.Duration // a container that ran so long has no back-off: 10 min
	RetryDelay    time.Duration // bound of retries of volumes, sandboxes, configuration: 10 s
	WriteRetry    time.Duration // bound of retries of writes to the API: 30 s
	VolumeRefresh time.Duration // how often volumes with content from the API are refreshed: 60 s
	ObjectTTL     time.Duration // how long a ConfigMap or Secret is cached: 30 s
	Housekeeping  time.Duration // how often leftovers are looked for: 2 min
	Collect       time.Duration // how often ended containers are removed: 1 min
	// Patience is how long containers that do not run wait at the start for a list of the
	// API. After that they are started by their checkpoints. Zero means DefaultPatience.
	Patience time.Duration

	// Retention is how many ended containers are kept. Nil means the kubelet's defaults:
	// one of each container, of any age.
	Retention *Retention

	// Fence is up while another agent with this node's identity runs the pods. The pods
	// here are then stopped, each within its grace, and nothing is written to the API. Nil
	// means never.
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
	// apiServerVars are variables of each container, which its spec may override.
	apiServerVars map[string]string
	lister        lister
	writes        chan struct{} // tokens of writes to the API under way
	removals      chan struct{} // tokens of removals of containers under way
	source        *source
	wake          chan struct{}
	mirroring     chan struct{} // wakes keepMirrors
	recalled      chan struct{} // closed once the pods of an earlier run are known

	mu      sync.Mutex
	workers map[types.UID]*worker
	// ended has the pods whose worker has ended while the API still listed them: they
	// get no new worker.
	ended map[types.UID]bool
	// traces are the pods in the runtime, as last listed, without those whose worker has
	// ended since.
	traces map[types.UID]runtime.PodID
	// removing has the directories of deleted pods that are being removed.
	removing map[types.UID][]string
	// closing is whether the machine shuts down: no new pod is admitted.
	closing bool

	// Owned by Run.
	runtimeName string
	recursive   bool                     // runtime.Info.RecursiveReadOnly
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
	cfg.setDefaults()
	known, err := apiServerVars(cfg.APIServer)
	if err != nil {
		return nil, fmt.Errorf("pods: Config.APIServer: %w", err)
	}
	r := &Runner{
		apiServerVars: known,
		cfg:           cfg,
		log:           cfg.Log,
		places:        places{dir: cfg.Dir, hide: cfg.Hide},
		objects:       newObjects(cfg.API, cfg.ObjectTTL),
		lister:        lister{list: cfg.Runtime.Containers},
		writes:        make(chan struct{}, maxWrites),
		removals:      make(chan struct{}, maxRemovals),
		wake:          make(chan struct{}, 1),
		mirroring:     make(chan struct{}, 1),
		recalled:      make(chan struct{}),
		workers:       map[types.UID]*worker{},
		ended:         map[types.UID]bool{},
		known:         map[types.UID]checkpoint{},
		traces:        map[types.UID]runtime.PodID{},
		held:          map[types.UID]bool{},
	}
	r.removing = map[types.UID][]string{}
	r.volumes = volumes.New(r.places.pods(), nil, nil, nil) // only removes
	r.source = newSource(cfg, r.Wake)
	return r, nil
}

func (c *Config) setDefaults() {
	c.MaxPods = cmp.Or(c.MaxPods, 110)
	c.CrashDelay = cmp.Or(c.CrashDelay, 10*time.Second)
	c.MaxCrashDelay = cmp.Or(c.MaxCrashDelay, 5*time.Minute)
	c.CrashReset = cmp.Or(c.CrashReset, 10*time.Minute)
	c.RetryDelay = cmp.Or(c.RetryDelay, 10*time.Second)
	c.WriteRetry = cmp.Or(c.WriteRetry, 30*time.Second)
	c.VolumeRefresh = cmp.Or(c.VolumeRefresh, time.Minute)
	c.ObjectTTL = cmp.Or(c.ObjectTTL, 30*time.Second)
	c.Housekeeping = cmp.Or(c.Housekeeping, 2*time.Minute)
	c.Collect = cmp.Or(c.Collect, time.Minute)
	c.Retention = cmp.Or(c.Retention, &Retention{PerContainer: DefaultPerContainer, Total: DefaultTotal})
	c.Patience = cmp.Or(c.Patience, DefaultPatience)
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Answers == nil {
		c.Answers = func(context.Context, string) error { return nil }
	}
	if c.HostIPs == nil {
		c.HostIPs = func() []string { return nil }
	}
}

// Wake makes the Runner read its sources again.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Recalled is closed once Run has read the pods of an earlier run. From then on Pod and
// similar methods find them, also while the API cannot be reached.
func (r *Runner) Recalled() <-chan struct{} { return r.recalled }

// Run runs pods until ctx is done. Then it returns nil, and containers continue to run.
// An error means that it could not start, or that the runtime's Watch failed.
func (r *Runner) Run(ctx context.Context) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg, workers sync.WaitGroup
	defer workers.Wait()
	defer wg.Wait()
	defer cancel()
	changes, watchErr := r.startWatches(ctx, &wg)
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
			known() // their containers do not run here any more
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

// startWatches starts the goroutines that Run has besides workers. They end with ctx.
func (r *Runner) startWatches(ctx context.Context, wg *sync.WaitGroup) (<-chan runtime.PodID, <-chan error) {
	changes, watchErr := make(chan runtime.PodID), make(chan error, 1)
	wg.Go(func() { watchErr <- r.cfg.Runtime.Watch(ctx, changes) })
	wg.Go(func() { r.source.run(ctx) })
	wg.Go(func() { r.keepMirrors(ctx) })
	wg.Go(func() { r.watchStorage(ctx) })
	return changes, watchErr
}

// begin reads the runtime's name and the state of an earlier run.
func (r *Runner) begin(ctx context.Context) error {
	info, err := r.cfg.Runtime.Info(ctx)
	if err != nil {
		return fmt.Errorf("ask runtime what it is: %w", err)
	}
	r.recursive = info.RecursiveReadOnly
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

// sync makes workers for pods that have none and passes changes to the others. It
// reports whether all pods that are to run are known.
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

// dismissLocked has the pods removed that are not wanted any more.
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
// do for it, it is not known yet whether it fits, or an older pod of its name still
// exists.
func (r *Runner) takeUpLocked(ctx context.Context, wg *sync.WaitGroup, p *corev1.Pod, static bool) {
	c, remembered := r.known[p.UID]
	_, traced := r.traces[p.UID]
	recalled := remembered && c.Pod == p
	o := workerOptions{
		admitted: remembered && c.Admitted || traced, recalled: recalled, traced: traced,
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

// admitLocked returns why a new pod may not run here, and whether that is known yet. A
// static pod is not refused because of a shutdown: it waits for the end of that.
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

// holdLocked reports whether the pod must wait until an older pod of its name has ended
// on this node with all of its processes: a name is an identity and must not be used
// twice at the same time. A static pod and one of the API do not wait for each other;
// else a user who may make pods could keep a static one from running.
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

// leave stops all pods, because another agent runs them.
func (r *Runner) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known) // later they are read as the other agent left them
	for _, w := range r.workers {
		w.leave()
	}
	r.cfg.Metrics.workers.Set(float64(len(r.workers)))
}

// activeLocked lists the pods whose requests count on the node.
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
