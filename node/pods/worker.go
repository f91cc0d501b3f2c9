// This file is the worker of one pod: the loop that looks, decides and acts.

package pods

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/volumes"
)

// A worker takes care of one pod. Whatever takes time is a task in a goroutine of
// its own; what a task has found out is posted to the loop, which alone touches the
// fields it owns.
type worker struct {
	r   *Runner
	id  runtime.PodID
	log *slog.Logger
	// static says that a file defines the pod, and the API only shows it.
	static bool
	ref    corev1.ObjectReference
	// isInit has the names of the init containers.
	isInit  map[string]bool
	inputs  *inputs
	volumes *volumes.Set

	wake  chan struct{}
	tasks sync.WaitGroup

	mu     sync.Mutex
	wanted *corev1.Pod // as last seen in the API, or in a file
	// wantedMirror is what the API shows of a static pod; nil for nothing.
	wantedMirror *corev1.Pod
	wantsGone    bool    // no longer in the API
	wantsOut     bool    // another agent has taken over
	wantsDown    *ending // the node shuts down, and the pod's turn has come
	finished     bool    // run has ended
	posted       []func()
	unwanted     []runtime.ContainerStatus // to be removed
	published    *corev1.Pod
	claims       bool // takes room on the node

	// Owned by the loop from here on.

	ctx      context.Context //nolint:containedctx // of run, for tasks
	pod      *corev1.Pod     // never changed, only replaced
	seen     *corev1.Pod     // the last of wanted, or of wantedMirror, that was looked at
	mirror   *corev1.Pod     // what shows a static pod; nil while nothing does
	gone     bool
	leaving  bool    // another agent has taken over: what runs is stopped, and nothing told
	down     *ending // wantsDown
	admitted bool
	refused  *refusal
	api      corev1.PodStatus // the status as the API has it
	apiKnown bool             // false while api is what was kept on disk
	wroteAt  time.Time        // when api was last the answer to a write
	patched  []byte           // the patch that was
	status   corev1.PodStatus // as last computed
	saved    checkpoint       // as last written to disk
	unkept   string           // why the inputs are not on disk, as last logged
	// allocatable is the node's, as last known.
	allocatable corev1.ResourceList
	ended       bool // the phase is final
	kill        *kill

	containers map[string]*container
	facts      []fact
	sandbox    preparation
	apiWrite   attempt
	removal    attempt
	garbage    []runtime.ContainerStatus // what is left of unwanted
	discarding context.CancelFunc        // not nil while one of them is being removed
	// discardFailed says that a failure to remove one of them has been told.
	discardFailed bool
	unlisted      time.Duration // back-off of listing
	next          time.Time
}

// An attempt paces something that is tried until it succeeds.
type attempt struct {
	busy  bool
	delay time.Duration
	at    time.Time // not before
}

// failed doubles the delay up to limit.
func (a *attempt) failed(now time.Time, limit time.Duration) {
	a.delay = min(max(2*a.delay, 500*time.Millisecond), limit)
	a.at = now.Add(a.delay)
}

func (a *attempt) succeeded() { a.delay, a.at = 0, time.Time{} }

// A preparation is how far volumes and sandbox are.
type preparation struct {
	attempt
	done      bool
	tried     bool
	ips       []string
	refreshAt time.Time
}

type workerOptions struct {
	last     *corev1.PodStatus // as last computed by an earlier run; nil for none
	admitted bool
	refused  *refusal
	gone     bool
	static   bool
	inputs   []input // as kept on disk
	// allocatable is the node's, as kept on disk.
	allocatable corev1.ResourceList
	// recalled says that the pod is not as the API has it but as it was kept on disk.
	recalled bool
}

