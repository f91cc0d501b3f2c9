package replicaset

// Tests of the controller in fake time.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a controller, what it talks to, and what it said.
type world struct {
	*testing.T
	ctx    context.Context
	client *fake.Clientset
	events *record.FakeRecorder
}

func set(replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "v": "1"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
}

// run runs f beside a controller, in a bubble.
func run(t *testing.T, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(objs...)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, ctx: t.Context(), client: client, events: record.NewFakeRecorder(10000)}
		c, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Client: client, Informers: f, Events: w.events}, Config{})
		})
		w.settle(0)
		f(w)
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if len(c.pods.Remembered()) != 0 {
			t.Errorf("still remembered: %v", c.pods.Remembered())
		}
	})
}

// settle lets d pass and what it sets off come to an end.
func (w *world) settle(d time.Duration) {
	w.Helper()
	<-time.After(d + time.Second)
	synctest.Wait()
}

func (w *world) pods() []*corev1.Pod {
	w.Helper()
	return apitest.Pods(w, w.client, "ns")
}

func (w *world) active() []*corev1.Pod { return children.Filter(w.pods(), children.Active) }

func (w *world) set() *appsv1.ReplicaSet {
	w.Helper()
	rs, err := w.client.AppsV1().ReplicaSets("ns").Get(w.ctx, "web", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return rs
}

func (w *world) scale(n int32) {
	w.Helper()
	rs := w.set()
	rs.Spec.Replicas = &n
	if _, err := w.client.AppsV1().ReplicaSets("ns").Update(w.ctx, rs, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.settle(0)
}

func (w *world) ready(p *corev1.Pod, node string) {
	w.Helper()
	p.Spec.NodeName = node
	p, err := w.client.CoreV1().Pods("ns").Update(w.ctx, p, metav1.UpdateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
	}}
	if _, err = w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, p, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) status(want string) {
	w.Helper()
	s := w.set().Status
	got := fmt.Sprintf("%d labelled %d ready %d available %d terminating %d gen %d",
		s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas, ptr.Deref(s.TerminatingReplicas, -1), s.ObservedGeneration)
	if got != want {
		w.Errorf("status: %s, want %s", got, want)
	}
}

func (w *world) heard() []string { return apitest.Events(w.events) }

func (w *world) creates() int {
	n := 0
	for _, a := range w.client.Actions() {
		if a.Matches("create", "pods") {
			n++
		}
	}
	return n
}

func TestScale(t *testing.T) {
	run(t, func(w *world) {
		pods := w.pods()
		if len(pods) != 3 {
			w.Fatalf("%d pods, want 3", len(pods))
		}
		for _, p := range pods {
			ref := metav1.GetControllerOf(p)
			if ref == nil || ref.Kind != "ReplicaSet" || ref.APIVersion != "apps/v1" || ref.Name != "web" || ref.UID != w.set().UID || !ptr.Deref(ref.BlockOwnerDeletion, false) {
				w.Errorf("controller of %s: %+v", p.Name, ref)
			}
			if p.GenerateName != "web-" || p.Labels["v"] != "1" || p.Spec.Containers[0].Image != "i" {
				w.Errorf("not as in the template: %+v", p)
			}
		}
		w.status("3 labelled 3 ready 0 available 0 terminating 0 gen 1")
		if events := w.heard(); len(events) != 3 || !strings.HasPrefix(events[0], "Normal SuccessfulCreate Created pod: web-") {
			w.Errorf("events %q", events)
		}
		w.ready(pods[0], "n1")
		w.ready(pods[1], "n1")
		w.settle(0)
		w.status("3 labelled 3 ready 2 available 2 terminating 0 gen 1")
		// The one that does not run is missed least.
		w.scale(2)
		if got := w.active(); len(got) != 2 || got[0].Name != pods[0].Name || got[1].Name != pods[1].Name {
			w.Errorf("left: %v", got)
		}
		if events := w.heard(); !slices.Equal(events, []string{"Normal SuccessfulDelete Deleted pod: " + pods[2].Name}) {
			w.Errorf("events %q", events)
		}
		// Those on a node take their time and do not count meanwhile.
		w.scale(0)
		w.status("0 labelled 0 ready 0 available 0 terminating 2 gen 3")
		w.scale(1)
		w.status("1 labelled 1 ready 0 available 0 terminating 2 gen 4")
		if n := len(w.pods()); n != 3 {
			w.Errorf("%d pods, want two on their way out and a new one", n)
		}
		if w.creates() != 4 {
			w.Errorf("%d pods made, want 4", w.creates())
		}
	}, set(3))
}

// TestEvicted: a pod that is being deleted, on a node nobody hears of, is
// replaced at once and only once; one that failed likewise.
func TestEvicted(t *testing.T) {
	run(t, func(w *world) {
		pods := w.pods()
		w.ready(pods[0], "dead")
		w.ready(pods[1], "n1")
		if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, pods[0].Name, metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(0)
		if active, all := w.active(), w.pods(); len(active) != 2 || len(all) != 3 {
			w.Fatalf("%d active of %d", len(active), len(all))
		}
		w.status("2 labelled 2 ready 1 available 1 terminating 1 gen 1")
		// The node is heard of again and confirms.
		if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, pods[0].Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			w.Fatal(err)
		}
		w.settle(time.Minute)
		w.status("2 labelled 2 ready 1 available 1 terminating 0 gen 1")
		failed := w.active()[0]
		failed.Status.Phase = corev1.PodFailed
		if _, err := w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, failed, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(time.Minute)
		if w.creates() != 4 || len(w.active()) != 2 {
			w.Errorf("%d made in all, want 4; active %d", w.creates(), len(w.active()))
		}
	}, set(2))
}

