package deployment

// Tests of rollouts in fake time.

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// TestMake: a new Deployment has one set, which is named and labelled by the template.
func TestMake(t *testing.T) {
	run(t, func(w *world) {
		w.sizes("v1=4")
		rs, d := w.sets()[0], w.get()
		h := rs.Labels["pod-template-hash"]
		labels := map[string]string{"app": "web", "pod-template-hash": h}
		if h == "" || rs.Name != "web-"+h || !maps.Equal(rs.Labels, labels) || !maps.Equal(rs.Spec.Selector.MatchLabels, labels) || !maps.Equal(rs.Spec.Template.Labels, labels) {
			t.Errorf("set %s: labels %v, selector %v, pods' labels %v", rs.Name, rs.Labels, rs.Spec.Selector, rs.Spec.Template.Labels)
		}
		if ref := metav1.GetControllerOf(rs); ref == nil || ref.Kind != "Deployment" || ref.APIVersion != "apps/v1" || ref.UID != d.UID || !ptr.Deref(ref.BlockOwnerDeletion, false) {
			t.Errorf("controller %+v", ref)
		}
		want := map[string]string{Revision: "1", DesiredReplicas: "4", MaxReplicas: "5", "kubernetes.io/change-cause": "first"}
		if !maps.Equal(rs.Annotations, want) {
			t.Errorf("annotations %v, want %v", rs.Annotations, want)
		}
		w.revisions("v1=1 now 1")
		w.heard("v1 0>4")
		w.status("4 updated 4 ready 0 available 0 unavailable 4 gen 1")
		w.condition(appsv1.DeploymentAvailable, "False MinimumReplicasUnavailable Deployment does not have minimum availability.")
		w.condition(appsv1.DeploymentProgressing, `True ReplicaSetUpdated ReplicaSet "$v1" is progressing.`)
		w.step()
		w.status("4 updated 4 ready 4 available 4 unavailable 0 gen 1")
		w.condition(appsv1.DeploymentAvailable, "True MinimumReplicasAvailable Deployment has minimum availability.")
		w.condition(appsv1.DeploymentProgressing, `True NewReplicaSetAvailable ReplicaSet "$v1" has successfully progressed.`)
		if n := ptr.Deref(w.get().Status.TerminatingReplicas, -1); n != 0 {
			t.Errorf("%d terminating", n)
		}
		// Sizes alone are no rollout.
		w.scale(6)
		w.heard("v1 4>6")
		w.revisions("v1=1 now 1")
		w.scale(0)
		w.status("0 updated 0 ready 0 available 0 unavailable 0 gen 3")
		w.scale(1)
		w.heard("v1 6>0", "v1 0>1")
	}, web(4, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{"kubernetes.io/change-cause": "first", corev1.LastAppliedConfigAnnotation: "{}"}
	}))
}

// TestRolling: at no time are there more pods than the surge allows, nor fewer that
// serve than may be unavailable.
func TestRolling(t *testing.T) {
	for _, tc := range []struct {
		surge, unavailable string
		most, least        int
		first              string // before any new pod serves
	}{
		{"25%", "25%", 13, 8, "v1=8 v2=5"},
		{"1", "0", 11, 10, "v1=10 v2=1"},
		{"0", "1", 10, 9, "v1=9 v2=1"},
		{"100%", "0", 20, 10, "v1=10 v2=10"},
		{"0", "100%", 10, 0, "v1=0 v2=10"},
		{"0%", "4%", 10, 9, "v1=9 v2=1"}, // both are nothing: one may be missing
	} {
		t.Run(tc.surge+"+"+tc.unavailable, func(t *testing.T) {
			run(t, func(w *world) {
				w.roll()
				w.heard("v1 0>10")
				planned := map[string]int{w.sets()[0].Name: 10}
				w.client.PrependReactor("*", "replicasets", func(a clienttesting.Action) (bool, runtime.Object, error) {
					o, ok := a.(interface{ GetObject() runtime.Object })
					if !ok || a.GetSubresource() != "" {
						return false, nil, nil
					}
					rs := o.GetObject().(*appsv1.ReplicaSet)
					planned[rs.Name] = size(rs)
					n := 0
					for _, one := range planned {
						n += one
					}
					if n > tc.most {
						t.Errorf("%d pods planned, at most %d allowed", n, tc.most)
					}
					return false, nil, nil
				})
				w.image("v2")
				w.sizes(tc.first)
				for w.step() {
					if n := len(children.Filter(apitest.Pods(w, w.client, "ns"), children.Ready)); n < tc.least {
						t.Errorf("%d serve, want %d", n, tc.least)
					}
				}
				w.sizes("v1=0 v2=10")
				w.revisions("v1=1 v2=2 now 2")
				w.status("10 updated 10 ready 10 available 10 unavailable 0 gen 2")
				w.condition(appsv1.DeploymentProgressing, `True NewReplicaSetAvailable ReplicaSet "$v2" has successfully progressed.`)
			}, web(10, func(d *appsv1.Deployment) { d.Spec.Strategy = rolling(tc.surge, tc.unavailable) }))
		})
	}
}

