// Registration: what a new node says of itself, and what an older object is told.

package node

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNoSwap: kube-apiserver refuses a node whose swap is zero.
func TestNoSwap(t *testing.T) {
	inWorld(t, func(w *world) {
		write(t, filepath.Join(w.root, "proc/meminfo"), "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\n")
	}, func(w *world) {
		if swap := w.node().Status.NodeInfo.Swap; swap != nil {
			t.Errorf("swap %v", *swap.Capacity)
		}
	})
}

func TestRegistration(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cfg.Labels = map[string]string{"disk": "ssd", "node.kubernetes.io/x": "y"}
		w.cfg.Taints = []corev1.Taint{{Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule}}
		w.cfg.Unschedulable = true
		w.cfg.ProviderID = "inventory://1"
		w.cfg.Reserved = corev1.ResourceList{"cpu": resource.MustParse("10"), "memory": resource.MustParse("1Gi")}
		w.cfg.MaxPods = 42
		w.cfg.Annotations = map[string]string{"example.com/way": "ssh", "example.com/none": ""}
	}, func(w *world) {
		if got := w.times("get nodes"); len(got) == 0 {
			t.Error("the node was created without having been asked for")
		}
		n := w.node()
		for k, v := range map[string]string{
			"disk": "ssd", "node.kubernetes.io/x": "y", "kubernetes.io/hostname": "node-1", "kubernetes.io/os": "linux",
		} {
			if n.Labels[k] != v {
				t.Errorf("label %s is %q", k, n.Labels[k])
			}
		}
		if _, none := n.Annotations["example.com/none"]; none || n.Annotations["example.com/way"] != "ssh" {
			t.Errorf("annotations %v", n.Annotations)
		}
		if len(n.Spec.Taints) != 2 || n.Spec.Taints[1].Key != corev1.TaintNodeUnschedulable || !n.Spec.Unschedulable || n.Spec.ProviderID != "inventory://1" {
			t.Errorf("spec %+v", n.Spec)
		}
		// The object is made with its whole status: who reads it first sees it all.
		var created *corev1.Node
		for _, c := range w.calls {
			if c.what == "create nodes" {
				created = c.obj.(*corev1.Node)
			}
		}
		st := created.Status
		if got := fmt.Sprint(st.Addresses); got != "[{InternalIP 192.0.2.7} {Hostname node-1}]" {
			t.Errorf("addresses %s", got)
		}
		if q := st.Capacity[corev1.ResourceMemory]; q.String() != "16Gi" {
			t.Errorf("memory %s", q.String())
		}
		if q := st.Allocatable[corev1.ResourceMemory]; q.Value() != 16<<30-1<<30-1<<30-100<<20 { // reserved, huge pages, threshold
			t.Errorf("allocatable memory %s", q.String())
		}
		if q := st.Allocatable[corev1.ResourceCPU]; q.Sign() != 0 {
			t.Errorf("allocatable cpu %s, want 0 and not less", q.String())
		}
		if q := st.Capacity[corev1.ResourcePods]; q.Value() != 42 {
			t.Errorf("pods %s", q.String())
		}
		if q := st.Capacity["hugepages-2Mi"]; q.String() != "1Gi" {
			t.Errorf("huge pages %s", q.String())
		}
		info := st.NodeInfo
		if info.Swap == nil || *info.Swap.Capacity != 1<<20 {
			t.Errorf("swap %+v", info.Swap)
		}
		if info.KubeletVersion != "v1.37.2+hawser" || info.ContainerRuntimeVersion != "memory://1" || info.OSImage != "Example Linux 1" ||
			info.KernelVersion != "6.18.0" || info.BootID != "boot-1" || info.MachineID != "machine" || info.SystemUUID != "abcd-ef" ||
			info.OperatingSystem != "linux" || info.KubeProxyVersion != "" { //nolint:staticcheck // deprecated, and so unset
			t.Errorf("nodeInfo %+v", info)
		}
		if st.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
			t.Errorf("port %d", st.DaemonEndpoints.KubeletEndpoint.Port)
		}
		if last := st.Conditions[len(st.Conditions)-1]; last.Type != corev1.NodeReady || last.Status != corev1.ConditionTrue ||
			last.Reason != "KubeletReady" || !strings.HasPrefix(last.Message, "kubelet is posting ready status") {
			t.Errorf("last condition %+v", last)
		}
		for c, reason := range map[corev1.NodeConditionType]string{
			corev1.NodeMemoryPressure: "KubeletHasSufficientMemory", corev1.NodeDiskPressure: "KubeletHasNoDiskPressure", corev1.NodePIDPressure: "KubeletHasSufficientPID",
		} {
			if got := condition(created, c); got.Status != corev1.ConditionFalse || got.Reason != reason {
				t.Errorf("condition %+v", got)
			}
		}
		advance(time.Second)
		for _, e := range []string{"Starting Starting kubelet.", "NodeReady Node node-1 status is now: NodeReady", "NodeHasSufficientMemory"} {
			if !w.sawEvent(e) {
				t.Errorf("no event %q among %q", e, w.events)
			}
		}
	})
}

