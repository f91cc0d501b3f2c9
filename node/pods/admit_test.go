package pods

// Tests of admission, and of refused pods.

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime/memory"
)

func TestAdmit(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: thisNode, Labels: map[string]string{"disk": "ssd"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "t", Value: "v", Effect: corev1.TaintEffectNoExecute}, {Key: "n", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("3"),
			"example.com/gpu": resource.MustParse("2"), "hugepages-2Mi": resource.MustParse("0"),
		}},
	}
	tolerant := func(change func(p *corev1.Pod)) *corev1.Pod {
		return newPod("p", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "t", Operator: corev1.TolerationOpExists}}
			if change != nil {
				change(p)
			}
		})
	}
	numbered := node.DeepCopy()
	numbered.Spec.Taints[0].Value = "5"
	than := func(op corev1.TolerationOperator, value string) *corev1.Pod {
		return newPod("p", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "t", Operator: op, Value: value}}
		})
	}
	requests := func(cpu, memory string) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
		}
	}
	port := func(ip string, n int32) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: n, HostIP: ip}}
		}
	}
	always := ptr.To(corev1.ContainerRestartPolicyAlways)
	inits := func(cpu string, policy *corev1.ContainerRestartPolicy, port int32) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			requests("1", "1")(p)
			c := container1("init")
			c.RestartPolicy = policy
			c.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
			c.Ports = []corev1.ContainerPort{{HostPort: port}}
			p.Spec.InitContainers = []corev1.Container{c}
		}
	}
	request := func(name, amount string) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(amount)}
		}
	}
	affine := func(terms ...corev1.NodeSelectorTerm) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
			}}
		}
	}
	field := func(name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}
	}
	for _, tt := range []struct {
		name   string
		pod    *corev1.Pod
		others []*corev1.Pod
		node   *corev1.Node
		want   string
	}{
		{"fits", tolerant(requests("2", "1Gi")), nil, node, ""},
		{"other system", tolerant(func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }), nil, node, "PodOSNotSupported"},
		{"selector", tolerant(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }), nil, node, "NodeAffinity"},
		{"selector that fits", tolerant(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }), nil, node, ""},
		{"affinity", tolerant(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"ssd"}}}}},
			}}}
		}), nil, node, "NodeAffinity"},
		{"taint", newPod("p", nil), nil, node, "TaintToleration"},
		{"taint of a number that is less", than(corev1.TolerationOpLt, "6"), nil, numbered, ""},
		{"taint of a number that is not more", than(corev1.TolerationOpGt, "6"), nil, numbered, "TaintToleration"},
		{"cpu", tolerant(requests("2100m", "1")), nil, node, "OutOfcpu"},
		{"memory", tolerant(requests("1", "2Gi")), nil, node, "OutOfmemory"},
		{"cpu beside others", tolerant(requests("1", "1")), []*corev1.Pod{tolerant(requests("1500m", "1"))}, node, "OutOfcpu"},
		{"no requests beside a full node", tolerant(nil), []*corev1.Pod{tolerant(requests("2", "1Gi"))}, node, ""},
		{"number", tolerant(nil), []*corev1.Pod{tolerant(nil), tolerant(nil), tolerant(nil)}, node, "OutOfpods"},
		{"number without a node", tolerant(nil), slices.Repeat([]*corev1.Pod{tolerant(nil)}, 110), nil, "OutOfpods"},
		{"without a node", tolerant(requests("100", "1")), nil, nil, ""},
		{"port taken", tolerant(port("", 80)), []*corev1.Pod{tolerant(port("10.0.0.1", 80))}, node, "NodePorts"},
		{"port at another address", tolerant(port("10.0.0.2", 80)), []*corev1.Pod{tolerant(port("10.0.0.1", 80))}, node, ""},
		{"another port", tolerant(port("", 81)), []*corev1.Pod{tolerant(port("", 80))}, node, ""},
		{"somebody else's resource", tolerant(request("example.com/cluster", "1")), nil, node, ""},
		{"a device", tolerant(request("example.com/gpu", "1")), []*corev1.Pod{tolerant(request("example.com/gpu", "1"))}, node, ""},
		{"a device too many", tolerant(request("example.com/gpu", "2")), []*corev1.Pod{tolerant(request("example.com/gpu", "1"))}, node, "OutOfexample.com/gpu"},
		{"huge pages of a node without", tolerant(request("hugepages-2Mi", "2Mi")), nil, node, "OutOfhugepages-2Mi"},
		{"a disk that is not told of", tolerant(request("ephemeral-storage", "1Gi")), nil, node, "OutOfephemeral-storage"},
		{"init container beside the others", tolerant(inits("2", nil, 0)), nil, node, ""},
		{"init container that is too large", tolerant(inits("2100m", nil, 0)), nil, node, "OutOfcpu"},
		{"sidecar", tolerant(inits("1", always, 0)), nil, node, ""},
		{"sidecar that is too much", tolerant(inits("1100m", always, 0)), nil, node, "OutOfcpu"},
		{"overhead", tolerant(func(p *corev1.Pod) {
			requests("2", "1")(p)
			p.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("1m")}
		}), nil, node, "OutOfcpu"},
		{"port of a sidecar", tolerant(port("", 80)), []*corev1.Pod{tolerant(inits("0", always, 80))}, node, "NodePorts"},
		{"port of an init container", tolerant(port("", 80)), []*corev1.Pod{tolerant(inits("0", nil, 80))}, node, ""},
		{"this node by name", tolerant(affine(field("other"), field(thisNode))), nil, node, ""},
		{"another node by name", tolerant(affine(field("other"))), nil, node, "NodeAffinity"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if r := admit(tt.pod, tt.node, tt.others, 110); r != nil {
				got = r.reason
			}
			if got != tt.want {
				t.Errorf("refused with %q, want %q", got, tt.want)
			}
		})
	}
}