// TestRecreate: no new pod is made before the last old one has ended.
func TestRecreate(t *testing.T) {
	run(t, func(w *world) {
		w.roll()
		w.heard("v1 0>2")
		pods := apitest.Pods(w, w.client, "ns")
		for _, p := range pods {
			p.Spec.NodeName = "n" // so that it takes its time to go
			if _, err := w.client.CoreV1().Pods("ns").Update(w.ctx, p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		w.image("v2")
		w.settle(time.Minute)
		w.sizes("v1=0")
		w.heard("v1 2>0")
		w.status("0 updated 0 ready 0 available 0 unavailable 0 gen 2")
		if n := ptr.Deref(w.get().Status.TerminatingReplicas, -1); n != 2 {
			t.Errorf("%d terminating, want 2", n)
		}
		if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, pods[0].Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
		w.settle(time.Minute)
		w.sizes("v1=0")
		last, err := w.client.CoreV1().Pods("ns").Get(w.ctx, pods[1].Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		last.Status.Phase = corev1.PodFailed
		if _, err := w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, last, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle(0)
		w.sizes("v1=0 v2=2")
		w.heard("v2 0>2")
		w.scale(3)
		w.heard("v2 2>3")
		w.roll()
		w.status("3 updated 3 ready 3 available 3 unavailable 0 gen 3")
		w.condition(appsv1.DeploymentProgressing, `True NewReplicaSetAvailable ReplicaSet "$v2" has successfully progressed.`)
		// Back again: the set that there is gets its pods.
		for _, p := range children.Filter(apitest.Pods(w, w.client, "ns"), children.Terminating) {
			t.Errorf("%s is still on its way out", p.Name)
		}
		w.image("v1")
		w.roll()
		w.heard("v2 3>0", "v1 0>3")
		w.revisions("v1=3(1) v2=2 now 3")
	}, web(2, recreate))
}

// TestRecreateForeign: a pod of another namespace that names the uid of the old set does not hold
// the new one up.
func TestRecreateForeign(t *testing.T) {
	run(t, func(w *world) {
		w.roll()
		_, err := w.client.CoreV1().Pods("mallory").Create(w.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "mallory", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w.sets()[0], appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.image("v2")
		w.roll()
		w.sizes("v1=0 v2=2")
	}, web(2, recreate))
}

// TestUndo: a template that was there before has its set back, under a new revision.
func TestUndo(t *testing.T) {
	run(t, func(w *world) {
		w.roll()
		w.image("v2")
		w.roll()
		first := w.sets()[0].Name
		w.image("v1")
		w.roll()
		w.sizes("v1=2 v2=0")
		w.revisions("v1=3(1) v2=2 now 3")
		if w.sets()[0].Name != first {
			t.Errorf("another set of v1: %s, not %s", w.sets()[0].Name, first)
		}
		w.image("v2")
		w.roll()
		w.revisions("v1=3(1) v2=4(2) now 4")
		w.image("v1")
		w.roll()
		w.revisions("v1=5(1,3) v2=4(2) now 5")
		// In the middle of a rollout that goes wrong.
		w.broken = []string{"v3"}
		w.image("v3")
		w.roll()
		w.sizes("v1=2 v2=0 v3=1")
		w.image("v1")
		w.roll()
		w.sizes("v1=2 v2=0 v3=0")
		w.revisions("v1=7(1,3,5) v2=4(2) v3=6 now 7")
		w.condition(appsv1.DeploymentProgressing, `True NewReplicaSetAvailable ReplicaSet "$v1" has successfully progressed.`)
	}, web(2))
}

// TestRollOver: a template that changes before the rollout is done starts the next one
// at once, and pods that never served go first.
func TestRollOver(t *testing.T) {
	run(t, func(w *world) {
		w.roll()
		w.broken = []string{"v2"}
		w.image("v2")
		w.roll()
		w.sizes("v1=8 v2=5")
		w.heard("v1 0>10", "v2 0>3", "v1 10>8", "v2 3>5")
		w.image("v3")
		w.sizes("v1=8 v2=0 v3=5")
		w.roll()
		w.sizes("v1=0 v2=0 v3=10")
		w.status("10 updated 10 ready 10 available 10 unavailable 0 gen 3")
	}, web(10))
}

// TestHistory: sets beyond the limit go, those of the earliest revisions first.
func TestHistory(t *testing.T) {
	run(t, func(w *world) {
		for _, v := range []string{"v1", "v2", "v3", "v1", "v4", "v5"} {
			w.image(v)
			w.roll()
		}
		w.sizes("v1=0 v4=0 v5=2")
		w.revisions("v1=4(1) v4=5 v5=6 now 6")
		w.edit(func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = ptr.To[int32](0) })
		w.sizes("v5=2")
		w.edit(func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = nil })
		w.image("v6")
		w.roll()
		w.sizes("v5=0 v6=2")
	}, web(2, func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = ptr.To[int32](2) }))
}

// TestRecreateScaled: a rollout that becomes one of strategy Recreate half-way, with
// another size, comes to its end.
func TestRecreateScaled(t *testing.T) {
	run(t, func(w *world) {
		w.roll()
		w.broken = []string{"v2"}
		w.image("v2")
		w.sizes("v1=8 v2=5")
		w.broken = nil
		w.edit(func(d *appsv1.Deployment) {
			recreate(d)
			d.Spec.Replicas = ptr.To[int32](4)
		})
		w.roll()
		w.sizes("v1=0 v2=4")
		w.status("4 updated 4 ready 4 available 4 unavailable 0 gen 3")
	}, web(10))
}

// TestRecreateAlone: the end of the last old pod is noticed even if the set says
// nothing of it, as sets of another's controller may not.
func TestRecreateAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(web(1, recreate))
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, ctx: t.Context(), client: client, events: record.NewFakeRecorder(100)}
		_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Client: client, Informers: f, Events: w.events}, Config{})
		})
		w.settle(0)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "web-1", Namespace: "ns", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w.sets()[0], appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
		}}
		if _, err := client.CoreV1().Pods("ns").Create(w.ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle(0)
		w.image("v2")
		w.settle(time.Hour)
		w.sizes("v1=0")
		if err := client.CoreV1().Pods("ns").Delete(w.ctx, "web-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle(0)
		w.sizes("v1=0 v2=1")
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}
