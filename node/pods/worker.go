// This file is the worker of one pod: a loop that observes, decides and acts.

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

// A worker runs one pod. Slow operations are tasks, each in a goroutine of its own. A
// task posts its result to the loop, and only the loop touches the fields that it owns.
type worker struct {
	r   *Runner
	id  runtime.PodID
	log *slog.Logger
	// static is whether a file defines the pod. The API then has only its mirror.
	static bool
	since  time.Time // when the worker was made
	ref    corev1.ObjectReference
	// isInit has the names of the init containers.
	isInit  map[string]bool
	inputs  *inputs
	volumes *volumes.Set

	wake  chan struct{}
	tasks sync.WaitGroup

	mu     sync.Mutex
	wanted *corev1.Pod // as last seen in the API, or in a file
	// wantedMirror is the mirror of a static pod in the API; nil if there is none.
	wantedMirror *corev1.Pod
	wantsGone    bool    // no longer in the API
	wantsOut     bool    // another agent has taken over
	wantsDown    *ending // the node shuts down, and the pod's phase has started
	finished     bool    // run has ended
	posted       []func()
	unwanted     []runtime.ContainerStatus // to be removed
	published    *corev1.Pod
	claims       bool // its requests count on the node

	// Owned by the loop from here on.

	ctx      context.Context //nolint:containedctx // of run, for tasks
	pod      *corev1.Pod     // never changed, only replaced
	seen     *corev1.Pod     // the last of wanted, or of wantedMirror, that was looked at
	mirror   *corev1.Pod     // the mirror of a static pod; nil if there is none
	gone     bool
	leaving  bool    // another agent has taken over: containers are stopped, and nothing is written to the API
	down     *ending // wantsDown
	admitted bool
	refused  *refusal
	api      corev1.PodStatus // the status as the API has it
	apiKnown bool             // false while api is from the checkpoint
	wroteAt  time.Time        // when api was last the answer to a write
	rejected rejection
	patched  []byte           // the patch that was
	status   corev1.PodStatus // as last computed
	saved    checkpoint       // as last written to disk
	unsaved  bool             // writing it has failed since, which was logged
	unkept   bool             // writing the inputs failed the last time
	// allocatable is the node's, as last known.
	allocatable corev1.ResourceList
	ended       bool // the phase is final
	kill        *kill

	containers map[string]*container
	facts      []fact
	sandbox    preparation
	apiWrite   retry
	removal    retry
	garbage    []runtime.ContainerStatus // the containers that are still to be removed
	discarding context.CancelFunc        // not nil while one of them is being removed
	// discardFailed is whether a failed removal of one of them was logged.
	discardFailed bool
	unlisted      time.Duration // back-off of listing
	next          time.Time
}

// A retry is the back-off timer of one operation that is retried until it succeeds.
type retry struct {
	busy  bool
	delay time.Duration
	at    time.Time // not before
}

// failed doubles the delay up to limit.
func (r *retry) failed(now time.Time, limit time.Duration) {
	r.delay = min(max(2*r.delay, 500*time.Millisecond), limit)
	r.at = now.Add(r.delay)
}

func (r *retry) succeeded() { r.delay, r.at = 0, time.Time{} }

// A preparation is the progress of making volumes and sandbox.
type preparation struct {
	retry
	done      bool
	tried     bool
	ephemeral int  // how many ephemeral containers the pod had when it was last tried to make volumes
	lacks     bool // making volumes has failed since an ephemeral container was added
	ips       []string
	refreshAt time.Time
}

type workerOptions struct {
	last     *corev1.PodStatus // the last status of an earlier run; nil for none
	admitted bool
	refused  *refusal
	gone     bool
	static   bool
	inputs   []input // as kept on disk
	// allocatable is the node's, as kept on disk.
	allocatable corev1.ResourceList
	// recalled is whether the pod is from the checkpoint and not from the API.
	recalled bool
	// traced is whether the runtime has containers or a sandbox of the pod.
	traced bool
}