func bare(name string, labels map[string]string, owner *metav1.OwnerReference) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: labels}}
	if owner != nil {
		p.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return p
}

// TestOwnership: what has matching labels and no controller is adopted, what has
// one is left alone, what no longer matches is let go of.
func TestOwnership(t *testing.T) {
	web := map[string]string{"app": "web"}
	other := &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "other", UID: "other", Controller: ptr.To(true)}
	done := bare("done", web, nil)
	done.Status.Phase = corev1.PodSucceeded
	run(t, func(w *world) {
		controller := func(name string) types.UID {
			w.Helper()
			p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, name, metav1.GetOptions{})
			if err != nil {
				w.Fatal(err)
			}
			if ref := metav1.GetControllerOf(p); ref != nil {
				return ref.UID
			}
			return ""
		}
		uid := w.set().UID
		for name, want := range map[string]types.UID{"mine": uid, "theirs": "other", "alien": "", "done": ""} {
			if got := controller(name); got != want {
				w.Errorf("%s belongs to %q, want %q", name, got, want)
			}
		}
		if w.creates() != 1 {
			w.Errorf("%d made beside the adopted one, want 1", w.creates())
		}
		relabel := func(name, app string) {
			w.Helper()
			patch := fmt.Sprintf(`{"metadata":{"labels":{"app":%q}}}`, app)
			if _, err := w.client.CoreV1().Pods("ns").Patch(w.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				w.Fatal(err)
			}
			w.settle(0)
		}
		relabel("mine", "debug")
		if controller("mine") != "" || w.creates() != 2 {
			w.Errorf("relabelled: belongs to %q; %d made", controller("mine"), w.creates())
		}
		relabel("mine", "web")
		if controller("mine") != uid || len(w.active()) != 4 { // two of ours, theirs and alien
			w.Errorf("labelled back: belongs to %q, %d active", controller("mine"), len(w.active()))
		}
	}, set(2), bare("mine", web, nil), bare("theirs", web, other), bare("alien", map[string]string{"app": "x"}, nil), done)
}

// TestForeignCompany: pods of another namespace that name the uid of a ReplicaSet do not say from
// which node it takes its own.
func TestForeignCompany(t *testing.T) {
	run(t, func(w *world) {
		pods := w.pods()
		for i, node := range []string{"n1", "n1", "n2"} {
			w.ready(pods[i], node)
		}
		for _, name := range []string{"x", "y"} {
			p := bare(name, nil, metav1.NewControllerRef(w.set(), appsv1.SchemeGroupVersion.WithKind("ReplicaSet")))
			p.Namespace, p.Spec.NodeName = "mallory", "n2"
			if _, err := w.client.CoreV1().Pods("mallory").Create(w.ctx, p, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		w.settle(0)
		w.scale(2)
		for _, p := range w.active() {
			if p.Name == pods[2].Name {
				return
			}
		}
		t.Error("the pod on a node of its own was taken, not one of two on the same node")
	}, set(3))
}

// TestAdoptionIsConfirmed: a ReplicaSet that the server knows to be another one,
// or gone, adopts nothing, whatever the cache says.
func TestAdoptionIsConfirmed(t *testing.T) {
	run(t, func(w *world) {
		var asked atomic.Int32
		w.client.PrependReactor("get", "replicasets", func(clienttesting.Action) (bool, runtime.Object, error) {
			asked.Add(1)
			rs := set(1)
			rs.UID = "a later one"
			return true, rs, nil
		})
		if _, err := w.client.CoreV1().Pods("ns").Create(w.ctx, bare("stray", map[string]string{"app": "web"}, nil), metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(0)
		p, err := w.client.CoreV1().Pods("ns").Get(w.ctx, "stray", metav1.GetOptions{})
		if err != nil || len(p.OwnerReferences) != 0 || asked.Load() == 0 {
			w.Errorf("%v; owners %v; asked %d times", err, p.OwnerReferences, asked.Load())
		}
	}, set(1))
}

// TestStaleCache: no pod is made or deleted twice however long the cache lags.
func TestStaleCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(set(5))
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		// The informers are started by hand, so the pods' can be left out: its
		// cache stays empty for as long as this test likes.
		factory := informers.NewSharedInformerFactory(client, 0)
		c, err := New(loop.Deps{Client: client, Informers: factory}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		rs, err := client.AppsV1().ReplicaSets("ns").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		look := func(replicas int32, want int) {
			t.Helper()
			rs.Spec.Replicas = &replicas
			if err := c.inf.GetStore().Add(rs); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if _, err := c.sync(ctx, "ns/web"); err != nil && !apierrors.IsConflict(errors.Unwrap(err)) {
					t.Fatal(err)
				}
			}
			list, err := client.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != want {
				t.Errorf("%d pods, want %d", len(list.Items), want)
			}
		}
		look(5, 5)
		look(2, 2)
		look(4, 4)
		// The cache catches up with a part of it: what is older than what it has
		// seen last and not in it is gone.
		list, err := client.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		store := factory.Core().V1().Pods().Informer().GetStore()
		newest := slices.MaxFunc(list.Items, func(a, b corev1.Pod) int {
			return cmp.Or(cmp.Compare(len(a.ResourceVersion), len(b.ResourceVersion)), cmp.Compare(a.ResourceVersion, b.ResourceVersion))
		})
		if err := store.Add(&newest); err != nil {
			t.Fatal(err)
		}
		look(1, 4) // to the controller there is only one left: nothing to delete
		if n := len(c.pods.Remembered()); n != 0 {
			t.Errorf("%d owners are still remembered once the cache has all", n)
		}
	})
}

