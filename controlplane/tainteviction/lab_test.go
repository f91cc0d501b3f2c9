package tainteviction

// The cluster that tests run the controller in.

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/apitest"
)

// A lab is a cluster with the controller. Times are since it was made.
type lab struct {
	t      *testing.T
	client *fake.Clientset
	server *apitest.Server
	start  time.Time
	events *record.FakeRecorder
	log    bytes.Buffer
	stop   func()

	mu      sync.Mutex
	deleted apitest.Times           // guarded by mu: when deletion of a pod was asked for
	fail    func(verb string) error // guarded by mu: what is answered instead
}

func newLab(t *testing.T, objs ...runtime.Object) *lab {
	client, server, err := apitest.New(objs...)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{
		t: t, client: client, server: server, start: time.Now(), events: record.NewFakeRecorder(10000),
		deleted: apitest.Times{}, fail: func(string) error { return nil },
	}
	for _, verb := range []string{"get", "patch", "delete"} {
		client.PrependReactor(verb, "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if err := l.fail(verb); err != nil {
				return true, nil, err
			}
			if d, ok := a.(clienttesting.DeleteActionImpl); ok {
				l.check(d)
				l.deleted[d.Name] = append(l.deleted[d.Name], time.Since(l.start))
			}
			return false, nil, nil
		})
	}
	return l
}

// check: deletion is graceful, and of one certain pod.
func (l *lab) check(d clienttesting.DeleteActionImpl) {
	if o := d.DeleteOptions; o.GracePeriodSeconds != nil || o.Preconditions == nil || o.Preconditions.UID == nil {
		l.t.Errorf("%s deleted with %+v", d.Name, o)
	}
}

// run starts the controller.
func (l *lab) run(c Config) *Controller {
	c.Events, c.Log = l.events, slog.New(slog.NewTextHandler(&l.log, nil))
	ctl, stop := apitest.Start(l.t, l.client, func(f informers.SharedInformerFactory) (*Controller, error) {
		return New(l.client, f, c)
	})
	l.stop = func() { l.must(stop()) }
	return ctl
}

// at lets time pass until t.
func (l *lab) at(t time.Duration) {
	l.t.Helper()
	apitest.Until(l.t, l.start, t)
}

func (l *lab) told() string {
	var out []string
	for _, e := range apitest.Events(l.events) {
		e = strings.ReplaceAll(strings.TrimPrefix(e, "Normal TaintManagerEviction "), " deletion", "")
		out = append(out, strings.ReplaceAll(e, " Pod ns/", " "))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// gone says when each pod was deleted.
func (l *lab) gone() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deleted.String()
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// taint sets the taints of node n, with the time now unless they have one.
func (l *lab) taint(ts ...corev1.Taint) {
	l.t.Helper()
	now := metav1.Now()
	for i := range ts {
		if ts[i].TimeAdded == nil {
			ts[i].TimeAdded = &now
		}
	}
	l.taintAsIs(ts...)
}

func (l *lab) taintAsIs(ts ...corev1.Taint) {
	l.t.Helper()
	n, err := l.client.CoreV1().Nodes().Get(l.t.Context(), "n", metav1.GetOptions{})
	l.must(err)
	n.Spec.Taints = ts
	_, err = l.client.CoreV1().Nodes().Update(l.t.Context(), n, metav1.UpdateOptions{})
	l.must(err)
}

func (l *lab) tolerate(pod string, ts ...corev1.Toleration) {
	l.t.Helper()
	p, err := l.client.CoreV1().Pods("ns").Get(l.t.Context(), pod, metav1.GetOptions{})
	l.must(err)
	p.Spec.Tolerations = ts
	_, err = l.client.CoreV1().Pods("ns").Update(l.t.Context(), p, metav1.UpdateOptions{})
	l.must(err)
}

func (l *lab) create(p *corev1.Pod) {
	l.t.Helper()
	_, err := l.client.CoreV1().Pods("ns").Create(l.t.Context(), p, metav1.CreateOptions{})
	l.must(err)
}

func (l *lab) failing(f func(verb string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = f
}

func machine(ts ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: ts}}
}

func pod(name string, ts ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{NodeName: "n", Tolerations: ts},
	}
}

func execute(key string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
}

func tolerates(key string, seconds ...int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return t
}

func (l *lab) uid(name string) types.UID {
	l.t.Helper()
	p, err := l.client.CoreV1().Pods("ns").Get(l.t.Context(), name, metav1.GetOptions{})
	l.must(err)
	return p.UID
}

// written notes on n that its taints were written after d of the lab's time.
func written(n *corev1.Node, d time.Duration) *corev1.Node {
	at := metav1.NewTime(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(d)) // when a bubble begins
	n.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kubectl-taint", Operation: metav1.ManagedFieldsOperationUpdate, Time: &at,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`),
	}}
	return n
}
