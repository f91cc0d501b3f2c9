package podgc

// The cluster that tests run the controller in.

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// A lab is a cluster with the controller. It notes when deletion of a pod was asked
// for.
type lab struct {
	*apitest.Lab

	mu      sync.Mutex
	hidden  string            // guarded by mu: a node that no list or watch shows
	patches map[string]string // guarded by mu: what was patched into a pod's status
}

func newLab(t *testing.T, objs ...runtime.Object) *lab {
	l := &lab{patches: map[string]string{}}
	l.Lab = apitest.NewLab(t, func(_ *apitest.Lab, a clienttesting.Action) { l.observe(a) }, objs...)
	l.Client.PrependReactor("get", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if get, ok := a.(clienttesting.GetAction); ok && l.hidden != "" && get.GetName() == l.hidden {
			return true, machine(l.hidden), nil
		}
		return false, nil, nil
	})
	return l
}

// observe: deletion is at once, and of one certain pod; only statuses are patched.
func (l *lab) observe(a clienttesting.Action) {
	switch a := a.(type) {
	case clienttesting.DeleteActionImpl:
		if o := a.DeleteOptions; a.Resource.Resource == "pods" && o.Preconditions != nil {
			if o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 0 || o.Preconditions.UID == nil {
				l.Errorf("%s deleted with %+v", a.Name, o)
			}
			l.Note(a.Name)
		}
	case clienttesting.PatchActionImpl:
		if a.Subresource != "status" {
			l.Errorf("%s patched in %q", a.Name, a.Subresource)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.patches[a.Name] = string(a.Patch)
	}
}

// run starts the controller and returns the registry of its metrics.
func (l *lab) run(c Config) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	log := slog.New(slog.NewTextHandler(l.Said, nil))
	if l.Stop == nil {
		l.Start = time.Now() // of the first pass
	}
	apitest.Run(l.Lab, func(f informers.SharedInformerFactory) (*Controller, error) {
		return New(loop.Deps{Client: l.Client, Informers: f, Metrics: reg, Log: log}, c)
	})
	return reg
}

func (l *lab) createNode(name string) {
	l.Helper()
	_, err := l.Client.CoreV1().Nodes().Create(l.Context(), machine(name), metav1.CreateOptions{})
	l.Must(err)
}

func (l *lab) deleteNode(name string) {
	l.Helper()
	l.Must(l.Client.CoreV1().Nodes().Delete(l.Context(), name, metav1.DeleteOptions{}))
}

func (l *lab) deletePod(name string) {
	l.Helper()
	l.Must(l.Client.CoreV1().Pods("ns").Delete(l.Context(), name, metav1.DeleteOptions{}))
}

func (l *lab) pod(name string) *corev1.Pod {
	l.Helper()
	p, err := l.Client.CoreV1().Pods("ns").Get(l.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	l.Must(err)
	return p
}

func machine(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

func pod(name, node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: phase},
	}
}