// TestCapacity: what the machine has is the node's, and what is reserved is not allocatable.
func TestCapacity(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cfg.Reserved = corev1.ResourceList{"cpu": resource.MustParse("500m")}
	}, func(w *world) {
		has, err := w.n.machine.read("")
		if err != nil {
			t.Fatal(err)
		}
		st := w.node().Status
		for _, tt := range []struct {
			of   corev1.ResourceName
			want *resource.Quantity
		}{
			{corev1.ResourceCPU, resource.NewQuantity(int64(goruntime.NumCPU()), resource.DecimalSI)},
			{corev1.ResourceMemory, resource.NewQuantity(16<<30, resource.BinarySI)},
			{corev1.ResourcePods, resource.NewQuantity(110, resource.DecimalSI)},
			{corev1.ResourceEphemeralStorage, resource.NewQuantity(has.nodefs.size, resource.BinarySI)},
		} {
			if got := st.Capacity[tt.of]; got.Sign() <= 0 || got.Cmp(*tt.want) != 0 {
				t.Errorf("%s %s, want %s", tt.of, got.String(), tt.want.String())
			}
		}
		if got, want := st.Allocatable.Cpu().MilliValue(), st.Capacity.Cpu().MilliValue()-500; got != want {
			t.Errorf("allocatable cpu %dm, want %dm", got, want)
		}
		if got := st.Allocatable.Pods().Value(); got != 110 {
			t.Errorf("allocatable pods %d", got)
		}
	})
}

// TestExternalCloud: no pods before a cloud controller manager has seen the node, and
// its addresses stay.
func TestExternalCloud(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cfg.ExternalCloud = true
		w.cfg.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}
	}, func(w *world) {
		advance(time.Second)
		n := w.node()
		if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].ToString() != "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule" {
			t.Errorf("taints %v", n.Spec.Taints)
		}
		if got := n.Annotations["alpha.kubernetes.io/provided-node-ip"]; got != "192.0.2.7,2001:db8::7" {
			t.Errorf("addresses asked for: %q", got)
		}
		if got := w.n.Addresses(); len(got) != 0 {
			t.Errorf("addresses %v before the cloud has said any", got)
		}
		want := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.7"}, {Type: corev1.NodeHostName, Address: "192.0.2.99"}}
		n.Status.Addresses = want
		nodes := w.api.CoreV1().Nodes()
		if _, err := nodes.UpdateStatus(w.t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		before := len(w.times("patch nodes/status"))
		advance(15 * time.Minute)
		if len(w.times("patch nodes/status")) == before {
			t.Error("no status was written since")
		}
		n = w.node()
		n.Spec.Taints = nil
		if _, err := nodes.Update(w.t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		advance(time.Minute)
		if got := fmt.Sprint(w.n.Addresses()); got != "[10.1.2.3 203.0.113.7]" {
			t.Errorf("addresses %s, want the cloud's", got)
		}
		if got := w.node().Status.Addresses; !slices.Equal(got, want) {
			t.Errorf("addresses %v, want the cloud's", got)
		}
	})
}

// TestRegistrationIsRetried checks the waits: 100 ms, doubled up to 7 s.
func TestRegistrationIsRetried(t *testing.T) {
	inWorld(t, func(w *world) {
		w.fail = func(_, resource string) error {
			if resource == "nodes" {
				return errors.New("connection refused")
			}
			return nil
		}
	}, func(w *world) {
		advance(40 * time.Second)
		got := w.times("get nodes")
		if want := "[0 0.1 0.3 0.7 1.5 3.1 6.3 12.7 19.7 26.7 33.7]"; fmt.Sprint(got) != want {
			t.Errorf("tries at %v, want %s", got, want)
		}
		if n := len(w.times("update leases")) + len(w.times("create leases")); n != 0 {
			t.Errorf("%d leases without a node", n)
		}
		w.setFail(nil)
		advance(7 * time.Second)
		w.node()
	})
}

