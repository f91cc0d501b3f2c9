package statefulset

// Tests of the controller in fake time.

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a lab with a StatefulSet s and the controller, which said events.
type world struct {
	*apitest.Lab
	events *record.FakeRecorder
	ctl    *Controller
}

type edit = func(*appsv1.StatefulSet)

// set is a StatefulSet of three pods as the API server would have it, changed by edits.
func set(edits ...edit) *appsv1.StatefulSet {
	match := map[string]string{"app": "s"}
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](3), ServiceName: "front", PodManagementPolicy: appsv1.OrderedReadyPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: match}, RevisionHistoryLimit: ptr.To[int32](10),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: match}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
			},
			UpdateStrategy: rolling(0, "1"),
		},
	}
	for _, e := range edits {
		e(s)
	}
	return s
}

func rolling(partition int32, unavailable string) appsv1.StatefulSetUpdateStrategy {
	return appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{
		Partition: &partition, MaxUnavailable: ptr.To(intstr.Parse(unavailable)),
	}}
}

func strategy(u appsv1.StatefulSetUpdateStrategy) edit {
	return func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy = u }
}

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }

func replicas(n int32) edit { return func(s *appsv1.StatefulSet) { s.Spec.Replicas = &n } }

func image(image string) edit {
	return func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = image }
}

// claiming has each pod claim data, with what becomes of the claims.
func claiming(deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType) edit {
	return func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"own": "label"}}}}
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: deleted, WhenScaled: scaled}
	}
}

func run(t *testing.T, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{Lab: apitest.NewLab(t, nil, objs...), events: record.NewFakeRecorder(100000)}
		w.ctl = apitest.Run(w.Lab, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Client: w.Client, Informers: f, Events: w.events}, Config{})
		})
		w.settle(0)
		f(w)
		w.Stop()
		if left := w.ctl.pods.Remembered(); len(left) != 0 {
			t.Errorf("still remembered: %v", left)
		}
	})
}

// settle lets d pass and what it sets off come to an end.
func (w *world) settle(d time.Duration) {
	<-time.After(d + 100*time.Millisecond)
	synctest.Wait()
}

func (w *world) set() *appsv1.StatefulSet {
	w.Helper()
	s, err := w.Client.AppsV1().StatefulSets("ns").Get(w.Context(), "s", metav1.GetOptions{})
	w.Must(err)
	return s
}

func (w *world) edit(edits ...edit) {
	w.Helper()
	s := w.set()
	for _, e := range edits {
		e(s)
	}
	_, err := w.Client.AppsV1().StatefulSets("ns").Update(w.Context(), s, metav1.UpdateOptions{})
	w.Must(err)
	w.settle(0)
}

func (w *world) pods() []*corev1.Pod { w.Helper(); return apitest.Pods(w, w.Client, "ns") }

// has wants these pods: ORDINAL=IMAGE, with - in front if it is being deleted and * behind
// if it is ready.
func (w *world) has(want string) {
	w.Helper()
	var got []string
	for _, p := range w.pods() {
		s := strings.TrimPrefix(p.Name, "s-") + "=" + p.Spec.Containers[0].Image
		if p.DeletionTimestamp != nil {
			s = "-" + s
		}
		if children.Ready(p) {
			s += "*"
		}
		got = append(got, s)
	}
	slices.Sort(got)
	if s := strings.Join(got, " "); s != want {
		w.Errorf("at %v: %s; want %s", time.Since(w.Start), s, want)
	}
}

// phase has the pods of ordinals be on a node and in a phase; those that run are ready.
func (w *world) phase(phase corev1.PodPhase, ordinals ...int) {
	w.Helper()
	for _, n := range ordinals {
		p, err := w.Client.CoreV1().Pods("ns").Get(w.Context(), fmt.Sprintf("s-%d", n), metav1.GetOptions{})
		w.Must(err)
		p.Spec.NodeName = "node"
		p, err = w.Client.CoreV1().Pods("ns").Update(w.Context(), p, metav1.UpdateOptions{})
		w.Must(err)
		p.Status = corev1.PodStatus{Phase: phase}
		if phase == corev1.PodRunning {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		}
		_, err = w.Client.CoreV1().Pods("ns").UpdateStatus(w.Context(), p, metav1.UpdateOptions{})
		w.Must(err)
		w.settle(0)
	}
}

// up has each of n pods run as soon as it is there.
func (w *world) up(n int) {
	w.Helper()
	for i := range n {
		w.phase(corev1.PodRunning, i)
	}
}

