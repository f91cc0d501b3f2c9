// What a cluster's objects go through: every version of its nodes, its pods and
// its events, as a watch tells of them.

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// A history grows until its test ends. What is judged by it has happened in this
// order, however slow the machine is: no look comes too late.
type history struct {
	mu     sync.Mutex
	nodes  map[string][]*corev1.Node // by name; guarded by mu, as are those below
	pods   []*corev1.Pod             // of the namespace default
	gone   []*corev1.Pod             // the last versions of those that were deleted
	events []*corev1.Event           // of all namespaces
	broken error
	notify chan struct{}
}

// watch begins a history with what there is.
func (c *cluster) watch(t *testing.T) *history {
	t.Helper()
	h := &history{nodes: map[string][]*corev1.Node{}}
	core := c.client.CoreV1().RESTClient()
	ctx, cancel := context.WithCancel(context.Background())
	var followers sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		followers.Wait()
	})
	for resource, namespace := range map[string]string{"nodes": "", "pods": "default", "events": ""} {
		lw := cache.NewListWatchFromClient(core, resource, namespace, fields.Everything())
		list, err := lw.ListWithContext(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		h.begin(list)
		from := list.(metav1.ListInterface).GetResourceVersion()
		w, err := watchtools.NewRetryWatcherWithContext(ctx, from, lw)
		if err != nil {
			t.Fatal(err)
		}
		followers.Go(func() {
			for e := range w.ResultChan() {
				h.add(e)
			}
			if ctx.Err() == nil {
				h.add(watch.Event{Type: watch.Error, Object: &metav1.Status{Message: "the watch of " + resource + " has ended"}})
			}
		})
	}
	return h
}

func (h *history) begin(list runtime.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch l := list.(type) {
	case *corev1.NodeList:
		for i := range l.Items {
			n := &l.Items[i]
			h.nodes[n.Name] = append(h.nodes[n.Name], n)
		}
	case *corev1.PodList:
		for i := range l.Items {
			h.pods = append(h.pods, &l.Items[i])
		}
	case *corev1.EventList: // what was before is not of this history
	}
}

func (h *history) add(e watch.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch o := e.Object.(type) {
	case *corev1.Node:
		h.nodes[o.Name] = append(h.nodes[o.Name], o)
	case *corev1.Pod:
		h.pods = append(h.pods, o)
		if e.Type == watch.Deleted {
			h.gone = append(h.gone, o)
		}
	case *corev1.Event:
		h.events = append(h.events, o)
	default:
		h.broken = fmt.Errorf("%s: %v", e.Type, e.Object)
	}
	if h.notify != nil {
		close(h.notify)
		h.notify = nil
	}
}

// until waits until check returns nil; it is asked whenever there is news.
func (h *history) until(t *testing.T, what string, check func() error) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		h.mu.Lock()
		if h.notify == nil {
			h.notify = make(chan struct{})
		}
		news, broken := h.notify, h.broken
		h.mu.Unlock()
		err := check()
		if err == nil {
			return
		}
		if broken != nil {
			t.Fatalf("%s: %v; %v", what, err, broken)
		}
		select {
		case <-news:
		case <-timer.C:
			t.Fatalf("%s: %v", what, err)
		}
	}
}

var errNotYet = errors.New("not yet")

// node waits for a version of a node that is like so and returns the first.
func (h *history) node(t *testing.T, name, what string, matches func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	var found *corev1.Node
	h.until(t, name+" "+what, func() error {
		last := errNotYet
		for _, n := range h.versions(name) {
			if matches(n) {
				found = n
				return nil
			}
			last = fmt.Errorf("conditions %v, taints %v", n.Status.Conditions, n.Spec.Taints)
		}
		return last
	})
	return found
}

// versions are those of a node so far.
func (h *history) versions(name string) []*corev1.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clip(h.nodes[name])
}

// latest is the last version of a node so far; an empty one if there is none.
func (h *history) latest(name string) *corev1.Node {
	if versions := h.versions(name); len(versions) > 0 {
		return versions[len(versions)-1]
	}
	return new(corev1.Node)
}

// pod waits for a version of a pod that is like so and returns the first.
func (h *history) pod(t *testing.T, what string, matches func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	h.until(t, what, func() error {
		for _, p := range h.allPods() {
			if matches(p) {
				found = p
				return nil
			}
		}
		return errNotYet
	})
	return found
}

func (h *history) allPods() []*corev1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clip(h.pods)
}

// latestPod is the last version of a pod so far, or nil.
func (h *history) latestPod(uid types.UID) *corev1.Pod {
	pods := h.allPods()
	for i := len(pods) - 1; i >= 0; i-- {
		if pods[i].UID == uid {
			return pods[i]
		}
	}
	return nil
}

// lost waits until a pod's object has been deleted and returns its last version.
func (h *history) lost(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	var last *corev1.Pod
	h.until(t, "the object of "+p.Name+" is gone", func() error {
		last = h.goneAlready(p.UID)
		if last == nil {
			return errNotYet
		}
		return nil
	})
	return last
}

// goneAlready is the last version of a pod whose object was deleted, or nil.
func (h *history) goneAlready(uid types.UID) *corev1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.gone {
		if p.UID == uid {
			return p
		}
	}
	return nil
}

// told counts how often an event with a reason, or any, has been told of an object, by its
// name, with a message that has this in it.
func (h *history) told(reason, name, message string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	counts := map[types.UID]int{}
	for _, e := range h.events {
		if (reason == "" || e.Reason == reason) && e.InvolvedObject.Name == name && strings.Contains(e.Message, message) {
			n := int(e.Count)
			if e.Series != nil {
				n = int(e.Series.Count)
			}
			counts[e.UID] = max(counts[e.UID], n, 1)
		}
	}
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum
}

// condition returns a condition of a node, the zero value if it has none.
func condition(n *corev1.Node, of corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// is is what a node is like that has this condition.
func is(of corev1.NodeConditionType, status corev1.ConditionStatus) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return condition(n, of).Status == status }
}

// taint returns a node's taint, or nil.
func taint(n *corev1.Node, key string, effect corev1.TaintEffect) *corev1.Taint {
	for i := range n.Spec.Taints {
		if t := &n.Spec.Taints[i]; t.Key == key && t.Effect == effect {
			return t
		}
	}
	return nil
}

// evicting is the taint for which pods leave an unreachable node, or nil.
func evicting(n *corev1.Node) *corev1.Taint {
	return taint(n, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
}

// podReady is the status of a pod's Ready condition.
func podReady(p *corev1.Pod) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status
		}
	}
	return ""
}

// toldToGo is when a pod was asked to end, to the second that the API keeps.
func toldToGo(p *corev1.Pod) time.Time {
	return p.DeletionTimestamp.Add(-time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
}
