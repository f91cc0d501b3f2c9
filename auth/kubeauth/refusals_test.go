package kubeauth

// Tests of logging refused claims, and of the cost of accepted ones.

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"
)

func ptrQuantity() *resource.Quantity {
	q := resource.MustParse("1")
	return &q
}

// TestRefusalsAreLoggedOnceAMinute: for each node, with their number.
func TestRefusalsAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		plugin := restrict(t, RestrictionConfig{Objects: NewObjects(), Log: slog.New(slog.NewTextHandler(&out, nil))})
		attack := func(who string) {
			t.Helper()
			w := makes(node("node-3", nil))
			if err := plugin.Validate(t.Context(), w.attributes(who), nil); err == nil {
				t.Fatal("allowed")
			}
		}
		for range 100 {
			attack("node-1")
			attack("node-2")
		}
		if n := strings.Count(out.String(), "\n"); n != 2 {
			t.Errorf("%d lines of two nodes:\n%s", n, &out)
		}
		out.Reset()
		<-time.After(logEvery)
		attack("node-1")
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "refusedSinceLastLine=99") ||
			!strings.Contains(got, "claim=node.name") || !strings.Contains(got, "user=system:node:node-1") {
			t.Errorf("after a minute: %s", got)
		}
	})
}

// TestRefusalsAreForgotten: the number of nodes in memory is bounded.
func TestRefusalsAreForgotten(t *testing.T) {
	l := NewLines()
	for i := range logNodes + 100 {
		l.Due(strconv.Itoa(i))
	}
	if n := l.users.Len(); n != logNodes {
		t.Errorf("%d nodes are known, want %d", n, logNodes)
	}
}

// TestMirrorPodsAreBounded: a node cannot fill the store with mirror pods.
func TestMirrorPodsAreBounded(t *testing.T) {
	o, _ := objects(t, cluster()...)
	plugin := restrict(t, RestrictionConfig{Objects: o})
	show := func() error {
		return plugin.Validate(t.Context(), submission{op: admission.Create, gvr: podsR, ns: "ns", obj: mirror(nil)}.attributes("node-1"), nil)
	}
	if err := show(); err != nil {
		t.Fatal(err)
	}
	s := o.src.Load()
	for i := range mirrorsKept {
		if err := s.pods.Add(mirror(func(p *corev1.Pod) { p.Name = fmt.Sprintf("s%d-node-1", i) })); err != nil {
			t.Fatal(err)
		}
	}
	if err := show(); err == nil || !strings.Contains(err.Error(), "can have no more") {
		t.Errorf("one more: %v", err)
	}
}

// TestStoredIsBounded: a node cannot fill the store with events and certificate requests. It
// gets a time to come back, and is counted and logged. Other nodes are not affected.
func TestStoredIsBounded(t *testing.T) {
	for kind, tc := range map[string]struct {
		least  int // what a node may do at once
		gvr    schema.GroupVersionResource
		object func(node string) runtime.Object
		within time.Duration // until it may do as much again
	}{
		"event.rate": {2000, eventsR, func(node string) runtime.Object {
			return event(func(e *corev1.Event) {
				e.InvolvedObject.Name, e.Source.Host, e.ReportingInstance = node, node, node
				e.Message = strings.Repeat("x", 500)
			})
		}, time.Hour},
		"request.rate": {20, requestR, func(node string) runtime.Object {
			return csrFor(t, "system:node:"+node, "system:nodes", certificatesv1.KubeAPIServerClientKubeletSignerName)
		}, 24 * time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			reg := prometheus.NewRegistry()
			plugin := restrict(t, RestrictionConfig{Objects: NewObjects(), Metrics: reg, Log: slog.New(slog.NewTextHandler(&out, nil))})
			objects := map[string]runtime.Object{"node-1": tc.object("node-1"), "node-2": tc.object("node-2")}
			store := func(node string) error {
				return plugin.Validate(t.Context(), submission{op: admission.Create, gvr: tc.gvr, obj: objects[node]}.attributes(node), nil)
			}
			most := func() (n int, err error) {
				for n = 0; n < 100_000; n++ {
					if err = store("node-1"); err != nil {
						return n, err
					}
				}
				return n, nil
			}
			n, err := most()
			if n < tc.least || !apierrors.IsTooManyRequests(err) {
				t.Errorf("%s: after %d: %v", kind, n, err)
			}
			after, ok := apierrors.SuggestsClientDelay(err)
			if !ok || after < 1 || !strings.Contains(err.Error(), "node-1") {
				t.Errorf("%s: told %v, come back after %d s", kind, err, after)
			}
			if countOf(t, reg, kind) != 1 || !strings.Contains(out.String(), "claim="+kind) {
				t.Errorf("%s: counted %v, logged %s", kind, countOf(t, reg, kind), &out)
			}
			if err := store("node-2"); err != nil {
				t.Errorf("%s of another node: %v", kind, err)
			}
			<-time.After(time.Duration(after) * time.Second)
			if err := store("node-1"); err != nil {
				t.Errorf("%s, when it was told to come back: %v", kind, err)
			}
			<-time.After(tc.within)
			if again, _ := most(); again < n {
				t.Errorf("%s: %d, and %s later %d", kind, n, tc.within, again)
			}
		})
	}
}