// gone has nodes end the pods that they have been told to.
func (w *world) gone() {
	w.Helper()
	for _, p := range w.pods() {
		if p.DeletionTimestamp != nil {
			w.Must(w.Client.CoreV1().Pods("ns").Delete(w.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		}
	}
	w.settle(0)
}

// status wants this status, with revisions by the image of their template.
func (w *world) status(want string) {
	w.Helper()
	s := w.set().Status
	image := func(name string) string {
		r, err := w.Client.AppsV1().ControllerRevisions("ns").Get(w.Context(), name, metav1.GetOptions{})
		w.Must(err)
		_, image, _ := strings.Cut(string(r.Data.Raw), `"image":"`)
		image, _, _ = strings.Cut(image, `"`)
		return image
	}
	got := fmt.Sprintf("%d ready %d available %d %s %d %s %d", s.Replicas, s.ReadyReplicas, s.AvailableReplicas,
		image(s.CurrentRevision), s.CurrentReplicas, image(s.UpdateRevision), s.UpdatedReplicas)
	if got != want {
		w.Errorf("at %v: status %s, want %s", time.Since(w.Start), got, want)
	}
}

// claims wants these claims: ORDINAL, with :OWNER for each owner.
func (w *world) claims(want string) {
	w.Helper()
	list, err := w.Client.CoreV1().PersistentVolumeClaims("ns").List(w.Context(), metav1.ListOptions{})
	w.Must(err)
	var got []string
	for i := range list.Items {
		s := strings.TrimPrefix(list.Items[i].Name, "data-s-")
		for _, r := range list.Items[i].OwnerReferences {
			s += ":" + r.Name
		}
		got = append(got, s)
	}
	if s := strings.Join(got, " "); s != want {
		w.Errorf("claims %s, want %s", s, want)
	}
}

// TestOrdered: pods are made upward, each when the one before it is ready, and deleted
// downward, each when the one above it is gone.
func TestOrdered(t *testing.T) {
	run(t, func(w *world) {
		w.has("0=one")
		p := w.pods()[0]
		if p.Spec.Hostname != "s-0" || p.Spec.Subdomain != "front" || p.Labels[appsv1.StatefulSetPodNameLabel] != "s-0" || p.Labels[appsv1.PodIndexLabel] != "0" ||
			p.Labels[appsv1.ControllerRevisionHashLabelKey] != w.set().Status.UpdateRevision || !metav1.IsControlledBy(p, w.set()) {
			t.Errorf("the first pod is %+v", p)
		}
		w.phase(corev1.PodRunning, 0)
		w.has("0=one* 1=one")
		w.up(2)
		w.phase(corev1.PodRunning, 2)
		w.has("0=one* 1=one* 2=one*")
		w.status("3 ready 3 available 3 one 3 one 3")
		w.edit(replicas(1))
		w.has("-2=one* 0=one* 1=one*")
		w.gone()
		w.has("-1=one* 0=one*")
		w.gone()
		w.has("0=one*")
		w.status("1 ready 1 available 1 one 1 one 1")
		// Whoever deletes a pod gets the same again, and never two.
		w.Must(w.Client.CoreV1().Pods("ns").Delete(t.Context(), "s-0", metav1.DeleteOptions{}))
		w.settle(0)
		w.has("-0=one*")
		w.gone()
		w.has("0=one")
		// One that has failed is replaced.
		failed := w.pods()[0].UID
		w.phase(corev1.PodFailed, 0)
		w.has("0=one")
		if w.pods()[0].UID == failed {
			t.Error("the pod that has failed is still there")
		}
		got := apitest.Events(w.events)
		for _, want := range []string{
			"Normal SuccessfulCreate Create Pod s-0 in StatefulSet s successful", "Normal SuccessfulDelete Delete Pod s-2 in StatefulSet s successful",
			"Warning RecreatingFailedPod StatefulSet ns/s is recreating failed Pod s-0",
		} {
			if !slices.Contains(got, want) {
				t.Errorf("no event %q in %q", want, got)
			}
		}
	}, set())
}

// TestSmaller: pods of ordinals that are none any more go one after the other, ready or not,
// once those that stay are ready.
func TestSmaller(t *testing.T) {
	run(t, func(w *world) {
		w.up(3)
		w.phase(corev1.PodPending, 0, 1, 2)
		w.edit(replicas(1))
		w.has("0=one 1=one 2=one")
		w.phase(corev1.PodRunning, 0)
		w.has("-2=one 0=one* 1=one")
		w.gone()
		w.has("-1=one 0=one*")
		w.gone()
		w.has("0=one*")
	}, set())
}

// TestFailed: a pod that fails is replaced, and one that fails again at once later.
func TestFailed(t *testing.T) {
	run(t, func(w *world) {
		for i, pause := range []time.Duration{0, 300 * time.Millisecond, 1300 * time.Millisecond} {
			w.phase(corev1.PodFailed, 0)
			if failed := w.pods()[0].Status.Phase == corev1.PodFailed; failed != (pause > 0) {
				t.Errorf("%d: failed still: %v", i, failed)
			}
			w.settle(pause + 500*time.Millisecond)
			if p := w.pods(); len(p) != 1 || p[0].Status.Phase == corev1.PodFailed {
				t.Errorf("%d: not replaced: %v", i, p)
			}
		}
	}, set())
}

// TestNotDeleted: a pod that could not be deleted was not replaced, and is no reason to wait.
func TestNotDeleted(t *testing.T) {
	run(t, func(w *world) {
		var refused atomic.Int64
		w.Failing(func(verb, resource, _ string) error {
			if verb == "delete" && resource == "pods" && refused.Add(1) <= 5 {
				return errors.New("no answer")
			}
			return nil
		})
		w.phase(corev1.PodFailed, 0)
		w.settle(3 * time.Second)
		if p := w.pods(); refused.Load() < 6 || len(p) != 1 || p[0].Status.Phase == corev1.PodFailed {
			t.Errorf("after %d deletions: %v", refused.Load(), p)
		}
		w.phase(corev1.PodFailed, 0)
		w.settle(children.DefaultMinBackoff)
		if p := w.pods(); len(p) != 1 || p[0].Status.Phase == corev1.PodFailed {
			t.Errorf("the second that failed was not replaced after the shortest pause: %v", p)
		}
	}, set())
}

// TestHuge: a set that asks for as many pods as can be asked for gets some at a time, and
// holds no memory for the others.
func TestHuge(t *testing.T) {
	far := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "s-2147483000"}}
	l := newLook(set(parallel, replicas(math.MaxInt32)), nil, &appsv1.ControllerRevision{}, []*corev1.Pod{far})
	l.decide(func(int) time.Duration { return 0 })
	if len(l.missing) != children.MaxWrites || len(l.slots) != children.MaxWrites+1 || len(l.removals)+len(l.excess) != 0 || l.absent != math.MaxInt32-1 {
		t.Errorf("%d missing, %d slots, %d removals, %d absent", len(l.missing), len(l.slots), len(l.removals), l.absent)
	}
}

