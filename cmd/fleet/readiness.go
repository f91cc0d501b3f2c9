// The Ready conditions of the fleet's nodes, as the API server has them.

package fleet

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Counts says how many nodes are in which state of their Ready condition. What is
// missing in the sum has no object, or no condition yet.
type Counts struct {
	Ready, NotReady, Unknown, Registered int
	// Joined counts the nodes that have had a session.
	Joined int
}

// String is for people.
func (c Counts) String() string {
	return fmt.Sprintf("%d joined, %d registered: %d Ready, %d NotReady, %d Unknown", c.Joined, c.Registered, c.Ready, c.NotReady, c.Unknown)
}

// A readyCounter watches the nodes with certain names. It keeps no more of a node than
// what its Ready condition says.
type readyCounter struct {
	names map[string]bool // constant

	mu      sync.Mutex // guards the following
	ready   map[string]corev1.ConditionStatus
	sum     Counts
	changed chan struct{} // closed, and replaced, when sum changes
}

func newReadyCounter(names map[string]bool) *readyCounter {
	return &readyCounter{names: names, ready: map[string]corev1.ConditionStatus{}, changed: make(chan struct{})}
}

func (c *readyCounter) counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sum
}

// of returns the status of a node's Ready condition, and whether the node is known.
func (c *readyCounter) of(name string) (corev1.ConditionStatus, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	status, known := c.ready[name]
	return status, known
}

// change returns a channel that is closed when the counts change.
func (c *readyCounter) change() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *readyCounter) wait(ctx context.Context, done func(Counts) bool) error {
	for {
		changed := c.change()
		if done(c.counts()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for nodes, of which there are %s: %w", c.counts(), context.Cause(ctx))
		case <-changed:
		}
	}
}

// run watches until ctx is done. A server that does not answer is asked again with
// the reflector's back-off.
func (c *readyCounter) run(ctx context.Context, api kubernetes.Interface) {
	nodes := api.CoreV1().Nodes()
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		},
	}, api)
	cache.NewReflectorWithOptions(lw, &corev1.Node{}, c, cache.ReflectorOptions{Name: "fleet"}).RunWithContext(ctx)
}

// readiness is the status of a node's Ready condition, or nothing.
func readiness(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func (s *Counts) add(status corev1.ConditionStatus, n int) {
	s.Registered += n
	switch status {
	case corev1.ConditionTrue:
		s.Ready += n
	case corev1.ConditionFalse:
		s.NotReady += n
	case corev1.ConditionUnknown:
		s.Unknown += n
	}
}

// arrived counts a node that has its first session.
func (c *readyCounter) arrived() { c.update(func() { c.sum.Joined++ }) }

func (c *readyCounter) setLocked(obj any) {
	n, ok := obj.(*corev1.Node)
	if !ok || !c.names[n.Name] {
		return
	}
	c.dropLocked(n.Name)
	c.ready[n.Name] = readiness(n)
	c.sum.add(c.ready[n.Name], 1)
}

func (c *readyCounter) dropLocked(name string) {
	if old, known := c.ready[name]; known {
		c.sum.add(old, -1)
		delete(c.ready, name)
	}
}

// update changes what is counted and tells those who wait.
func (c *readyCounter) update(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.sum
	f()
	if c.sum != before {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// Add implements cache.ReflectorStore.
func (c *readyCounter) Add(obj any) error { return c.Update(obj) }

// Update implements cache.ReflectorStore.
func (c *readyCounter) Update(obj any) error {
	c.update(func() { c.setLocked(obj) })
	return nil
}

// Delete implements cache.ReflectorStore.
func (c *readyCounter) Delete(obj any) error {
	if n, ok := obj.(*corev1.Node); ok {
		c.update(func() { c.dropLocked(n.Name) })
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (c *readyCounter) Replace(list []any, _ string) error {
	c.update(func() {
		clear(c.ready)
		c.sum = Counts{Joined: c.sum.Joined}
		for _, obj := range list {
			c.setLocked(obj)
		}
	})
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do.
func (c *readyCounter) Resync() error { return nil }