// usual are frequent writes of nodes.
func usual() map[string]submission {
	old := node("node-1", func(n *corev1.Node) {
		label("topology.kubernetes.io/zone", "a")(n)
		condition(corev1.NodeReady, "True")(n)
		condition("hawser.dev/TunnelConnected", "True")(n)
		address("10.0.0.1")(n)
		ranged("10.244.1.0/24")(n)
		annotated("node.hawser.dev/autonomy-duration")(n)
		n.Spec.Taints = []corev1.Taint{{Key: "a"}, {Key: "b"}}
		n.Finalizers = []string{"x"}
	})
	beat := old.DeepCopy()
	beat.Status.Conditions[0].LastHeartbeatTime.Time = time.Unix(1, 0)
	pod := lesson(nil)
	ran := lesson(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	return map[string]submission{
		"node status": {op: admission.Update, gvr: nodesR, sub: "status", name: "node-1", obj: beat, old: old},
		"lease":       {op: admission.Update, gvr: leasesR, ns: nodeLeases, name: "node-1", obj: leaseOf(nil), old: leaseOf(func(*coordinationv1.Lease) {})},
		"pod status":  {op: admission.Update, gvr: podsR, sub: "status", ns: "ns", name: "web", obj: ran, old: pod},
	}
}

// TestClaimsAllocateNothing: in requests that are not refused.
func TestClaimsAllocateNothing(t *testing.T) {
	plugin := restrict(t, RestrictionConfig{Objects: NewObjects()})
	for name, w := range usual() {
		a, ctx := w.attributes("node-1"), t.Context()
		if n := testing.AllocsPerRun(100, func() {
			if err := plugin.Validate(ctx, a, nil); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkClaims(b *testing.B) {
	plugin := restrict(b, RestrictionConfig{Objects: NewObjects()})
	for name, w := range usual() {
		b.Run(name, func(b *testing.B) {
			a, ctx := w.attributes("node-1"), b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if err := plugin.Validate(ctx, a, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestReportsAreBounded: a node cannot fill the store with versions of itself and its pods.
func TestReportsAreBounded(t *testing.T) {
	large := strings.Repeat("x", 100<<10)
	told := node("node-1", func(n *corev1.Node) { n.Annotations = map[string]string{"example.com/x": large} })
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "node-1", Annotations: map[string]string{"example.com/x": large}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("node-1")},
	}
	web := lesson(func(p *corev1.Pod) { p.Status.Message = large })
	claim := expanding(expanded)
	for _, c := range []runtime.Object{claim.obj, claim.old} {
		c.(*corev1.PersistentVolumeClaim).Annotations = map[string]string{"example.com/x": large}
	}
	for what, tc := range map[string]struct {
		kind string
		w    submission
	}{
		"its claim": {"pod.rate", claim},
		"its Node":  {"node.rate", reports(node("node-1", nil), told)},
		"its Lease": {"node.rate", submission{op: admission.Create, gvr: leasesR, ns: corev1.NamespaceNodeLease, obj: lease}},
		"its pod":   {"pod.rate", submission{op: admission.Update, gvr: podsR, sub: "status", ns: "ns", name: "web", old: lesson(nil), obj: web}},
	} {
		o, _ := objects(t, cluster()...)
		reg := prometheus.NewRegistry()
		plugin := restrict(t, RestrictionConfig{Objects: o, Metrics: reg})
		n, err := 0, error(nil)
		for ; err == nil && n < 2000; n++ {
			err = plugin.Validate(t.Context(), tc.w.attributes("node-1"), nil)
		}
		if after, ok := apierrors.SuggestsClientDelay(err); n < 100 || !apierrors.IsTooManyRequests(err) || !ok || after < 1 || countOf(t, reg, tc.kind) != 1 {
			t.Errorf("%s: after %d: %v, counted %v", what, n, err, countOf(t, reg, tc.kind))
		}
		shown := submission{op: admission.Create, gvr: podsR, ns: "ns", obj: mirror(func(p *corev1.Pod) { p.Annotations["example.com/x"] = large[:mirrorSize*9/10] })}
		for range 2 { // what is left is less than that
			err = plugin.Validate(t.Context(), shown.attributes("node-1"), nil)
		}
		if apierrors.IsTooManyRequests(err) != (tc.kind == "pod.rate") {
			t.Errorf("%s: a mirror pod: %v", what, err)
		}
		other := reports(node("node-2", nil), node("node-2", annotated("example.com/x")))
		if err := plugin.Validate(t.Context(), other.attributes("node-2"), nil); err != nil {
			t.Errorf("%s: another node: %v", what, err)
		}
	}
}

// TestJoinsAreBounded: who has a join token cannot fill the store with requests, and delays nobody
// who joins by another.
func TestJoinsAreBounded(t *testing.T) {
	plugin := restrict(t, RestrictionConfig{Objects: NewObjects()})
	request := csrFor(t, "system:node:node-9", "system:nodes", certificatesv1.KubeAPIServerClientKubeletSignerName)
	request.Annotations = map[string]string{"example.com/x": strings.Repeat("x", requestSize*3/4)}
	ask := func(who string) error {
		return plugin.Validate(t.Context(), submission{op: admission.Create, gvr: requestR, obj: request}.attributes(who), nil)
	}
	n, err := 0, error(nil)
	for ; err == nil && n < 100_000; n++ {
		err = ask("boot")
	}
	if after, ok := apierrors.SuggestsClientDelay(err); n < 5000 || !apierrors.IsTooManyRequests(err) || !ok || after < 1 || !strings.Contains(err.Error(), "system:bootstrap:abcdef") {
		t.Errorf("after %d: %v", n, err)
	}
	if err := ask("boot2"); err != nil {
		t.Errorf("with another token: %v", err)
	}
}
