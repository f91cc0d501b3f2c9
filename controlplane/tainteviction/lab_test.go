package tainteviction

// The cluster that tests run the controller in.

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// A lab is a cluster with the controller. It notes when deletion of a pod was asked
// for.
type lab struct {
	*apitest.Lab
	events *record.FakeRecorder
}

func newLab(t *testing.T, objs ...runtime.Object) *lab {
	return &lab{Lab: apitest.NewLab(t, observe, objs...), events: record.NewFakeRecorder(10000)}
}

// observe: deletion is graceful, and of one certain pod.
func observe(l *apitest.Lab, a clienttesting.Action) {
	d, ok := a.(clienttesting.DeleteActionImpl)
	if !ok || d.Resource.Resource != "pods" {
		return
	}
	if o := d.DeleteOptions; o.GracePeriodSeconds != nil || o.Preconditions == nil || o.Preconditions.UID == nil {
		l.Errorf("%s deleted with %+v", d.Name, o)
	}
	l.Note(d.Name)
}

// run starts the controller.
func (l *lab) run() *Controller { return l.count(nil) }

// count is run with metrics.
func (l *lab) count(reg prometheus.Registerer) *Controller {
	log := slog.New(slog.NewTextHandler(l.Said, nil))
	return apitest.Run(l.Lab, func(f informers.SharedInformerFactory) (*Controller, error) {
		return New(loop.Deps{Client: l.Client, Informers: f, Events: l.events, Metrics: reg, Log: log}, Config{})
	})
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

// taint sets the taints of node n, with the time now unless they have one.
func (l *lab) taint(ts ...corev1.Taint) {
	l.Helper()
	now := metav1.Now()
	for i := range ts {
		if ts[i].TimeAdded == nil {
			ts[i].TimeAdded = &now
		}
	}
	l.taintAsIs(ts...)
}

func (l *lab) taintAsIs(ts ...corev1.Taint) {
	l.Helper()
	n, err := l.Client.CoreV1().Nodes().Get(l.Context(), "n", metav1.GetOptions{})
	l.Must(err)
	n.Spec.Taints = ts
	_, err = l.Client.CoreV1().Nodes().Update(l.Context(), n, metav1.UpdateOptions{})
	l.Must(err)
}

func (l *lab) tolerate(pod string, ts ...corev1.Toleration) {
	l.Helper()
	p, err := l.Client.CoreV1().Pods("ns").Get(l.Context(), pod, metav1.GetOptions{})
	l.Must(err)
	p.Spec.Tolerations = ts
	_, err = l.Client.CoreV1().Pods("ns").Update(l.Context(), p, metav1.UpdateOptions{})
	l.Must(err)
}

func (l *lab) create(p *corev1.Pod) {
	l.Helper()
	_, err := l.Client.CoreV1().Pods("ns").Create(l.Context(), p, metav1.CreateOptions{})
	l.Must(err)
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

// numeric tolerates taints a whose value compares so with value.
func numeric(op corev1.TolerationOperator, value string, seconds ...int64) corev1.Toleration {
	t := tolerates("a", seconds...)
	t.Operator, t.Value = op, value
	return t
}

func (l *lab) uid(name string) types.UID {
	l.Helper()
	p, err := l.Client.CoreV1().Pods("ns").Get(l.Context(), name, metav1.GetOptions{})
	l.Must(err)
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
