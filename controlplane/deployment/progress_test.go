package deployment

// Tests in fake time of what stops a rollout, and of what is said of it.

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/children"
)

// TestPause: a paused Deployment is scaled and not rolled out.
func TestPause(t *testing.T) {
	pause := func(on bool) func(*appsv1.Deployment) { return func(d *appsv1.Deployment) { d.Spec.Paused = on } }
	run(t, func(w *world) {
		w.roll()
		w.edit(pause(true))
		w.condition(appsv1.DeploymentProgressing, "Unknown DeploymentPaused Deployment is paused")
		w.image("v2")
		w.scale(6)
		w.roll()
		w.sizes("v1=6")
		w.status("6 updated 0 ready 6 available 6 unavailable 0 gen 4")
		w.heard("v1 0>4", "v1 4>6")
		w.settle(time.Hour)
		w.condition(appsv1.DeploymentProgressing, "Unknown DeploymentPaused Deployment is paused")
		w.edit(pause(false))
		w.sizes("v1=5 v2=3")
		w.edit(pause(true)) // in the middle
		w.roll()
		w.sizes("v1=5 v2=3")
		w.edit(pause(false))
		w.roll()
		w.sizes("v1=0 v2=6")
		w.condition(appsv1.DeploymentProgressing, `True NewReplicaSetAvailable ReplicaSet "$v2" has successfully progressed.`)
	}, web(4))
}

// TestResumed: time that a Deployment was paused does not count as without progress.
func TestResumed(t *testing.T) {
	run(t, func(w *world) {
		w.broken = []string{"v2"}
		w.roll()
		w.image("v2")
		w.edit(func(d *appsv1.Deployment) { d.Spec.Paused = true })
		w.settle(time.Hour)
		w.edit(func(d *appsv1.Deployment) { d.Spec.Paused = false })
		w.condition(appsv1.DeploymentProgressing, "Unknown DeploymentResumed Deployment is resumed")
		w.settle(9 * time.Minute)
		w.condition(appsv1.DeploymentProgressing, "Unknown DeploymentResumed Deployment is resumed")
		w.settle(time.Minute)
		w.condition(appsv1.DeploymentProgressing, `False ProgressDeadlineExceeded ReplicaSet "$v2" has timed out progressing.`)
	}, web(4))
}

// TestProportional: a Deployment that is scaled in the middle of a rollout keeps the
// shares of its sets.
func TestProportional(t *testing.T) {
	run(t, func(w *world) {
		w.broken = []string{"v2"}
		w.roll()
		w.image("v2")
		w.roll()
		w.sizes("v1=8 v2=5")
		w.heard("v1 0>10", "v2 0>3", "v1 10>8", "v2 3>5")
		w.scale(15)
		w.sizes("v1=11 v2=7")
		w.heard("v2 5>7", "v1 8>11")
		// Down again, and on with the rollout. Of the old pods as many serve as must.
		w.scale(5)
		w.heard("v2 7>3", "v1 11>5", "v1 5>3", "v2 3>5")
		if n := len(children.Filter(apitest.Pods(w, w.client, "ns"), children.Ready)); n != 3 {
			t.Errorf("%d serve, want 3", n)
		}
		for _, rs := range w.sets() {
			if rs.Annotations[DesiredReplicas] != "5" || rs.Annotations[MaxReplicas] != "8" {
				t.Errorf("%s: %v", rs.Name, rs.Annotations)
			}
		}
		w.scale(0)
		w.sizes("v1=0 v2=0")
	}, web(10, func(d *appsv1.Deployment) { d.Spec.Strategy = rolling("3", "2") }))
}

