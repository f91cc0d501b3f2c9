package nodeipam

// The cluster that tests run the controller in.

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// A lab is a cluster with the controller.
type lab struct {
	t      *testing.T
	client *fake.Clientset
	events *record.FakeRecorder
	log    bytes.Buffer
	stop   func() error

	mu      sync.Mutex
	patches int                                       // guarded by mu: how often a node was written
	fail    func(name string) (after bool, err error) // guarded by mu: how a write fails: after it was done or instead
}

func newLab(t *testing.T, nodes ...runtime.Object) *lab {
	client, server, err := apitest.New(nodes...)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, client: client, events: record.NewFakeRecorder(1000)}
	l.failing(func(string) (bool, error) { return false, nil })
	done := clienttesting.ObjectReaction(server)
	client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p, _ := a.(clienttesting.PatchActionImpl)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.patches++
		if p.Subresource != "" || !strings.Contains(string(p.Patch), `"uid"`) {
			t.Errorf("patched %q with %s", p.Subresource, p.Patch)
		}
		after, err := l.fail(p.Name)
		if after {
			_, _, _ = done(a)
		}
		return err != nil, nil, err
	})
	return l
}

func (l *lab) failing(f func(name string) (after bool, err error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = f
}

// run starts the controller and returns the registry of its metrics.
func (l *lab) run(c Config) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	c.Allocate = true
	log := slog.New(slog.NewTextHandler(&l.log, nil))
	_, l.stop = apitest.Start(l.t, l.client, func(f informers.SharedInformerFactory) (*Controller, error) {
		return New(loop.Deps{Client: l.client, Informers: f, Events: l.events, Metrics: reg, Log: log}, c)
	})
	l.settle()
	return reg
}

// settle lets what is under way come to an end, but nothing that is tried again
// later.
func (l *lab) settle() {
	<-time.After(10 * time.Millisecond)
	synctest.Wait()
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) create(names ...string) {
	l.t.Helper()
	for _, name := range names {
		_, err := l.client.CoreV1().Nodes().Create(l.t.Context(), machine(name), metav1.CreateOptions{})
		l.must(err)
		l.settle()
	}
}

func (l *lab) delete(names ...string) {
	l.t.Helper()
	for _, name := range names {
		l.must(l.client.CoreV1().Nodes().Delete(l.t.Context(), name, metav1.DeleteOptions{}))
		l.settle()
	}
}

// ranges says what each node has, and checks that its two fields agree.
func (l *lab) ranges() string {
	l.t.Helper()
	list, err := l.client.CoreV1().Nodes().List(l.t.Context(), metav1.ListOptions{})
	l.must(err)
	var out []string
	for i := range list.Items {
		n := &list.Items[i]
		if len(n.Spec.PodCIDRs) > 0 && n.Spec.PodCIDRs[0] != n.Spec.PodCIDR {
			l.t.Errorf("%s has %s and %s", n.Name, n.Spec.PodCIDR, n.Spec.PodCIDRs)
		}
		out = append(out, n.Name+"="+strings.Join(n.Spec.PodCIDRs, "+"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (l *lab) expect(step, want string) {
	l.t.Helper()
	if got := l.ranges(); got != want {
		l.t.Errorf("%s: %s, want %s", step, got, want)
	}
}

func (l *lab) told() string { return strings.Join(apitest.Events(l.events), "; ") }

func machine(name string, ranges ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if len(ranges) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = ranges[0], ranges
	}
	return n
}

func gauge(t *testing.T, reg *prometheus.Registry, name, cluster string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == cluster {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no %s of %s", name, cluster)
	return 0
}
