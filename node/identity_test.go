package node

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/fence"
	"github.com/hawser-project/hawser/node/runtime"
)

// A journal keeps the lines of a log.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// count is how many lines have text in them.
func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for line := range strings.Lines(j.text.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func withJournal(j *journal) func(w *world) {
	return func(w *world) { w.cfg.Log = slog.New(slog.NewTextHandler(j, nil)) }
}

var (
	nodeResource = corev1.SchemeGroupVersion.WithResource("nodes")
	podResource  = corev1.SchemeGroupVersion.WithResource("pods")
)

func (w *world) createPod(name string) {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: typesUID("uid-" + name)},
		Spec: corev1.PodSpec{
			NodeName:   "node-1",
			Containers: []corev1.Container{{Name: "main", Image: "busybox", Command: []string{"/bin/main"}}},
		},
	}
	if err := w.api.Tracker().Add(p); err != nil {
		w.t.Fatal(err)
	}
}

// running counts the containers that run.
func (w *world) running() int {
	w.t.Helper()
	list, err := w.rt.Containers(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return len(slices.DeleteFunc(list, func(c runtime.ContainerStatus) bool { return c.State != runtime.Running }))
}

// TestDeletedNode: an agent that runs does not make its node again, says so once,
// and stops the pods that are deleted with it; one that starts makes a new node.
func TestDeletedNode(t *testing.T) {
	var log journal
	inWorld(t, withJournal(&log), func(w *world) {
		w.createPod("a")
		advance(time.Minute)
		if n := w.running(); n != 1 {
			t.Fatalf("%d containers run, want one", n)
		}
		first, made := w.node(), len(w.times("create nodes"))
		if err := w.api.Tracker().Delete(nodeResource, "", "node-1"); err != nil {
			t.Fatal(err)
		}
		advance(10 * time.Minute)
		if n := w.running(); n != 1 {
			t.Errorf("%d containers run before the pod is deleted, want one", n)
		}
		if err := w.api.Tracker().Delete(podResource, "default", "a"); err != nil { // as the pod garbage collector does
			t.Fatal(err)
		}
		advance(time.Minute)
		if n := w.running(); n != 0 {
			t.Errorf("%d containers run although the pod was deleted", n)
		}
		w.createPod("b")
		advance(time.Minute)
		if n := w.running(); n != 0 {
			t.Errorf("%d containers were started on a node that does not exist", n)
		}
		if n := len(w.times("create nodes")); n != made {
			t.Errorf("the node was created %d times more", n-made)
		}
		if n := log.count("the node was deleted; restart the agent to register it anew"); n != 1 {
			t.Errorf("that the node was deleted is said %d times, want once", n)
		}

		w.stop()
		w.start()
		advance(10 * time.Second)
		if again := w.node(); again.UID == first.UID || len(again.Status.Capacity) == 0 {
			t.Errorf("after a restart the node is %s with capacity %v, want another than %s", again.UID, again.Status.Capacity, first.UID)
		}
		if n := w.running(); n != 1 {
			t.Errorf("%d containers run on the new node, want one", n)
		}
	})
}

// TestRestartKeepsTheNode: a node that restarts, or whose machine does, is the node
// it was, and keeps what others have said about it.
func TestRestartKeepsTheNode(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		advance(time.Minute)
		n := w.node().DeepCopy()
		n.Labels["disk"] = "ssd"
		n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
		n.Spec.PodCIDR = "10.1.2.0/24"
		if err := w.api.Tracker().Update(nodeResource, n, ""); err != nil {
			t.Fatal(err)
		}
		w.stop()
		write(t, w.root+"/proc/sys/kernel/random/boot_id", "boot-2\n")
		w.cfg.Taints = []corev1.Taint{{Key: "b", Effect: corev1.TaintEffectNoExecute}}
		w.start()
		advance(10 * time.Minute)
		got := w.node()
		if got.UID != n.UID || got.Labels["disk"] != "ssd" || got.Spec.PodCIDR != n.Spec.PodCIDR || len(got.Spec.Taints) != 1 || got.Spec.Taints[0].Key != "a" {
			t.Errorf("node %+v with %+v, want it as it was", got.ObjectMeta, got.Spec)
		}
		list, err := w.api.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		reboots := int32(0)
		for i := range list.Items {
			if e := &list.Items[i]; e.Reason == "Rebooted" {
				reboots += max(e.Count, 1)
			}
		}
		if reboots != 1 {
			t.Errorf("the reboot is told %d times, want once", reboots)
		}
	})
}

