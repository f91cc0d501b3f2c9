package pods

// Tests of mirror pods: the API has static pods and does not change them.

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/node/runtime/memory"
)

// nodeUID is that of the node of the mirrors.
const nodeUID = "uid-of-node-1"

// online makes the server reachable and the node registered.
func (w *staticWorld) online() {
	w.setOffline(false)
	w.registered(nodeUID)
}

func (w *staticWorld) registered(uid types.UID) {
	w.node.Store(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: thisNode, UID: uid}})
	if w.runner != nil {
		w.runner.Wake()
	}
}

// mirrorServer handles mirrors as the API server does.
func (w *staticWorld) mirrorServer() {
	n := 0
	w.api.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, apiruntime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.offline {
			return true, nil, errNoConnection
		}
		p := a.(k8stesting.CreateAction).GetObject().(*corev1.Pod)
		owner := metav1.GetControllerOf(p)
		if !isMirror(p) || p.UID != "" || len(p.Labels) > 0 || p.Spec.NodeName != thisNode || owner == nil || owner.Kind != "Node" {
			w.t.Errorf("a node may not make %+v", p)
			return true, nil, errors.New("forbidden")
		}
		n++
		p.UID, p.CreationTimestamp = types.UID(fmt.Sprintf("mirror-%d", n)), metav1.Now()
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort}
		return false, nil, nil
	})
}

// TestMirror: the mirror of a static pod in the API, and how the pod is found by it.
func TestMirror(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		a := staticPod("a", "1")
		a.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}, NodeAffinity: &corev1.NodeAffinity{}}
		w.define(a)
		w.start()
		advance(time.Minute)
		w.setOffline(false)
		advance(time.Minute)
		if p := w.find("default", a.Name); p != nil {
			t.Errorf("a node that is not registered shows %v", p.ObjectMeta)
		}
		w.online()
		advance(time.Second)
		m := w.pod(a.Name)
		if o := metav1.GetControllerOf(m); m.Annotations[corev1.MirrorPodAnnotationKey] != string(a.UID) || o.Name != thisNode || o.UID != nodeUID {
			t.Errorf("%+v", m.ObjectMeta)
		}
		if f := m.Spec.Affinity; f.PodAntiAffinity != nil || f.NodeAffinity == nil {
			t.Errorf("affinity %+v", f)
		}
		w.wantState(a.Name, "main", "Running")
		w.wantStarts(a, 1, true)
		w.rt.Exit(a.Name, "main", 1)
		advance(time.Minute)
		if got := w.pod(a.Name).Status.ContainerStatuses[0].RestartCount; got != 1 {
			t.Errorf("restart count %d, want 1", got)
		}
		name := types.NamespacedName{Namespace: "default", Name: a.Name}
		for _, uid := range []types.UID{"", a.UID, m.UID} {
			if p, err := w.runner.Pod(w.t.Context(), name, uid); err != nil || p.UID != a.UID {
				t.Errorf("uid %q leads to %v, %v", uid, p, err)
			}
		}
		if list, err := w.runner.Pods(w.t.Context()); err != nil || len(list) != 1 || list[0].UID != a.UID {
			t.Errorf("pods %v, %v", list, err)
		}
		w.wantEvent(a.Name + " Normal Started")
	})
}

// TestMirrorDeleted: a deleted mirror is made again, with the same process. It is removed with
// the file.
func TestMirrorDeleted(t *testing.T) {
	inStaticWorld(t, slow, func(w *staticWorld) {
		w.online()
		one, two := staticPod("a", "1"), staticPod("a", "2")
		w.define(one)
		w.start()
		advance(time.Second)
		last := w.pod(one.Name).UID
		for _, seconds := range []int64{-1, 30, 0, -1} { // negative: at once, as the API server does it
			w.remove(one.Name, seconds)
			advance(time.Minute)
			m := w.pod(one.Name)
			if m.UID == last || m.DeletionTimestamp != nil {
				t.Errorf("deleted in %d s: the mirror is %s, was %s", seconds, m.UID, last)
			}
			last = m.UID
			w.wantState(one.Name, "main", "Running")
			w.wantStarts(one, 1, true)
		}
		w.update(one.Name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }) // as pod GC does
		advance(time.Minute)
		w.wantPhase(one.Name, corev1.PodRunning)
		w.wantStarts(one, 1, true)

		last = w.pod(one.Name).UID
		w.define(two)
		advance(time.Second)
		if m := w.pod(one.Name); m.UID != last {
			t.Error("the mirror of a pod that is being stopped was replaced")
		}
		advance(time.Minute)
		if m := w.pod(one.Name); m.Annotations[corev1.MirrorPodAnnotationKey] != string(two.UID) || m.UID == last {
			t.Errorf("the mirror of another content is %v", m.ObjectMeta)
		}
		w.define()
		advance(time.Second)
		w.pod(one.Name) // still
		advance(time.Minute)
		if m := w.find("default", one.Name); m != nil {
			t.Errorf("the file has gone, and there is %v", m.ObjectMeta)
		}
	})
}

