package scheduler

// Queue: pods that wait for a node.

import (
	"cmp"
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A waiting pod is ready, or due later: after its back-off, or, while it is
// parked, when something changes that might help it. One that has been taken is
// in neither heap.
type waiting struct {
	name     types.NamespacedName
	priority int32
	since    time.Time // when it was first seen or last failed; the order among equals
	tries    int       // failed looks so far
	ready    time.Time // the end of its back-off
	due      time.Time // when it is looked at even if nothing changes
	parked   bool
	needs    cause // then, what has to change for it to be looked at

	in    *podHeap // which heap it is in, or nil
	index int      // where in that heap
}

// A queue holds each pod once.
type queue struct {
	cfg  Config
	wake chan struct{} // has an element if there may be something to do

	mu      sync.Mutex
	pods    map[types.NamespacedName]*waiting
	now     podHeap // the ready, most urgent first
	later   podHeap // the others, soonest first
	changes moment  // what might have helped parked pods
}

// A turn is a pod that was taken, and what had happened by then that might help it.
type turn struct {
	*waiting
	changes moment
}

// A moment counts what has happened that might help parked pods. Pods come on nodes all
// the time and help few, so they are counted apart.
type moment struct{ others, pods uint64 }

func newQueue(c Config) *queue {
	return &queue{
		cfg: c, wake: make(chan struct{}, 1), pods: map[types.NamespacedName]*waiting{},
		now: podHeap{less: urgent}, later: podHeap{less: sooner},
	}
}

// urgent orders by priority, highest first, and then by how long a pod has waited for its turn.
// A pod that found no node goes behind those that have not been looked at since. Otherwise many
// pods that fit nowhere, looked at again after every change, would delay each new pod.
func urgent(a, b *waiting) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), a.since.Compare(b.since),
		cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name))
}

func sooner(a, b *waiting) int { return a.due.Compare(b.due) }

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// add makes the pod ready: it is new, or it has itself changed.
func (q *queue) add(name types.NamespacedName, priority int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.pods[name]
	if w == nil {
		w = &waiting{name: name, since: time.Now()}
		q.pods[name] = w
	}
	w.priority = priority
	q.moveLocked(w, &q.now)
	q.signal()
}

// remove forgets the pod: it is bound, or gone.
func (q *queue) remove(name types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.pods[name]; w != nil {
		q.moveLocked(w, nil)
		delete(q.pods, name)
	}
}

// done forgets a pod that was taken, unless it, or another of its name, has been added again
// meanwhile.
func (q *queue) done(t turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.awaitedLocked(t) {
		delete(q.pods, t.name)
	}
}

// awaitedLocked tells whether what comes of t is still to be told: it is the pod that is known
// under the name, and has not been added again since it was taken.
func (q *queue) awaitedLocked(t turn) bool { return q.pods[t.name] == t.waiting && t.in == nil }

// moveLocked puts w into a heap, out of the one it is in.
func (q *queue) moveLocked(w *waiting, to *podHeap) {
	if w.in != nil {
		heap.Remove(w.in, w.index)
	}
	w.parked = false
	if w.in = to; to != nil {
		heap.Push(to, w)
	}
}

// changed says that something has happened that might help parked pods, those that
// need it.
func (q *queue) changed(what cause) {
	if what == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if what&^byPods != 0 {
		q.changes.others++
	}
	if what&byPods != 0 {
		q.changes.pods++
	}
	woken := false
	for _, w := range q.later.pods {
		if w.parked && w.needs&what != 0 {
			w.parked, w.due, woken = false, w.ready, true
		}
	}
	if woken {
		heap.Init(&q.later)
		q.signal()
	}
}

// rouse has parked pods looked at again, once their back-off is over.
func (q *queue) rouse(names ...types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changes.others += uint64(min(len(names), 1)) // for those that are being decided about
	for _, name := range names {
		if w := q.pods[name]; w != nil && w.in == &q.later && w.parked {
			w.parked, w.due = false, w.ready
			heap.Fix(&q.later, w.index)
		}
	}
	q.signal()
}

// take waits for a pod that is ready and takes it. The pod stays known: one of
// add, failed, done or remove must follow. ok is false if ctx is done.
func (q *queue) take(ctx context.Context) (t turn, ok bool) {
	for ctx.Err() == nil {
		next, wait := q.poll(time.Now())
		if next.waiting != nil {
			return next, true
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	return turn{}, false
}

// poll takes a pod that is ready, or says how long to wait for one.
func (q *queue) poll(now time.Time) (turn, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.later.Len() > 0 && !q.later.pods[0].due.After(now) {
		q.moveLocked(q.later.pods[0], &q.now)
	}
	if q.now.Len() > 0 {
		w := q.now.pods[0]
		q.moveLocked(w, nil)
		return turn{w, q.changes}, 0
	}
	if q.later.Len() > 0 {
		return turn{}, q.later.pods[0].due.Sub(now)
	}
	return turn{}, q.cfg.Recheck
}

// failed puts back a pod that found no node. It is parked until something that it
// needs changes, unless anything has changed since it was taken; then it comes back
// after its back-off. So does one that needs nothing: the fault was not the pod's.
func (q *queue) failed(t turn, needs cause) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.awaitedLocked(t) {
		return // gone, or added again meanwhile
	}
	w, changes := t.waiting, t.changes
	now := time.Now()
	w.tries++
	w.since = now
	w.ready = now.Add(backoff(w.tries, q.cfg.MinBackoff, q.cfg.MaxBackoff))
	w.due = w.ready
	parked := needs != 0 && q.changes.others == changes.others && (needs&byPods == 0 || q.changes.pods == changes.pods)
	if parked {
		w.due = now.Add(max(q.cfg.Recheck, w.ready.Sub(now)))
	}
	q.moveLocked(w, &q.later)
	w.parked, w.needs = parked, needs
	q.signal()
}

// backoff doubles from least, at the first failure, up to most.
func backoff(tries int, least, most time.Duration) time.Duration {
	d := least
	for range tries - 1 {
		if d *= 2; d >= most {
			return most
		}
	}
	return min(d, most)
}

// podHeap implements heap.Interface.
type podHeap struct {
	pods []*waiting
	less func(a, b *waiting) int
}

func (h *podHeap) Len() int { return len(h.pods) }

func (h *podHeap) Less(i, j int) bool { return h.less(h.pods[i], h.pods[j]) < 0 }

func (h *podHeap) Swap(i, j int) {
	h.pods[i], h.pods[j] = h.pods[j], h.pods[i]
	h.pods[i].index, h.pods[j].index = i, j
}

func (h *podHeap) Push(x any) {
	w, _ := x.(*waiting)
	w.index = len(h.pods)
	h.pods = append(h.pods, w)
}

func (h *podHeap) Pop() any {
	last := len(h.pods) - 1
	w := h.pods[last]
	h.pods[last] = nil
	h.pods = h.pods[:last]
	return w
}