// TestFence: while another agent is the node, this one sends nothing and runs
// nothing.
func TestFence(t *testing.T) {
	var log journal
	f := &fence.Fence{}
	inWorld(t, func(w *world) {
		withJournal(&log)(w)
		w.cfg.Fence = f
	}, func(w *world) {
		w.createPod("a")
		advance(time.Minute)
		if n := w.running(); n != 1 {
			t.Fatalf("%d containers run, want one", n)
		}
		uid := w.node().UID
		w.api.ClearActions()
		f.Set(true)
		advance(time.Minute)
		if n := w.running(); n != 0 {
			t.Errorf("%d containers run behind the fence", n)
		}
		// The other agent speaks for the node.
		n := w.node().DeepCopy()
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.9"}}
		if err := w.api.Tracker().Update(nodeResource, n, ""); err != nil {
			t.Fatal(err)
		}
		advance(10 * time.Minute)
		for _, a := range w.api.Actions() {
			if a.GetResource().Resource != "events" {
				t.Errorf("%s %s/%s while fenced", a.GetVerb(), a.GetResource().Resource, a.GetSubresource())
			}
		}
		if n := log.count("the server does not take this agent for the node any more"); n != 1 {
			t.Errorf("it is said %d times, want once", n)
		}

		f.Set(false)
		advance(15 * time.Second)
		if n := w.running(); n != 1 {
			t.Errorf("%d containers run once the node is this agent's again, want one", n)
		}
		if got := w.node(); got.UID != uid || len(got.Status.Addresses) == 0 || got.Status.Addresses[0].Address != "192.0.2.7" {
			t.Errorf("node %s has addresses %v", got.UID, got.Status.Addresses)
		}
		leases := len(w.times("update leases"))
		advance(time.Minute)
		if n := len(w.times("update leases")) - leases; n < 5 {
			t.Errorf("the lease was renewed %d times in a minute", n)
		}
		if n := log.count("the node is this agent's again"); n != 1 {
			t.Errorf("that it is over is said %d times, want once", n)
		}
		if n := len(w.times("create nodes")); n != 1 {
			t.Errorf("the node was created %d times, want once", n)
		}
	})
}

// TestRegistersAnewAfterFence: a node whose object was deleted while it was fenced, as
// is one whose identity ended with the object, makes it again once it is admitted.
func TestRegistersAnewAfterFence(t *testing.T) {
	f := &fence.Fence{}
	inWorld(t, func(w *world) { w.cfg.Fence = f }, func(w *world) {
		w.createPod("a")
		advance(time.Minute)
		first := w.node().UID
		f.Set(true)
		advance(time.Minute)
		if err := errors.Join(w.api.Tracker().Delete(nodeResource, "", "node-1"), w.api.Tracker().Delete(podResource, "default", "a")); err != nil {
			t.Fatal(err)
		}
		advance(time.Hour)
		f.Set(false)
		advance(time.Minute)
		if again := w.node(); again.UID == first || len(again.Status.Capacity) == 0 {
			t.Errorf("the node is %s with capacity %v, want another than %s", again.UID, again.Status.Capacity, first)
		}
		if n := w.running(); n != 0 {
			t.Errorf("%d containers of deleted pods run", n)
		}
	})
}
