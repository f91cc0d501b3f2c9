package podgc

// The cluster that tests run the controller in.

import (
	"bytes"
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
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/apitest"
)

// A lab is a cluster with the controller. Times are since it was made.
type lab struct {
	t      *testing.T
	client *fake.Clientset
	server *apitest.Server
	start  time.Time
	log    bytes.Buffer
	stop   func()

	mu      sync.Mutex
	hidden  string                                  // guarded by mu: a node that no list or watch shows
	removed apitest.Times                           // guarded by mu: when deletion of a pod was asked for
	patches map[string]string                       // guarded by mu: what was patched into its status
	fail    func(verb, resource, name string) error // guarded by mu: what is answered instead
}

func newLab(t *testing.T, objs ...runtime.Object) *lab {
	client, server, err := apitest.New(objs...)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{
		t: t, client: client, server: server, start: time.Now(),
		removed: apitest.Times{}, patches: map[string]string{},
	}
	l.failing(func(_, _, _ string) error { return nil })
	client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		named, ok := a.(interface{ GetName() string })
		if !ok {
			return false, nil, nil
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		name := named.GetName()
		if err := l.fail(a.GetVerb(), a.GetResource().Resource, name); err != nil {
			return true, nil, err
		}
		if name == l.hidden && a.GetVerb() == "get" {
			return true, machine(name), nil
		}
		switch a := a.(type) {
		case clienttesting.DeleteActionImpl:
			if o := a.DeleteOptions; a.Resource.Resource == "pods" && o.Preconditions != nil {
				if o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 0 || o.Preconditions.UID == nil {
					t.Errorf("%s deleted with %+v", name, o)
				}
				l.removed[name] = append(l.removed[name], time.Since(l.start))
			}
		case clienttesting.PatchActionImpl:
			if a.Subresource != "status" {
				t.Errorf("%s patched in %q", name, a.Subresource)
			}
			l.patches[name] = string(a.Patch)
		}
		return false, nil, nil
	})
	return l
}

// run starts the controller and returns the registry of its metrics.
func (l *lab) run(c Config) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	c.Metrics, c.Log = reg, slog.New(slog.NewTextHandler(&l.log, nil))
	if l.stop == nil {
		l.start = time.Now() // of the first pass
	}
	_, stop := apitest.Start(l.t, l.client, func(f informers.SharedInformerFactory) (*Controller, error) {
		return New(l.client, f, c)
	})
	l.stop = func() { l.must(stop()) }
	return reg
}

// at lets time pass until t.
func (l *lab) at(t time.Duration) {
	l.t.Helper()
	apitest.Until(l.t, l.start, t)
}

// gone says when each pod was removed.
func (l *lab) gone() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.removed.String()
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) failing(f func(verb, resource, name string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = f
}

func (l *lab) createNode(name string) {
	l.t.Helper()
	_, err := l.client.CoreV1().Nodes().Create(l.t.Context(), machine(name), metav1.CreateOptions{})
	l.must(err)
}

func (l *lab) deleteNode(name string) {
	l.t.Helper()
	l.must(l.client.CoreV1().Nodes().Delete(l.t.Context(), name, metav1.DeleteOptions{}))
}

func (l *lab) deletePod(name string) {
	l.t.Helper()
	l.must(l.client.CoreV1().Pods("ns").Delete(l.t.Context(), name, metav1.DeleteOptions{}))
}

func (l *lab) pod(name string) *corev1.Pod {
	l.t.Helper()
	p, err := l.client.CoreV1().Pods("ns").Get(l.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	l.must(err)
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