// TestRefusalsInWords: the texts are the kubelet's, which users and tools know.
func TestRefusalsInWords(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: thisNode},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "t", Value: "v", Effect: corev1.TaintEffectNoExecute}}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("1"),
		}},
	}
	asks := func(name, amount string) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(amount)}
		}
	}
	for _, tt := range []struct {
		pod    *corev1.Pod
		others []*corev1.Pod
		want   refusal
	}{
		{newPod("p", asks("cpu", "1500m")), nil, refusal{"OutOfcpu", "Node didn't have enough resource: cpu, requested: 1500, used: 0, capacity: 1000"}},
		{newPod("p", asks("memory", "2Gi")), nil, refusal{"OutOfmemory", "Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824"}},
		{newPod("p", asks("cpu", "1m")), []*corev1.Pod{newPod("q", nil)}, refusal{"OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1"}},
		{newPod("p", nil), nil, refusal{"TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"}},
		{newPod("p", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} }), nil, refusal{"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"}},
	} {
		got := admit(tt.pod, node, tt.others, 110)
		if got == nil || *got != tt.want {
			t.Errorf("got %+v, want %+v", got, tt.want)
			continue
		}
		if want := "Pod was rejected: " + tt.want.message; got.status() != want {
			t.Errorf("status %q, want %q", got.status(), want)
		}
	}
}

// wantShown checks what kubectl get pods shows as the status of a pod: the pod's
// reason, unless a container's state has one.
func wantShown(t *testing.T, p *corev1.Pod, want string) {
	t.Helper()
	shown := p.Status.Reason
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, cs := range list {
			switch {
			case cs.State.Waiting != nil && cs.State.Waiting.Reason != "":
				shown = cs.State.Waiting.Reason
			case cs.State.Terminated != nil && cs.State.Terminated.Reason != "":
				shown = cs.State.Terminated.Reason
			}
		}
	}
	if shown != want {
		t.Errorf("kubectl shows %q for pod %s, want %q", shown, p.Name, want)
	}
}

func TestRefusedPods(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: thisNode, Labels: map[string]string{"disk": "ssd"}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("3"),
		}},
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memory.Options{})
		var known atomic.Pointer[corev1.Node]
		w.cfg.Node = known.Load
		w.start()
		cpu := func(q string) func(p *corev1.Pod) {
			return func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q)}
			}
		}
		w.create(newPod("first", cpu("600m")))
		advance(time.Second)
		w.wantPhase("first", corev1.PodPending) // it is not known yet whether it fits
		known.Store(node)
		w.runner.Wake()
		advance(time.Second)
		w.wantPhase("first", corev1.PodRunning)
		w.create(newPod("second", cpu("600m")))
		w.create(newPod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }))
		advance(time.Second)
		w.wantPhase("second", corev1.PodFailed)
		if st := w.pod("second").Status; st.Reason != "OutOfcpu" || !strings.Contains(st.Message, "cpu, requested: 600, used: 600, capacity: 1000") {
			t.Errorf("reason %q, message %q", st.Reason, st.Message)
		}
		wantShown(t, w.pod("second"), "OutOfcpu")
		wantShown(t, w.pod("elsewhere"), "NodeAffinity")
		w.wantEvent("second Warning OutOfcpu Node didn't have enough resource: cpu, requested: 600")
		if got := w.pod("elsewhere").Status.Reason; got != "NodeAffinity" {
			t.Errorf("reason %q", got)
		}
		w.create(newPod("third", cpu("100m")))
		w.create(newPod("fourth", nil))
		w.create(newPod("fifth", nil))
		advance(time.Second)
		if got := w.pod("fifth").Status.Reason; got != "OutOfpods" {
			t.Errorf("reason %q", got)
		}
		w.restart()
		advance(time.Second)
		w.wantPhase("first", corev1.PodRunning)
		w.wantPhase("second", corev1.PodFailed)
		wantShown(t, w.pod("second"), "OutOfcpu")
		w.remove("second", 30)
		advance(time.Second)
		if w.find("default", "second") != nil {
			t.Error("a refused pod cannot be deleted")
		}
		w.stop()
	})
}
