package nodelifecycle

// Tests of the taints: the table of what calls for which, and the loop.

import (
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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func node(taints []corev1.Taint, conditions ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Taints: taints}}
	for _, c := range conditions {
		name, status, _ := strings.Cut(c, "=")
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(name), Status: corev1.ConditionStatus(status)})
	}
	return n
}

func taint(key, effect string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffect(effect)}
}

func written(ts []corev1.Taint) string {
	var out []string
	for _, t := range ts {
		out = append(out, strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestTaints(t *testing.T) {
	const p = "node.kubernetes.io/"
	ns := func(key string) corev1.Taint { return taint(p+key, "NoSchedule") }
	cordoned := node(nil, "Ready=True")
	cordoned.Spec.Unschedulable = true
	for _, tc := range []struct {
		name    string
		node    *corev1.Node
		want    string
		changed bool
	}{
		{"ready", node(nil, "Ready=True"), "", false},
		{"new and ready", node([]corev1.Taint{ns("not-ready")}, "Ready=True"), "", true},
		{"says nothing", node([]corev1.Taint{ns("not-ready")}), "not-ready:NoSchedule", false},
		{"says nothing, no taint", node(nil), "not-ready:NoSchedule", true},
		{"not ready", node(nil, "Ready=False"), "not-ready:NoSchedule", true},
		{"unknown", node(nil, "Ready=Unknown"), "unreachable:NoSchedule", true},
		{"from not ready to unknown", node([]corev1.Taint{ns("not-ready")}, "Ready=Unknown"), "unreachable:NoSchedule", true},
		{"memory", node(nil, "Ready=True", "MemoryPressure=True"), "memory-pressure:NoSchedule", true},
		{"memory unknown", node(nil, "Ready=True", "MemoryPressure=Unknown"), "", false},
		{"disk", node(nil, "Ready=True", "DiskPressure=True"), "disk-pressure:NoSchedule", true},
		{"pids", node(nil, "Ready=True", "PIDPressure=True"), "pid-pressure:NoSchedule", true},
		{"network", node(nil, "Ready=True", "NetworkUnavailable=True"), "network-unavailable:NoSchedule", true},
		{"no pressure any more", node([]corev1.Taint{ns("disk-pressure")}, "Ready=True", "DiskPressure=False"), "", true},
		{"all at once", node(nil, "Ready=False", "DiskPressure=True", "PIDPressure=True"), "disk-pressure:NoSchedule not-ready:NoSchedule pid-pressure:NoSchedule", true},
		{"cordoned", cordoned, "unschedulable:NoSchedule", true},
		{"uncordoned", node([]corev1.Taint{ns("unschedulable")}, "Ready=True"), "", true},
		{"others' taints stay", node([]corev1.Taint{taint("a", "NoSchedule"), ns("not-ready"), taint(p+"out-of-service", "NoExecute")}, "Ready=True"), "a:NoSchedule out-of-service:NoExecute", true},
		{"our keys with other effects stay", node([]corev1.Taint{taint(p+"not-ready", "NoExecute")}, "Ready=True"), "not-ready:NoExecute", false},
		{"unknown conditions", node(nil, "Ready=True", "Odd=True"), "", false},
		{"twice the same", node([]corev1.Taint{ns("not-ready"), ns("not-ready")}, "Ready=False"), "not-ready:NoSchedule", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := written(tc.node.Spec.Taints)
			got, changed := noSchedule(tc.node, metav1.Now())
			if written(got) != tc.want || changed != tc.changed {
				t.Errorf("got %q (changed %v), want %q (%v)", written(got), changed, tc.want, tc.changed)
			}
			if after := written(tc.node.Spec.Taints); after != before {
				t.Errorf("the node itself was changed from %q to %q", before, after)
			}
			tc.node.Spec.Taints = got
			if again, changed := noSchedule(tc.node, metav1.Now()); changed {
				t.Errorf("a second look changes %q to %q", written(got), written(again))
			}
		})
	}
}

// TestLoop: a new node is freed when it is ready, tainted when it is not, and
// writes that lose a race are made again.
func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fresh := node([]corev1.Taint{taint(corev1.TaintNodeNotReady, "NoSchedule"), taint("mine", "NoSchedule")}, "Ready=False")
		client := fake.NewClientset(fresh)
		var conflicts, patches atomic.Int32
		client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			patches.Add(1)
			if conflicts.Load() > 0 {
				conflicts.Add(-1)
				return true, nil, apierrors.NewConflict(corev1.Resource("nodes"), "n", errors.New("changed"))
			}
			patch, _ := a.(clienttesting.PatchAction)
			if !strings.Contains(string(patch.GetPatch()), `"resourceVersion"`) {
				return true, nil, fmt.Errorf("no resource version in %s", patch.GetPatch())
			}
			return false, nil, nil
		})
		f := informers.NewSharedInformerFactory(client, 0)
		c, err := New(loop.Deps{Client: client, Informers: f}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		expect := func(step, want string) {
			t.Helper()
			<-time.After(time.Second)
			synctest.Wait()
			n, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := written(n.Spec.Taints); got != want {
				t.Errorf("%s: %q, want %q", step, got, want)
			}
		}
		ready := func(status string) {
			t.Helper()
			n, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			n.Status.Conditions = node(nil, "Ready="+status).Status.Conditions
			if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		expect("new", "mine:NoSchedule not-ready:NoSchedule")
		if n := patches.Load(); n != 0 {
			t.Errorf("%d writes that change nothing", n)
		}
		ready("True")
		expect("ready", "mine:NoSchedule")
		conflicts.Store(3)
		ready("Unknown")
		expect("unknown, after three conflicts", "mine:NoSchedule unreachable:NoSchedule")
		ready("True")
		expect("back", "mine:NoSchedule")
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		f.Shutdown()
	})
}