func newWorker(r *Runner, pod *corev1.Pod, o workerOptions) *worker {
	id := idOf(pod)
	w := &worker{
		r: r, id: id,
		log: r.log.With("namespace", pod.Namespace, "pod", pod.Name, "uid", string(pod.UID)),
		ref: corev1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name,
			UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
		wake:     make(chan struct{}, 1),
		wanted:   pod,
		admitted: o.admitted, refused: o.refused,
		wantsGone:  o.gone,
		static:     o.static,
		containers: map[string]*container{},
		published:  pod,
		claims:     o.refused == nil,
	}
	w.inputs = newInputs(r.objects, r.places.inputs(id.UID), o.inputs)
	w.volumes = volumes.New(r.places.pods(), w.inputs)
	w.allocatable = o.allocatable
	w.isInit = map[string]bool{}
	for i := range pod.Spec.InitContainers {
		w.isInit[pod.Spec.InitContainers[i].Name] = true
	}
	w.pod, w.seen, w.api, w.apiKnown = pod, pod, pod.Status, !o.recalled
	w.status = *pod.Status.DeepCopy()
	if o.last != nil {
		w.status = *o.last.DeepCopy()
	}
	if w.static {
		w.seen, w.api, w.apiKnown = nil, corev1.PodStatus{}, false
		w.published = withStatus(pod, &w.status)
		begin(&w.status, pod)
	}
	w.recover()
	return w
}

// want tells the worker the pod as the API has it now.
func (w *worker) want(p *corev1.Pod) {
	w.mu.Lock()
	same := w.wanted == p
	w.wanted = p
	w.mu.Unlock()
	if !same {
		w.nudge()
	}
}

// wantGone tells it that the API has the pod no longer.
func (w *worker) wantGone() {
	w.mu.Lock()
	same := w.wantsGone
	w.wantsGone = true
	w.mu.Unlock()
	if !same {
		w.nudge()
	}
}

// leave tells it that another agent runs the pod now.
func (w *worker) leave() {
	w.mu.Lock()
	same := w.wantsOut
	w.wantsOut = true
	w.mu.Unlock()
	if !same {
		w.nudge()
	}
}

func (w *worker) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// post has f called by the loop.
func (w *worker) post(f func()) {
	w.mu.Lock()
	w.posted = append(w.posted, f)
	w.mu.Unlock()
	w.nudge()
}

// task runs f beside the loop and has the loop call what it returns. There are
// never more than a few: each is noted by the loop as under way.
func (w *worker) task(f func() func()) {
	w.tasks.Go(func() { w.post(f()) })
}

// current returns the pod with its current status.
func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.published
}

// claim returns the pod and whether it takes room on the node.
func (w *worker) claim() (*corev1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.published, w.claims && !terminal(w.published.Status.Phase)
}

// run takes care of the pod until nothing is left of it, until it has left it to
// another agent, or until ctx is done; it reports whether it was the first.
func (w *worker) run(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer w.tasks.Wait()
	defer cancel()
	defer w.release()
	w.ctx = ctx
	if w.refused != nil {
		w.kill = &kill{by: time.Now(), reason: w.refused.reason, message: w.refused.status(), failed: true, refused: true}
		w.r.cfg.Events.Event(w.ref, corev1.EventTypeWarning, w.refused.reason, w.refused.message)
	}
	timer := time.NewTimer(time.Hour) // set anew by each step
	defer timer.Stop()
	for ctx.Err() == nil {
		w.next = time.Time{}
		if w.step(time.Now()) {
			return !w.leaving
		}
		timer.Stop()
		if !w.next.IsZero() {
			timer.Reset(max(time.Until(w.next), 0))
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-timer.C:
		}
	}
	return false
}

// at has the loop look again at t or before.
func (w *worker) at(t time.Time) {
	if !t.IsZero() && (w.next.IsZero() || t.Before(w.next)) {
		w.next = t
	}
}

// step looks, decides and acts once. It reports whether nothing is left to do.
func (w *worker) step(now time.Time) bool {
	w.receive()
	listed, err := w.r.lister.get(w.ctx)
	if err != nil {
		if w.ctx.Err() == nil {
			w.unlisted = min(max(2*w.unlisted, time.Second), w.r.cfg.RetryDelay)
			w.log.Warn("cannot list containers, will try again", "err", err, "in", w.unlisted)
			w.at(now.Add(w.unlisted))
		}
		return false
	}
	w.unlisted = 0
	w.observe(now, listed[w.id.UID])
	w.judge(now)
	s := situation{pod: w.pod, now: now, facts: w.facts, kill: w.kill, prepared: w.sandbox.done}
	in := decide(s)
	w.at(in.next)
	w.act(s, in)
	// What act has begun is part of the status already.
	w.observe(now, listed[w.id.UID])
	s.facts = w.facts
	if w.leaving {
		return w.left(s)
	}
	w.report(s, in)
	w.tellDown(s)
	w.discardNext(s)
	return w.finish(s)
}

