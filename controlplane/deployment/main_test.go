package deployment

// What the tests in fake time have in common: the controller beside the one of
// ReplicaSets, a Deployment, and nodes that make its pods ready.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/replicaset"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is the two controllers, what they talk to, and what the one of Deployments
// said. broken are images whose pods never get ready.
type world struct {
	*testing.T
	ctx    context.Context
	client *fake.Clientset
	events *record.FakeRecorder
	broken []string
}

// A pair is the controllers of Deployments and of ReplicaSets.
type pair struct {
	ours   *Controller
	theirs *replicaset.Controller
}

func (p pair) Run(ctx context.Context) error { return loop.Together(ctx, p.ours.Run, p.theirs.Run) }

// web is a Deployment as the API server would have it, changed by edits.
func web(replicas int32, edits ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template:             template("v1"),
			Strategy:             rolling("25%", "25%"),
			RevisionHistoryLimit: ptr.To[int32](10), ProgressDeadlineSeconds: ptr.To[int32](600),
		},
	}
	for _, e := range edits {
		e(d)
	}
	return d
}

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

func rolling(surge, unavailable string) appsv1.DeploymentStrategy {
	return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
		MaxSurge: ptr.To(intstr.Parse(surge)), MaxUnavailable: ptr.To(intstr.Parse(unavailable)),
	}}
}

func recreate(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}

// run runs f beside the controllers, in a bubble.
func run(t *testing.T, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(objs...)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, ctx: t.Context(), client: client, events: record.NewFakeRecorder(10000)}
		c, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (pair, error) {
			ours, err := New(loop.Deps{Client: client, Informers: f, Events: w.events}, Config{})
			theirs, also := replicaset.New(loop.Deps{Client: client, Informers: f}, replicaset.Config{})
			return pair{ours, theirs}, errors.Join(err, also)
		})
		w.settle(0)
		f(w)
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if left := c.ours.sets.Remembered(); len(left) != 0 {
			t.Errorf("still remembered: %v", left)
		}
	})
}

// settle lets d pass and what it sets off come to an end.
func (w *world) settle(d time.Duration) {
	w.Helper()
	<-time.After(d + time.Second)
	synctest.Wait()
}

func (w *world) get() *appsv1.Deployment {
	w.Helper()
	d, err := w.client.AppsV1().Deployments("ns").Get(w.ctx, "web", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return d
}

// edit changes the Deployment and lets the controllers see to it.
func (w *world) edit(f func(*appsv1.Deployment)) {
	w.Helper()
	d := w.get()
	f(d)
	if _, err := w.client.AppsV1().Deployments("ns").Update(w.ctx, d, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.settle(0)
}

func (w *world) image(image string) {
	w.Helper()
	w.edit(func(d *appsv1.Deployment) { d.Spec.Template = template(image) })
}

func (w *world) scale(n int32) {
	w.Helper()
	w.edit(func(d *appsv1.Deployment) { d.Spec.Replicas = &n })
}

func (w *world) sets() []*appsv1.ReplicaSet {
	w.Helper()
	list, err := w.client.AppsV1().ReplicaSets("ns").List(w.ctx, metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var out []*appsv1.ReplicaSet
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	slices.SortFunc(out, func(a, b *appsv1.ReplicaSet) int { return strings.Compare(imageOf(a), imageOf(b)) })
	return out
}

func imageOf(rs *appsv1.ReplicaSet) string { return rs.Spec.Template.Spec.Containers[0].Image }

// sizes wants the sets to have these sizes: IMAGE=SIZE, by image.
func (w *world) sizes(want string) {
	w.Helper()
	var got []string
	for _, rs := range w.sets() {
		got = append(got, fmt.Sprintf("%s=%d", imageOf(rs), *rs.Spec.Replicas))
	}
	if s := strings.Join(got, " "); s != want {
		w.Errorf("sets %s, want %s", s, want)
	}
}

// step makes the pods ready that are not and may be, and lets the controllers see to
// it. It tells whether there were any.
func (w *world) step() bool {
	w.Helper()
	some := false
	for _, p := range children.Filter(apitest.Pods(w, w.client, "ns"), children.Active) {
		if children.Ready(p) || slices.Contains(w.broken, p.Spec.Containers[0].Image) {
			continue
		}
		some = true
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
		}}
		if _, err := w.client.CoreV1().Pods("ns").UpdateStatus(w.ctx, p, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
	w.settle(0)
	return some
}

// roll makes pods ready until there are no new ones.
func (w *world) roll() {
	w.Helper()
	for range 100 {
		if !w.step() {
			return
		}
	}
	w.Fatal("the rollout has no end")
}

func (w *world) status(want string) {
	w.Helper()
	s := w.get().Status
	got := fmt.Sprintf("%d updated %d ready %d available %d unavailable %d gen %d",
		s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas, s.ObservedGeneration)
	if got != want {
		w.Errorf("status: %s, want %s", got, want)
	}
}

// condition wants a condition to be STATUS REASON MESSAGE; "" for none. $v1 is the name
// of the set of image v1.
func (w *world) condition(t appsv1.DeploymentConditionType, want string) {
	w.Helper()
	for _, rs := range w.sets() {
		want = strings.ReplaceAll(want, "$"+imageOf(rs), rs.Name)
	}
	got, s := "", w.get().Status
	if c := condition(&s, t); c != nil {
		got = fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
	}
	if got != want {
		w.Errorf("%s: %q, want %q", t, got, want)
	}
}

// heard wants these events since the last call: FROM IMAGE to TO, such as "v1 0>3".
func (w *world) heard(want ...string) {
	w.Helper()
	names := make(map[string]string)
	for _, rs := range w.sets() {
		names[rs.Name] = imageOf(rs)
	}
	var got []string
	for _, e := range apitest.Events(w.events) {
		var way, name string
		var from, to int
		if _, err := fmt.Sscanf(e, "Normal ScalingReplicaSet Scaled %s replica set %s from %d to %d", &way, &name, &from, &to); err != nil || way != map[bool]string{true: "up", false: "down"}[to > from] {
			got = append(got, e)
			continue
		}
		got = append(got, fmt.Sprintf("%s %d>%d", names[name], from, to))
	}
	if !slices.Equal(got, want) {
		w.Errorf("events %q, want %q", got, want)
	}
}

func (w *world) revisions(want string) {
	w.Helper()
	var got []string
	for _, rs := range w.sets() {
		r := imageOf(rs) + "=" + rs.Annotations[Revision]
		if h := rs.Annotations[RevisionHistory]; h != "" {
			r += "(" + h + ")"
		}
		got = append(got, r)
	}
	if s := strings.Join(got, " ") + " now " + w.get().Annotations[Revision]; s != want {
		w.Errorf("revisions %s, want %s", s, want)
	}
}