func TestExistingNodeIsReconciled(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cfg.Labels = map[string]string{"disk": "ssd"}
		w.cfg.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
		w.cfg.Annotations = map[string]string{"example.com/way": "tunnel", "example.com/none": ""}
		w.cfg.KubeletPort = 10251
		old := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: "node-1", UID: "first", Labels: map[string]string{"mine": "1", "kubernetes.io/hostname": "old"},
				Annotations: map[string]string{"mine": "1", "example.com/way": "ssh", "example.com/none": "some"},
			},
			Spec: corev1.NodeSpec{Unschedulable: true},
			Status: corev1.NodeStatus{
				NodeInfo:    corev1.NodeSystemInfo{BootID: "boot-0"},
				Conditions:  []corev1.NodeCondition{{Type: "NetworkUnavailable", Status: "False"}, {Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated"}},
				Capacity:    corev1.ResourceList{"example.com/gpu": resource.MustParse("2"), "hugepages-16Mi": resource.MustParse("1Gi")},
				Allocatable: corev1.ResourceList{"hugepages-16Mi": resource.MustParse("1Gi")},
			},
		}
		if err := w.api.Tracker().Add(old); err != nil {
			w.t.Fatal(err)
		}
	}, func(w *world) {
		advance(time.Second)
		n := w.node()
		if n.UID != "first" || n.Labels["mine"] != "1" || n.Labels["kubernetes.io/hostname"] != "node-1" || n.Labels["disk"] != "" {
			t.Errorf("metadata %+v", n.ObjectMeta)
		}
		if !n.Spec.Unschedulable || len(n.Spec.Taints) != 0 || n.Annotations[attachDetach] != "true" {
			t.Errorf("node %+v", n)
		}
		if _, none := n.Annotations["example.com/none"]; none || n.Annotations["example.com/way"] != "tunnel" || n.Annotations["mine"] != "1" {
			t.Errorf("annotations %v", n.Annotations)
		}
		if port := n.Status.DaemonEndpoints.KubeletEndpoint.Port; port != 10251 {
			t.Errorf("kubelet port %d", port)
		}
		ready := condition(n, corev1.NodeReady)
		if ready.Status != corev1.ConditionTrue || n.Status.Conditions[len(n.Status.Conditions)-1].Type != corev1.NodeReady || condition(n, "NetworkUnavailable").Status != "False" {
			t.Errorf("conditions %+v", n.Status.Conditions)
		}
		if q := n.Status.Capacity["example.com/gpu"]; q.Value() != 2 {
			t.Errorf("somebody else's capacity is %s", q.String())
		}
		for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
			if q, there := list["hugepages-16Mi"]; there {
				t.Errorf("huge pages of the machine before: %s", q.String())
			}
		}
		if !w.sawEvent("Warning Rebooted Node node-1 has been rebooted, boot id: boot-1") {
			t.Errorf("events %q", w.events)
		}
		if got := w.times("create nodes"); len(got) != 0 {
			t.Errorf("%d nodes created", len(got))
		}
	})
}

func TestNoRegister(t *testing.T) {
	inWorld(t, func(w *world) { w.cfg.NoRegister = true }, func(w *world) {
		advance(5 * time.Minute)
		if got := w.times("create nodes"); len(got) != 0 {
			t.Errorf("%d nodes created", len(got))
		}
		if err := w.api.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "hand-made"}}); err != nil {
			t.Fatal(err)
		}
		advance(20 * time.Second)
		if c := condition(w.node(), corev1.NodeReady); c.Status != corev1.ConditionTrue {
			t.Errorf("condition %+v", c)
		}
	})
}

// TestRegistersThroughAnother: while registering fails the connections are closed, so that
// another server is used, and more and more rarely.
func TestRegistersThroughAnother(t *testing.T) {
	inWorld(t, func(w *world) {
		w.setFail(func(verb, resource string) error {
			if verb == "get" && resource == "nodes" {
				return apierrors.NewInternalError(errors.New("no store"))
			}
			return nil
		})
	}, func(w *world) {
		advance(time.Second)
		if n := w.closed(); n == 0 {
			t.Error("the connections are not closed")
		}
		advance(10 * time.Minute)
		if n := w.closed(); n > 8 {
			t.Errorf("closed %d times in ten minutes", n)
		}
	})
}