// TestDeadline: want of progress is told when the time is over, once, and the rollout
// goes on nevertheless.
func TestDeadline(t *testing.T) {
	run(t, func(w *world) {
		w.broken = []string{"v2"}
		w.roll()
		w.image("v2")
		since := func() time.Duration {
			s := w.get().Status
			return time.Since(condition(&s, appsv1.DeploymentProgressing).LastUpdateTime.Time).Round(time.Second)
		}
		w.settle(56 * time.Second)
		w.condition(appsv1.DeploymentProgressing, `True ReplicaSetUpdated ReplicaSet "$v2" is progressing.`)
		if s := since(); s < 56*time.Second {
			t.Errorf("updated %v ago without any progress", s)
		}
		w.settle(4 * time.Second)
		w.condition(appsv1.DeploymentProgressing, `False ProgressDeadlineExceeded ReplicaSet "$v2" has timed out progressing.`)
		w.settle(time.Hour)
		if s := since(); s < time.Hour {
			t.Errorf("told again %v ago", s)
		}
		w.broken = nil
		w.roll()
		w.condition(appsv1.DeploymentProgressing, `True NewReplicaSetAvailable ReplicaSet "$v2" has successfully progressed.`)
		// A pod that is lost later is no lack of progress.
		pod := apitest.Pods(w, w.client, "ns")[0]
		w.broken = []string{"v2"}
		if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle(time.Hour)
		w.condition(appsv1.DeploymentProgressing, `True NewReplicaSetAvailable ReplicaSet "$v2" has successfully progressed.`)
		w.condition(appsv1.DeploymentAvailable, "True MinimumReplicasAvailable Deployment has minimum availability.")
		// Without a deadline nothing is said of progress.
		w.edit(func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil })
		w.condition(appsv1.DeploymentProgressing, "")
	}, web(4, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](60) }))
}

// TestFailures: what cannot be made is told by conditions, and made once it can be.
func TestFailures(t *testing.T) {
	refusal := apierrors.NewForbidden(corev1.Resource("x"), "x", errors.New("exceeded quota"))
	for _, tc := range []struct{ resource, progress, failure, event string }{
		{"pods", `True NewReplicaSetCreated Created new replica set "$v2"`, `True FailedCreate x "x" is forbidden: exceeded quota`, "v2 0>1"},
		{
			"replicasets", `False ReplicaSetCreateError Failed to create new replica set "NAME": x "x" is forbidden: exceeded quota`, "",
			`Warning ReplicaSetCreateError Failed to create new replica set "NAME": x "x" is forbidden: exceeded quota`,
		},
	} {
		t.Run(tc.resource, func(t *testing.T) {
			run(t, func(w *world) {
				w.roll()
				w.heard("v1 0>2")
				var refuse atomic.Bool
				refuse.Store(true)
				w.client.PrependReactor("create", tc.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					return refuse.Load(), nil, refusal
				})
				w.image("v2")
				next := template("v2")
				name := setName("web", children.TemplateHash(&next, nil))
				w.condition(appsv1.DeploymentProgressing, strings.ReplaceAll(tc.progress, "NAME", name))
				w.condition(appsv1.DeploymentReplicaFailure, tc.failure)
				events := apitest.Events(w.events)
				if len(events) == 0 || strings.HasPrefix(tc.event, "Warning") && events[0] != strings.ReplaceAll(tc.event, "NAME", name) {
					t.Errorf("events %q", events)
				}
				refuse.Store(false)
				w.settle(2 * time.Minute)
				w.roll()
				w.sizes("v1=0 v2=2")
				w.condition(appsv1.DeploymentReplicaFailure, "")
				w.condition(appsv1.DeploymentProgressing, `True NewReplicaSetAvailable ReplicaSet "$v2" has successfully progressed.`)
			}, web(2))
		})
	}
}

// TestCollision: a set of the name that the template gives, with another template, is
// left alone; the next name is tried.
func TestCollision(t *testing.T) {
	first := template("v1")
	other := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: setName("web", children.TemplateHash(&first, nil)), Namespace: "ns", Labels: map[string]string{"app": "other"}}}
	other.Spec = appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: other.Labels}, Template: template("v0")}
	run(t, func(w *world) {
		w.sizes("v0=0 v1=2")
		if n := w.get().Status.CollisionCount; n == nil || *n != 1 {
			t.Errorf("%v collisions, want 1", n)
		}
		if name, want := w.sets()[1].Name, setName("web", children.TemplateHash(&first, ptr.To[int32](1))); name != want || name == other.Name {
			t.Errorf("named %s, want %s", name, want)
		}
		if metav1.GetControllerOf(w.sets()[0]) != nil {
			t.Error("the other set has been taken")
		}
		w.roll()
		w.status("2 updated 2 ready 2 available 2 unavailable 0 gen 1")
	}, web(2), other)
}

