package nodelifecycle

// When what nodes say arrives. A pass looks only every few seconds; a node's silence
// begins when its last word came, not when it was read.

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// arrivals are the latest word of each node and of each Lease that the caches hold,
// and when it came.
type arrivals struct {
	mu     sync.Mutex // guards the following
	beats  map[string]arrival[metav1.Time]
	leases map[string]arrival[metav1.MicroTime]
	latest time.Time // when anything came
}

// An arrival is what a node said of the time, by its own clock, and when it came, by
// ours. The zero value is that nothing has.
type arrival[T metav1.Time | metav1.MicroTime] struct {
	said T
	came time.Time
}

func newArrivals() *arrivals {
	return &arrivals{beats: map[string]arrival[metav1.Time]{}, leases: map[string]arrival[metav1.MicroTime]{}}
}

// watch notes what comes until stop is called.
func (a *arrivals) watch(nodes, leases cache.SharedIndexInformer) (stop func(), err error) {
	var watches loop.Watches
	watches.Add(loop.Handle(nodes, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { a.node(obj) },
		UpdateFunc: func(_, obj any) { a.node(obj) },
		DeleteFunc: func(obj any) { a.forget(obj, func(name string) { delete(a.beats, name) }) },
	}))
	watches.Add(loop.Handle(leases, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { a.lease(obj) },
		UpdateFunc: func(_, obj any) { a.lease(obj) },
		DeleteFunc: func(obj any) { a.forget(obj, func(name string) { delete(a.leases, name) }) },
	}))
	return watches.All()
}

func (a *arrivals) node(obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	ready := readyCondition(n)
	if ready == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latest = time.Now()
	if was := a.beats[n.Name]; was.came.IsZero() || !was.said.Equal(&ready.LastHeartbeatTime) {
		a.beats[n.Name] = arrival[metav1.Time]{ready.LastHeartbeatTime, time.Now()}
	}
}

func (a *arrivals) lease(obj any) {
	l, ok := obj.(*coordinationv1.Lease)
	if !ok || l.Namespace != corev1.NamespaceNodeLease {
		return
	}
	t := renewal(l)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latest = time.Now()
	if was := a.leases[l.Name]; was.came.IsZero() || !was.said.Equal(&t) {
		a.leases[l.Name] = arrival[metav1.MicroTime]{t, time.Now()}
	}
}

func (a *arrivals) forget(obj any, drop func(name string)) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil || namespace != "" && namespace != corev1.NamespaceNodeLease {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	drop(name)
}

// of returns the latest of a node.
func (a *arrivals) of(node string) (beat arrival[metav1.Time], lease arrival[metav1.MicroTime]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.beats[node], a.leases[node]
}

// any is when anything came of any node; zero if nothing has.
func (a *arrivals) any() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest
}

// since is when a word came of which it is known by now: now, if its arrival was not
// seen, but never before what is known already.
func since(same bool, came, heard, now time.Time) time.Time {
	switch {
	case !same || came.IsZero() || came.After(now):
		return now
	case came.Before(heard):
		return heard
	default:
		return came
	}
}