// TestParallel: pods are made and deleted at once.
func TestParallel(t *testing.T) {
	run(t, func(w *world) {
		w.has("0=one 1=one 2=one")
		w.up(3)
		w.edit(replicas(1))
		w.has("-1=one* -2=one* 0=one*")
		w.gone()
		w.edit(replicas(2), func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} })
		w.has("-0=one* 5=one 6=one")
	}, set(parallel))
}

// TestParallelBroken: pods of another template that do not run are replaced at once, and do not
// hold up what replaces them. Those that run are kept as long as too many do not.
func TestParallelBroken(t *testing.T) {
	run(t, func(w *world) {
		w.phase(corev1.PodPending, 0, 1, 2)
		w.edit(image("two"))
		w.has("-0=one -1=one -2=one")
		w.gone()
		w.has("0=two 1=two 2=two")
	}, set(parallel))
	run(t, func(w *world) {
		w.up(4)
		w.phase(corev1.PodPending, 0, 2)
		w.edit(image("two"))
		w.has("-2=one 0=one 1=one* 3=one*")
		w.gone()
		w.has("0=one 1=one* 2=two 3=one*")
		w.phase(corev1.PodRunning, 0, 2)
		w.has("-3=one* 0=one* 1=one* 2=two*")
	}, set(parallel, replicas(4), strategy(rolling(1, "1"))))
	run(t, func(w *world) {
		w.up(3)
		w.phase(corev1.PodPending, 1)
		w.phase(corev1.PodFailed, 0)
		apitest.Events(w.events)
		w.edit(image("two"))
		w.has("-1=one -2=one* 0=two")
		deleted := slices.DeleteFunc(apitest.Events(w.events), func(e string) bool { return !strings.HasPrefix(e, "Normal SuccessfulDelete Delete") })
		if len(deleted) != 3 {
			t.Errorf("deleted are %q", deleted)
		}
	}, set(parallel, strategy(rolling(0, "3"))))
}