func newWorker(r *Runner, pod *corev1.Pod, o workerOptions) *worker {
	id := idOf(pod)
	w := &worker{
		r: r, id: id, since: time.Now(),
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
	w.volumes = volumes.New(r.places.pods(), w.inputs, r.places.mayMake, r.cfg.Answers)
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
	w.recover(o.traced)
	return w
}

// want gives the worker the pod's present version in the API.
func (w *worker) want(p *corev1.Pod) {
	w.mu.Lock()
	same := w.wanted == p
	w.wanted = p
	w.mu.Unlock()
	if !same {
		w.nudge()
	}
}

// wantGone tells the worker that the API does not have the pod any more.
func (w *worker) wantGone() {
	w.mu.Lock()
	same := w.wantsGone
	w.wantsGone = true
	w.mu.Unlock()
	if !same {
		w.nudge()
	}
}

// leave tells the worker that another agent runs the pod now.
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

// post has the loop call f.
func (w *worker) post(f func()) {
	w.mu.Lock()
	w.posted = append(w.posted, f)
	w.mu.Unlock()
	w.nudge()
}

// task runs f in a goroutine and has the loop call the func that it returns. The loop
// records each task that is under way, so that there are only a few.
func (w *worker) task(f func() func()) {
	w.tasks.Go(func() { w.post(f()) })
}

// current returns the pod with its current status.
func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.published
}

// claim returns the pod and whether its requests count on the node.
func (w *worker) claim() (*corev1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.published, w.claims && !terminal(w.published.Status.Phase)
}

// run runs the pod until everything of it is removed, another agent has taken over, or
// ctx is done. It reports whether everything was removed.
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
		if w.step() {
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

// at has the loop look again at t at the latest.
func (w *worker) at(t time.Time) {
	if !t.IsZero() && (w.next.IsZero() || t.Before(w.next)) {
		w.next = t
	}
}

// step observes, decides and acts once. It reports whether nothing is left to do.
func (w *worker) step() bool {
	w.receive()
	listed, err := w.r.lister.get(w.ctx)
	now := time.Now() // not before what has been received: a later time means that the clock was set back
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
	s := situation{pod: w.pod, now: now, facts: w.facts, kill: w.kill, prepared: w.sandbox.done, since: w.since}
	in := decide(s)
	w.at(in.next)
	w.act(s, in)
	// The status includes what act has just started.
	w.observe(now, listed[w.id.UID])
	s.facts = w.facts
	if w.leaving {
		return w.left(s)
	}
	w.report(s, in)
	w.reportEnding(s)
	w.discardNext(s)
	return w.finish(s)
}

// receive takes the posted funcs and the wanted pod.
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

// staleFor is how long after a write an older version of the pod is ignored as delayed.
// After that it is taken as that of a server restored from a backup, whose versions are
// lower.
const staleFor = time.Minute

// stale reports whether p is older than the answer to a recent write.
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
		w.r.wakeMirrors() // the status of an ended pod does not change to running
	}
	w.save(pod) // one that is gone would run again after a restart without a server, also if it is quiet
	if w.gone {
		return
	}
	if w.apiKnown && !apiequality.Semantic.DeepEqual(&w.api, &pod.Status) {
		w.write(s.now, pod)
	}
}

func (w *worker) surroundings() surroundings {
	host := w.r.cfg.HostIPs()
	a := surroundings{
		runtimeName: w.r.runtimeName, recursive: w.r.recursive, hostIPs: host, podIPs: w.sandbox.ips,
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
		apiequality.Semantic.DeepEqual(have.Labels, pod.Labels) &&
		apiequality.Semantic.DeepEqual(have.Annotations, pod.Annotations) &&
		apiequality.Semantic.DeepEqual(have.Spec, pod.Spec) &&
		apiequality.Semantic.DeepEqual(have.Status, pod.Status) &&
		apiequality.Semantic.DeepEqual(w.saved.Allocatable, c.Allocatable) &&
		have.DeletionTimestamp.Equal(pod.DeletionTimestamp) {
		return
	}
	if err := saveCheckpoint(w.r.places.checkpoint(w.id.UID), c); err != nil {
		if !w.unsaved { // the text of the error differs each time
			w.log.Error("pod is not kept on disk: a restart without a server would forget it", "err", err)
		}
		w.unsaved = true
		return
	}
	w.saved, w.unsaved = c, false
}