// TestFailures: what cannot be made is tried in small batches, told by a
// condition and events, and made once it can be.
func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		name    string
		err     error
		told    bool
		message string
	}{
		{"quota", apierrors.NewForbidden(corev1.Resource("pods"), "web-", errors.New("exceeded quota")), true, `pods "web-" is forbidden: exceeded quota`},
		{"namespace goes", terminating(), false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(w *world) {
				var refuse atomic.Bool
				refuse.Store(true)
				w.client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
					return refuse.Load(), nil, tc.err
				})
				w.scale(500)
				if w.creates() > 20 {
					w.Errorf("%d requests for pods that cannot be made", w.creates())
				}
				conditions := w.set().Status.Conditions
				if tc.told != (len(conditions) == 1) {
					w.Fatalf("conditions %+v", conditions)
				}
				if tc.told {
					if c := conditions[0]; c.Type != appsv1.ReplicaSetReplicaFailure || c.Status != corev1.ConditionTrue || c.Reason != "FailedCreate" || c.Message != tc.message {
						w.Errorf("condition %+v", c)
					}
				}
				if events := w.heard(); tc.told != (len(events) > 0) || tc.told && events[0] != "Warning FailedCreate Error creating: "+tc.message {
					w.Errorf("events %q", events)
				}
				refuse.Store(false)
				w.scale(30)
				w.settle(2 * time.Minute) // the pause after failures is over
				if n := len(w.active()); n != 30 {
					w.Errorf("%d pods in the end", n)
				}
				if len(w.set().Status.Conditions) != 0 {
					w.Errorf("conditions %+v", w.set().Status.Conditions)
				}
			}, set(0))
		})
	}
}

func terminating() error {
	err := apierrors.NewForbidden(corev1.Resource("pods"), "web-", errors.New("namespace ns is being terminated"))
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	return err
}

// TestMinReady: a pod is available when it has been ready for long enough, and
// that is noticed then, not later.
func TestMinReady(t *testing.T) {
	rs := set(1)
	rs.Spec.MinReadySeconds = 30
	run(t, func(w *world) {
		w.ready(w.pods()[0], "n")
		w.settle(27 * time.Second)
		w.status("1 labelled 1 ready 1 available 0 terminating 0 gen 1")
		w.settle(2 * time.Second)
		w.status("1 labelled 1 ready 1 available 1 terminating 0 gen 1")
	}, rs)
}

// TestDeletedSet: a ReplicaSet on its way out makes no more pods.
func TestDeletedSet(t *testing.T) {
	rs := set(2)
	rs.Finalizers = []string{"example.com/held"}
	run(t, func(w *world) {
		if err := w.client.AppsV1().ReplicaSets("ns").Delete(w.ctx, "web", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.settle(time.Second) // it is known, as nobody promises of what is deleted next
		for _, p := range w.pods() {
			if err := w.client.CoreV1().Pods("ns").Delete(w.ctx, p.Name, metav1.DeleteOptions{}); err != nil {
				w.Fatal(err)
			}
		}
		w.settle(time.Minute)
		if n := len(w.pods()); n != 0 {
			w.Errorf("%d pods made for what is being deleted", n)
		}
		w.status("0 labelled 0 ready 0 available 0 terminating 0 gen 1")
	}, rs)
}