// TestRolling: pods are replaced from the last one down, one at a time, and a broken one
// holds the others up.
func TestRolling(t *testing.T) {
	run(t, func(w *world) {
		w.up(3)
		w.edit(image("two"))
		w.has("-2=one* 0=one* 1=one*")
		w.gone()
		w.has("0=one* 1=one* 2=two")
		w.status("3 ready 2 available 2 one 2 two 1")
		w.phase(corev1.PodRunning, 2)
		w.gone()
		w.phase(corev1.PodRunning, 1)
		w.gone()
		w.phase(corev1.PodRunning, 0)
		w.has("0=two* 1=two* 2=two*")
		w.status("3 ready 3 available 3 two 3 two 3")
		w.edit(image("three"))
		w.gone()
		w.edit(image("two")) // undone before the new one was ready: a person deletes it
		w.has("0=two* 1=two* 2=three")
		w.Must(w.Client.CoreV1().Pods("ns").Delete(t.Context(), "s-2", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		w.settle(0)
		w.has("0=two* 1=two* 2=two")
	}, set())
}

// TestPartition: pods below it keep the template that they had, even if they are made anew.
func TestPartition(t *testing.T) {
	run(t, func(w *world) {
		w.up(3)
		w.edit(image("two"), strategy(rolling(2, "1")))
		w.gone()
		w.phase(corev1.PodRunning, 2)
		w.has("0=one* 1=one* 2=two*")
		w.Must(w.Client.CoreV1().Pods("ns").Delete(t.Context(), "s-0", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		w.settle(0)
		w.phase(corev1.PodRunning, 0)
		w.has("0=one* 1=one* 2=two*")
		w.status("3 ready 3 available 3 one 2 two 1")
		w.edit(func(s *appsv1.StatefulSet) { s.Spec.RevisionHistoryLimit = ptr.To[int32](0) })
		w.edit(strategy(rolling(0, "1")))
		w.has("-1=one* 0=one* 2=two*")
	}, set())
}

// TestStrategies: several at a time and after a while, by hand, and one that is behind a gate.
func TestStrategies(t *testing.T) {
	t.Run("half", func(t *testing.T) {
		run(t, func(w *world) {
			w.phase(corev1.PodRunning, 0, 1, 2, 3)
			w.settle(11 * time.Second)
			w.edit(image("two"))
			w.has("-2=one* -3=one* 0=one* 1=one*")
			w.gone()
			w.phase(corev1.PodRunning, 2, 3)
			w.settle(8 * time.Second)
			w.has("0=one* 1=one* 2=two* 3=two*")
			w.status("4 ready 4 available 2 one 2 two 2")
			w.settle(3 * time.Second)
			w.has("-0=one* -1=one* 2=two* 3=two*")
		}, set(parallel, replicas(4), strategy(rolling(0, "50%")), func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = 10 }))
	})
	for _, part := range []string{"50%", "10%"} { // rounded down, but not to none
		t.Run(part+" of three", func(t *testing.T) {
			run(t, func(w *world) {
				w.phase(corev1.PodRunning, 0, 1, 2)
				w.edit(image("two"))
				w.has("-2=one* 0=one* 1=one*")
			}, set(parallel, strategy(rolling(0, part))))
		})
	}
	t.Run("by hand", func(t *testing.T) {
		run(t, func(w *world) {
			w.up(3)
			w.edit(image("two"))
			w.has("0=one* 1=one* 2=one*")
			w.Must(w.Client.CoreV1().Pods("ns").Delete(t.Context(), "s-1", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
			w.settle(0)
			w.has("0=one* 1=two 2=one*")
			w.status("3 ready 2 available 2 one 2 two 1")
			for _, name := range []string{"s-0", "s-2"} {
				w.Must(w.Client.CoreV1().Pods("ns").Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
			}
			w.settle(0)
			w.up(3)
			w.status("3 ready 3 available 3 two 3 two 3")
		}, set(strategy(appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType})))
	})
	t.Run("recreate", func(t *testing.T) { // the gate is off: an older server stored it
		run(t, func(w *world) {
			w.has("")
			want := "Warning UnknownStrategy statefulset ns/s uses Recreate strategy but feature gate StatefulSetRecreateStrategy is disabled"
			if e := apitest.Events(w.events); !slices.Equal(e, []string{want}) {
				t.Errorf("events %q", e)
			}
			w.edit(strategy(rolling(0, "1")))
			w.has("0=one")
		}, set(strategy(appsv1.StatefulSetUpdateStrategy{Type: appsv1.RecreateStatefulSetStrategyType})))
	})
}