// receive takes what was posted and wanted.
func (w *worker) receive() {
	w.mu.Lock()
	posted, wanted, mirror := w.posted, w.wanted, w.wantedMirror
	w.posted = nil
	if w.unwanted != nil {
		w.garbage, w.unwanted, w.discardFailed = w.unwanted, nil, false
	}
	w.gone, w.leaving, w.down = w.gone || w.wantsGone, w.wantsOut, w.wantsDown
	w.mu.Unlock()
	for _, f := range posted {
		f()
	}
	if w.static {
		w.pod = wanted
		w.receiveMirror(mirror)
		return
	}
	if wanted == w.seen {
		return
	}
	if w.stale(wanted) {
		w.at(w.wroteAt.Add(staleFor)) // unless a newer one comes before
		return
	}
	w.seen = wanted
	if !apiequality.Semantic.DeepEqual(wanted.Labels, w.pod.Labels) || !apiequality.Semantic.DeepEqual(wanted.Annotations, w.pod.Annotations) {
		w.sandbox.refreshAt = time.Time{} // downwardAPI volumes show them
	}
	w.pod, w.api, w.apiKnown = wanted, wanted.Status, true
}

// staleFor is how long after a write an older pod counts as merely late. After that
// it is that of a server restored from a backup, whose versions are lower.
const staleFor = time.Minute

// stale reports whether p is older than what a write has just answered.
func (w *worker) stale(p *corev1.Pod) bool {
	if time.Since(w.wroteAt) >= staleFor {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(p.ResourceVersion, w.object().ResourceVersion)
	return err == nil && order < 0
}

// report computes the status, keeps it on disk and writes it to the API.
func (w *worker) report(s situation, in intent) {
	if !w.ended {
		w.status = statusOf(s, in, &w.status, w.surroundings())
		w.ended = terminal(w.status.Phase)
	}
	pod := w.pod.DeepCopy()
	pod.Status = *merged(&w.api, &w.status, metav1.NewTime(s.now).Rfc3339Copy())
	w.mu.Lock()
	turned := terminal(w.published.Status.Phase) != terminal(pod.Status.Phase)
	w.published = pod
	w.claims = w.refused == nil
	w.mu.Unlock()
	if turned && w.static {
		w.r.wakeMirrors() // that of a pod that has ended cannot be one of a pod that runs
	}
	if w.gone {
		if !s.quiet() {
			w.save(pod) // or it would run again after a restart without a server
		}
		return
	}
	w.save(pod)
	if w.apiKnown && !apiequality.Semantic.DeepEqual(&w.api, &pod.Status) {
		w.write(s.now, pod)
	}
}

func (w *worker) surroundings() surroundings {
	host := w.r.cfg.HostIPs()
	a := surroundings{
		runtimeName: w.r.runtimeName, hostIPs: host, podIPs: w.sandbox.ips,
		prepared: w.sandbox.done, ipsKnown: w.sandbox.done, conditions: w.api.Conditions,
	}
	if c := conditionOf(w.status.Conditions, corev1.PodReadyToStartContainers); c != nil && !w.sandbox.tried {
		a.prepared = c.Status == corev1.ConditionTrue
	}
	if len(a.podIPs) == 0 {
		a.podIPs = host // the pod shares the node's addresses
	}
	return a
}

// save writes the checkpoint when it would differ from the one on disk.
func (w *worker) save(pod *corev1.Pod) {
	c := checkpoint{Pod: pod, Admitted: w.admitted, Gone: w.gone, Static: w.static, Allocatable: w.allocatable}
	if have := w.saved.Pod; have != nil && w.saved.Gone == c.Gone && have.Generation == pod.Generation &&
		apiequality.Semantic.DeepEqual(have.Spec, pod.Spec) &&
		apiequality.Semantic.DeepEqual(have.Status, pod.Status) &&
		apiequality.Semantic.DeepEqual(w.saved.Allocatable, c.Allocatable) &&
		have.DeletionTimestamp.Equal(pod.DeletionTimestamp) {
		return
	}
	if err := saveCheckpoint(w.r.places.checkpoint(w.id.UID), c); err != nil {
		w.log.Error("pod is not kept on disk: a restart without a server would forget it", "err", err)
		return
	}
	w.saved = c
}