// TestOwnership: a set whose labels match and that nobody controls is adopted and is
// the fresh one if its template is; a set whose labels no longer match is released.
func TestOwnership(t *testing.T) {
	orphan := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "stray", Namespace: "ns", Labels: map[string]string{"app": "web"}}}
	orphan.Spec = appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: orphan.Labels}, Template: template("v1")}
	theirs := orphan.DeepCopy()
	theirs.Name, theirs.OwnerReferences = "theirs", []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "other", UID: "other", Controller: ptr.To(true)}}
	theirs.Spec.Template = template("v9")
	run(t, func(w *world) {
		w.sizes("v1=2 v9=2")
		if !metav1.IsControlledBy(w.sets()[0], w.get()) || metav1.GetControllerOf(w.sets()[1]).UID != "other" {
			t.Errorf("controllers %v and %v", w.sets()[0].OwnerReferences, w.sets()[1].OwnerReferences)
		}
		w.revisions("v1=1 v9= now 1")
		patch := `{"metadata":{"labels":{"app":"debug"}}}`
		if _, err := w.client.AppsV1().ReplicaSets("ns").Patch(w.ctx, "stray", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle(0)
		var names []string
		for _, rs := range w.sets() {
			if metav1.IsControlledBy(rs, w.get()) {
				names = append(names, rs.Name)
			}
		}
		if len(names) != 1 || names[0] == "stray" {
			t.Errorf("it has %v, want one that is not stray", names)
		}
	}, web(2), orphan, theirs)
}

// TestMinReady: a rollout waits for pods to have been ready for long enough.
func TestMinReady(t *testing.T) {
	run(t, func(w *world) {
		w.step()
		w.status("2 updated 2 ready 2 available 0 unavailable 2 gen 1")
		w.settle(30 * time.Second)
		w.status("2 updated 2 ready 2 available 2 unavailable 0 gen 1")
		w.image("v2")
		w.step()
		w.sizes("v1=2 v2=1")
		w.settle(30 * time.Second)
		w.sizes("v1=1 v2=2")
		w.edit(func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 5 })
		if n := w.sets()[1].Spec.MinReadySeconds; n != 5 {
			t.Errorf("the set waits %d s, want 5", n)
		}
	}, web(2, func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 30; d.Spec.Strategy = rolling("1", "0") }))
}

// TestDeleted: a Deployment on its way out makes and scales nothing, and says what
// there is.
func TestDeleted(t *testing.T) {
	run(t, func(w *world) {
		w.roll()
		if err := w.client.AppsV1().Deployments("ns").Delete(w.ctx, "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}); err != nil {
			t.Fatal(err)
		}
		w.settle(0)
		w.image("v2")
		w.scale(5)
		w.sizes("v1=2")
		if err := w.client.AppsV1().ReplicaSets("ns").Delete(w.ctx, w.sets()[0].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle(time.Minute)
		w.sizes("")
		w.status("0 updated 0 ready 0 available 0 unavailable 0 gen 3")
	}, web(2))
}

// TestSlow: a rollout that makes progress now and then has its time anew each time.
func TestSlow(t *testing.T) {
	run(t, func(w *world) {
		w.roll()
		w.image("v2")
		began := time.Now()
		for {
			w.settle(40 * time.Second)
			w.condition(appsv1.DeploymentProgressing, `True ReplicaSetUpdated ReplicaSet "$v2" is progressing.`)
			w.step()
			if d := w.get(); complete(d, &d.Status) {
				break
			}
		}
		if d := time.Since(began); d < 2*time.Minute {
			t.Errorf("done in %v: not slow", d)
		}
		w.condition(appsv1.DeploymentProgressing, `True NewReplicaSetAvailable ReplicaSet "$v2" has successfully progressed.`)
	}, web(4, func(d *appsv1.Deployment) {
		d.Spec.ProgressDeadlineSeconds, d.Spec.Strategy = ptr.To[int32](60), rolling("1", "0")
	}))
}