// TestMirrorRunsNothing: a mirror without a static pod, of an earlier agent or forged, is not run
// and is deleted. An annotation of a pod in the API does not make it a static one.
func TestMirrorRunsNothing(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		w.online()
		orphan := newPod("orphan", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"} })
		claims := newPod("claims", func(p *corev1.Pod) { p.Annotations = staticPod("a", "1").Annotations })
		w.create(orphan)
		w.create(claims)
		w.files.read = false
		w.start()
		advance(time.Minute)
		w.pod("orphan") // whether there is a file for it is not known
		w.wantStarts(orphan, 0, false)
		w.files.read = true
		w.define()
		advance(time.Minute)
		if m := w.find("default", "orphan"); m != nil {
			t.Errorf("there is %v", m.ObjectMeta)
		}
		w.wantStarts(orphan, 0, false)
		w.wantStarts(claims, 1, true)
		w.restart()
		w.setOffline(true)
		advance(time.Minute)
		w.wantStarts(claims, 1, true)
	})
}

// TestMirrorForged: a mirror that another user has made before the node is replaced by the node's
// own, and its content does not affect another pod.
func TestMirrorForged(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		w.online()
		a, other := staticPod("a", "1"), newPod("other", nil)
		w.create(other)
		forge := func(hash types.UID) *corev1.Pod {
			return newPod(a.Name, func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: string(hash)} })
		}
		for _, hash := range []types.UID{a.UID, other.UID} {
			forged := forge(hash)
			w.create(forged)
			w.files.read = false // else it would be deleted at once
			w.define()
			w.start()
			name := types.NamespacedName{Namespace: "default", Name: a.Name}
			if p, err := w.runner.Pod(w.t.Context(), name, forged.UID); err == nil {
				t.Errorf("it leads to %v", p.ObjectMeta)
			}
			w.files.read = true
			w.define(a)
			advance(time.Minute)
			if m := w.pod(a.Name); m.UID == forged.UID || m.Annotations[corev1.MirrorPodAnnotationKey] != string(a.UID) {
				t.Errorf("%+v", m.ObjectMeta)
			}
			w.wantStarts(a, 1, true)
			w.define()
			advance(time.Minute)
			w.stop()
		}
		w.start()
	})
}

// TestMirrorOfNewNode: a Node that was made again has mirrors of its own, and a deleted one has
// none.
func TestMirrorOfNewNode(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		w.online()
		a := staticPod("a", "1")
		w.define(a)
		w.start()
		advance(time.Second)
		first := w.pod(a.Name).UID
		w.registered("another")
		advance(time.Minute)
		if m := w.pod(a.Name); m.UID == first || m.OwnerReferences[0].UID != "another" {
			t.Errorf("%+v", m.ObjectMeta)
		}
		w.node.Store(nil)
		w.remove(a.Name, -1)
		advance(time.Hour)
		if m := w.find("default", a.Name); m != nil {
			t.Errorf("a node that is no more shows %v", m.ObjectMeta)
		}
		w.wantStarts(a, 1, true)
	})
}

// TestMirrorRefused: a mirror that the server refuses is tried again with back-off, and logged
// once.
func TestMirrorRefused(t *testing.T) {
	inStaticWorld(t, memory.Options{}, func(w *staticWorld) {
		w.online()
		tries := 0
		w.api.PrependReactor("create", "pods", func(k8stesting.Action) (bool, apiruntime.Object, error) {
			tries++
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("no"))
		})
		a := staticPod("a", "1")
		w.define(a)
		w.start()
		advance(10 * time.Minute)
		if tries < 10 || tries > 40 {
			t.Errorf("tried %d times in ten minutes", tries)
		}
		if n := len(w.logged("is not shown as it is")); n != 1 {
			t.Errorf("told %d times", n)
		}
		w.wantStarts(a, 1, true)
	})
}
