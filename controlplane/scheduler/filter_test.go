package scheduler

// Tests of the decisions, which are pure: what fits where, which is best, and
// how a refusal is told.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quantities(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

func testNode(name string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}},
		Status:     corev1.NodeStatus{Allocatable: quantities("cpu", "2", "memory", "4Gi", "pods", "10")},
	}
	if change != nil {
		change(n)
	}
	return n
}

func testPod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c"}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func asks(kv ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = quantities(kv...) }
}

func tolerating(ts ...corev1.Toleration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Tolerations = ts }
}

func tainted(key, value string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: effect})
	}
}

func port(n int32, protocol corev1.Protocol, ip string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: n, ContainerPort: n, Protocol: protocol, HostIP: ip})
	}
}

func required(key string, op corev1.NodeSelectorOperator, values ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}},
			}}},
		}}
	}
}

// exists1 is a term that asks for all of some labels.
func exists1(keys ...string) corev1.NodeSelectorTerm {
	var t corev1.NodeSelectorTerm
	for _, key := range keys {
		t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpExists})
	}
	return t
}

// fields1 is a term about the node's name.
func fields1(op corev1.NodeSelectorOperator, name string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: []string{name}}}}
}

func terms(ts ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: ts},
		}}
	}
}

func labeled(kv ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for i := 0; i < len(kv); i += 2 {
			n.Labels[kv[i]] = kv[i+1]
		}
	}
}

// infoOf returns a node with pods on it.
func infoOf(node *corev1.Node, pods ...*corev1.Pod) *nodeInfo {
	c := newCache()
	c.setNode(node)
	for _, p := range pods {
		p = p.DeepCopy()
		p.Spec.NodeName = node.Name
		c.setPod(p)
	}
	return c.nodes[node.Name]
}

func TestFilter(t *testing.T) {
	const (
		noTaint = "node(s) had untolerated taint {k: v}"
		noMatch = "node(s) didn't match Pod's node affinity/selector"
		noPort  = "node(s) didn't have free ports for the requested pod ports"
		cordon  = "node(s) were unschedulable"
	)
	sched, exec, prefer := corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule
	exists, equal := corev1.TolerationOpExists, corev1.TolerationOpEqual
	kv := tainted("k", "v", sched)
	unschedulable := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	selector := func(kv ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{kv[0]: kv[1]} }
	}
	init := func(kv ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "i", Resources: corev1.ResourceRequirements{Requests: quantities(kv...)}})
		}
	}
	sidecar := func(kv ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			init(kv...)(p)
			p.Spec.InitContainers[len(p.Spec.InitContainers)-1].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}
	}
	both := func(fs ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, f := range fs {
				f(p)
			}
		}
	}
	for _, tc := range []struct {
		name string
		node func(*corev1.Node)
		pod  func(*corev1.Pod)
		on   []func(*corev1.Pod) // pods already there
		want string              // reasons joined by "; "
	}{
		{"empty node, plain pod", nil, nil, nil, ""},

		{"cordoned", unschedulable, nil, nil, cordon},
		{"cordoned, tolerated by key", unschedulable, tolerating(corev1.Toleration{Key: "node.kubernetes.io/unschedulable", Operator: exists, Effect: sched}), nil, ""},
		{"cordoned, all tolerated", unschedulable, tolerating(corev1.Toleration{Operator: exists}), nil, ""},
		{"cordoned, another tolerated", unschedulable, tolerating(corev1.Toleration{Key: "k", Operator: exists}), nil, cordon},

		{"taint", kv, nil, nil, noTaint},
		{"taint, Equal", kv, tolerating(corev1.Toleration{Key: "k", Operator: equal, Value: "v", Effect: sched}), nil, ""},
		{"taint, Equal by default", kv, tolerating(corev1.Toleration{Key: "k", Value: "v", Effect: sched}), nil, ""},
		{"taint, another value", kv, tolerating(corev1.Toleration{Key: "k", Operator: equal, Value: "w", Effect: sched}), nil, noTaint},
		{"taint, another key", kv, tolerating(corev1.Toleration{Key: "l", Operator: equal, Value: "v", Effect: sched}), nil, noTaint},
		{"taint, another effect", kv, tolerating(corev1.Toleration{Key: "k", Operator: equal, Value: "v", Effect: exec}), nil, noTaint},
		{"taint, any effect", kv, tolerating(corev1.Toleration{Key: "k", Operator: equal, Value: "v"}), nil, ""},
		{"taint, Lt", tainted("k", "4", sched), tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpLt, Value: "5"}), nil, ""},
		{"taint, Lt, not", tainted("k", "5", sched), tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpLt, Value: "5"}), nil, "node(s) had untolerated taint {k: 5}"},
		{"taint, Gt", tainted("k", "6", sched), tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpGt, Value: "5"}), nil, ""},
		{"taint, Gt, not", tainted("k", "5", sched), tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpGt, Value: "5"}), nil, "node(s) had untolerated taint {k: 5}"},
		{"taint, Gt, no number", kv, tolerating(corev1.Toleration{Key: "k", Operator: corev1.TolerationOpGt, Value: "5"}), nil, noTaint},
		{"taint, Exists", kv, tolerating(corev1.Toleration{Key: "k", Operator: exists, Effect: sched}), nil, ""},
		{"taint, any key", kv, tolerating(corev1.Toleration{Operator: exists, Effect: sched}), nil, ""},
		{"taint, any key of another effect", kv, tolerating(corev1.Toleration{Operator: exists, Effect: exec}), nil, noTaint},
		{"NoExecute taint", tainted("k", "v", exec), nil, nil, noTaint},
		{"NoExecute taint, tolerated for a while", tainted("k", "v", exec), tolerating(corev1.Toleration{Key: "k", Operator: exists, TolerationSeconds: ptr.To[int64](10)}), nil, ""},
		{"PreferNoSchedule taint", tainted("k", "v", prefer), nil, nil, ""},
		{"second taint", func(n *corev1.Node) { tainted("a", "", sched)(n); kv(n) }, tolerating(corev1.Toleration{Key: "a", Operator: exists}), nil, noTaint},
		{"taint without value", tainted("node.kubernetes.io/not-ready", "", sched), nil, nil, "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"},

		{"selector", labeled("disk", "ssd"), selector("disk", "ssd"), nil, ""},
		{"selector, no label", nil, selector("disk", "ssd"), nil, noMatch},
		{"selector, another value", labeled("disk", "hdd"), selector("disk", "ssd"), nil, noMatch},
		{"affinity In", labeled("zone", "b"), required("zone", corev1.NodeSelectorOpIn, "a", "b"), nil, ""},
		{"affinity In, not", labeled("zone", "c"), required("zone", corev1.NodeSelectorOpIn, "a", "b"), nil, noMatch},
		{"affinity In, no label", nil, required("zone", corev1.NodeSelectorOpIn, "a", "b"), nil, noMatch},
		{"affinity NotIn, no label", nil, required("zone", corev1.NodeSelectorOpNotIn, "a"), nil, ""},
		{"affinity NotIn, not", labeled("zone", "a"), required("zone", corev1.NodeSelectorOpNotIn, "a"), nil, noMatch},
		{"affinity Exists", labeled("zone", ""), required("zone", corev1.NodeSelectorOpExists), nil, ""},
		{"affinity DoesNotExist, not", labeled("zone", ""), required("zone", corev1.NodeSelectorOpDoesNotExist), nil, noMatch},
		{"affinity Lt", labeled("cores", "7"), required("cores", corev1.NodeSelectorOpLt, "8"), nil, ""},
		{"affinity Lt, not", labeled("cores", "8"), required("cores", corev1.NodeSelectorOpLt, "8"), nil, noMatch},
		{"affinity Lt, no label", nil, required("cores", corev1.NodeSelectorOpLt, "8"), nil, noMatch},
		{"affinity Gt, a label that is no number", labeled("cores", "many"), required("cores", corev1.NodeSelectorOpGt, "8"), nil, noMatch},
		{"affinity, second term", labeled("b", ""), terms(exists1("a"), exists1("b")), nil, ""},
		{"affinity, no term", labeled("c", ""), terms(exists1("a"), exists1("b")), nil, noMatch},
		{"affinity, an empty term is none", nil, terms(corev1.NodeSelectorTerm{}), nil, noMatch},
		{"affinity, both expressions", labeled("a", "", "b", ""), terms(exists1("a", "b")), nil, ""},
		{"affinity, one expression of two", labeled("a", ""), terms(exists1("a", "b")), nil, noMatch},
		{"selector and affinity", labeled("disk", "ssd", "a", ""), both(terms(exists1("a")), selector("disk", "ssd")), nil, ""},
		{"selector without affinity", labeled("disk", "ssd"), both(terms(exists1("a")), selector("disk", "ssd")), nil, noMatch},
		{"affinity by another node's name", nil, terms(fields1(corev1.NodeSelectorOpIn, "other")), nil, noMatch},
		{"affinity by not being the node", nil, terms(fields1(corev1.NodeSelectorOpNotIn, "node")), nil, noMatch},
		{"preferred only", nil, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
				{Weight: 1, Preference: exists1("a")},
			}}}
		}, nil, ""},
		{"affinity NotIn", labeled("zone", "c"), required("zone", corev1.NodeSelectorOpNotIn, "a"), nil, ""},
		{"affinity Exists, not", nil, required("zone", corev1.NodeSelectorOpExists), nil, noMatch},
		{"affinity DoesNotExist", nil, required("zone", corev1.NodeSelectorOpDoesNotExist), nil, ""},
		{"affinity Gt", labeled("cores", "9"), required("cores", corev1.NodeSelectorOpGt, "8"), nil, ""},
		{"affinity Gt, not", labeled("cores", "8"), required("cores", corev1.NodeSelectorOpGt, "8"), nil, noMatch},
		{"affinity that does not parse", nil, required("cores", corev1.NodeSelectorOpGt, "x"), nil, noMatch},
		{"affinity without terms", nil, func(p *corev1.Pod) {
			required("x", corev1.NodeSelectorOpExists)(p)
			p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = nil
		}, nil, noMatch},
		{"affinity by node name", nil, func(p *corev1.Pod) {
			required("x", corev1.NodeSelectorOpExists)(p)
			p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0] = corev1.NodeSelectorTerm{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node"}}},
			}
		}, nil, ""},

		{"port", nil, port(80, "", ""), nil, ""},
		{"port taken", nil, port(80, "", ""), []func(*corev1.Pod){port(80, corev1.ProtocolTCP, "")}, noPort},
		{"port of another protocol", nil, port(80, corev1.ProtocolUDP, ""), []func(*corev1.Pod){port(80, "", "")}, ""},
		{"port of another address", nil, port(80, "", "10.0.0.1"), []func(*corev1.Pod){port(80, "", "10.0.0.2")}, ""},
		{"port of every address", nil, port(80, "", "10.0.0.1"), []func(*corev1.Pod){port(80, "", "0.0.0.0")}, noPort},
		{"port of every address, asked", nil, port(80, "", "::"), []func(*corev1.Pod){port(80, "", "10.0.0.1")}, noPort},
		{"another port", nil, port(81, "", ""), []func(*corev1.Pod){port(80, "", "")}, ""},
		{"port of an init container", nil, port(80, "", ""), []func(*corev1.Pod){func(p *corev1.Pod) {
			init("cpu", "0")(p)
			p.Spec.InitContainers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
		}}, ""},
		{"port of a sidecar", nil, port(80, "", ""), []func(*corev1.Pod){func(p *corev1.Pod) {
			sidecar("cpu", "0")(p)
			p.Spec.InitContainers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
		}}, noPort},

		{"cpu that fits exactly", nil, asks("cpu", "2"), nil, ""},
		{"too much cpu", nil, asks("cpu", "2001m"), nil, "Insufficient cpu"},
		{"cpu beside others", nil, asks("cpu", "900m"), []func(*corev1.Pod){asks("cpu", "600m"), asks("cpu", "600m")}, "Insufficient cpu"},
		{"memory beside others", nil, asks("memory", "1Gi"), []func(*corev1.Pod){asks("memory", "3Gi")}, ""},
		{"too much memory beside others", nil, asks("memory", "1025Mi"), []func(*corev1.Pod){asks("memory", "3Gi")}, "Insufficient memory"},
		{"cpu and memory", nil, asks("cpu", "3", "memory", "5Gi"), nil, "Insufficient cpu; Insufficient memory"},
		{"storage that the node does not count", nil, asks("ephemeral-storage", "1Gi"), nil, "Insufficient ephemeral-storage"},
		{"a device", func(n *corev1.Node) { n.Status.Allocatable["example.com/gpu"] = resource.MustParse("1") }, asks("example.com/gpu", "1"), nil, ""},
		{"a device taken", func(n *corev1.Node) { n.Status.Allocatable["example.com/gpu"] = resource.MustParse("1") }, asks("example.com/gpu", "1"), []func(*corev1.Pod){asks("example.com/gpu", "1")}, "Insufficient example.com/gpu"},
		{"a device nobody has", nil, asks("example.com/gpu", "1"), nil, "Insufficient example.com/gpu"},
		{"nothing asked of a full node", nil, nil, []func(*corev1.Pod){asks("cpu", "2", "memory", "4Gi")}, ""},
		{"nothing asked of an overcommitted node", func(n *corev1.Node) { n.Status.Allocatable["cpu"] = resource.MustParse("1") }, nil, []func(*corev1.Pod){asks("cpu", "2")}, ""},
		{"no capacity", func(n *corev1.Node) { n.Status.Allocatable = nil }, asks("cpu", "1m"), nil, "Insufficient cpu; Too many pods"},
		{"one pod too many", func(n *corev1.Node) { n.Status.Allocatable["pods"] = resource.MustParse("2") }, nil, []func(*corev1.Pod){nil, nil}, "Too many pods"},
		{"the last pod", func(n *corev1.Node) { n.Status.Allocatable["pods"] = resource.MustParse("3") }, nil, []func(*corev1.Pod){nil, nil}, ""},
		{"two containers", nil, func(p *corev1.Pod) {
			asks("cpu", "1500m")(p)
			p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0])
		}, nil, "Insufficient cpu"},
		{"init container that asks for more", nil, both(asks("cpu", "1"), init("cpu", "2500m")), nil, "Insufficient cpu"},
		{"init container is not added", nil, both(asks("cpu", "1500m"), init("cpu", "1500m")), nil, ""},
		{"sidecar is added", nil, both(asks("cpu", "1500m"), sidecar("cpu", "600m")), nil, "Insufficient cpu"},
		{"init container beside a sidecar", nil, both(asks("cpu", "1"), sidecar("cpu", "600m"), init("cpu", "1500m")), nil, "Insufficient cpu"},
		{"overhead is added", nil, both(asks("cpu", "1500m"), func(p *corev1.Pod) { p.Spec.Overhead = quantities("cpu", "600m") }), nil, "Insufficient cpu"},
		{"limits are not requests", nil, func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = quantities("cpu", "8") }, nil, ""},
		{"cordon before taint", func(n *corev1.Node) { unschedulable(n); kv(n) }, asks("cpu", "9"), nil, cordon},
		{"taint before selector", kv, both(selector("a", "b"), asks("cpu", "9")), nil, noTaint},
		{"selector before resources", nil, both(selector("a", "b"), asks("cpu", "9")), nil, noMatch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var on []*corev1.Pod
			for i, change := range tc.on {
				on = append(on, testPod(fmt.Sprint("there-", i), change))
			}
			why := map[reason]int{}
			fits := filter(newPodInfo(testPod("p", tc.pod)), infoOf(testNode("node", tc.node), on...), why)
			var got []string
			for r, n := range why {
				got = append(got, r.String())
				if n != 1 || r.cause == 0 || r.cause&(byAny|byEviction) != r.cause {
					t.Errorf("%q is counted %d times, with cause %b", r, n, r.cause)
				}
			}
			slices.Sort(got)
			if got := strings.Join(got, "; "); got != tc.want || fits != (tc.want == "") {
				t.Errorf("got %q and %t, want %q", got, fits, tc.want)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	cpu, memory := reason{text: "Insufficient cpu", cause: byRoom}, reason{text: "Insufficient memory", cause: byRoom}
	for _, tc := range []struct {
		nodes   int
		reasons map[reason]int
		want    string
		needs   cause
	}{
		{0, nil, "no nodes available to schedule pods", byAny},
		{1, map[reason]int{cpu: 1}, "0/1 nodes are available: 1 Insufficient cpu.", byRoom},
		{3, map[reason]int{elsewhere: 3}, "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.", byLabels},
		{
			2,
			map[reason]int{cpu: 1, repelled(&corev1.Taint{Key: "k", Value: "v"}): 1},
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {k: v}.",
			byRoom | byTaints,
		},
		{
			12,
			map[reason]int{cordoned: 10, memory: 2, cpu: 2},
			"0/12 nodes are available: 10 node(s) were unschedulable, 2 Insufficient cpu, 2 Insufficient memory.",
			byRoom | byTaints,
		},
	} {
		if got, needs := explain(tc.nodes, tc.reasons); got != tc.want || needs != tc.needs {
			t.Errorf("got  %q, %b\nwant %q, %b", got, needs, tc.want, tc.needs)
		}
	}
}

func TestBest(t *testing.T) {
	prefers := func(weight int32, key string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
					Weight: weight, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}}},
				}},
			}}
		}
	}
	big := func(n *corev1.Node) { n.Status.Allocatable = quantities("cpu", "8", "memory", "16Gi", "pods", "10") }
	wary := tainted("w", "", corev1.TaintEffectPreferNoSchedule)
	for _, tc := range []struct {
		name  string
		pod   func(*corev1.Pod)
		nodes []*nodeInfo
		want  string
	}{
		{"the emptier", asks("cpu", "1"), []*nodeInfo{infoOf(testNode("a", nil), testPod("x", asks("cpu", "1"))), infoOf(testNode("b", nil))}, "b"},
		{"the larger", asks("cpu", "1"), []*nodeInfo{infoOf(testNode("a", nil)), infoOf(testNode("b", big))}, "b"},
		{"pods without requests count", nil, []*nodeInfo{infoOf(testNode("a", nil), testPod("x", nil), testPod("y", nil)), infoOf(testNode("b", nil), testPod("z", nil))}, "b"},
		{"first of equals", nil, []*nodeInfo{infoOf(testNode("b", nil)), infoOf(testNode("a", nil))}, "b"},
		{"the preferred", prefers(1, "ssd"), []*nodeInfo{infoOf(testNode("a", nil)), infoOf(testNode("b", labeled("ssd", "")))}, "b"},
		{"the preferred though fuller", both2(prefers(1, "ssd"), asks("cpu", "100m")), []*nodeInfo{infoOf(testNode("a", nil)), infoOf(testNode("b", labeled("ssd", "")), testPod("x", asks("cpu", "1")))}, "b"},
		{"the sum of what is preferred", preferring(corev1.PreferredSchedulingTerm{Weight: 60, Preference: exists1("x")}, corev1.PreferredSchedulingTerm{Weight: 40, Preference: exists1("y")}, corev1.PreferredSchedulingTerm{Weight: 50, Preference: exists1("z")}), []*nodeInfo{infoOf(testNode("a", labeled("x", ""))), infoOf(testNode("b", labeled("y", "", "z", "")))}, "b"},
		{"preferred by name", preferring(corev1.PreferredSchedulingTerm{Weight: 1, Preference: fields1(corev1.NodeSelectorOpIn, "b")}), []*nodeInfo{infoOf(testNode("a", nil)), infoOf(testNode("b", nil))}, "b"},
		{"what does not parse is not preferred", preferring(corev1.PreferredSchedulingTerm{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "x", Operator: "Nonsense"}}}}), []*nodeInfo{infoOf(testNode("a", nil), testPod("x", asks("cpu", "1"))), infoOf(testNode("b", nil))}, "b"},
		{"fewer that would rather not", nil, []*nodeInfo{infoOf(testNode("a", func(n *corev1.Node) { wary(n); tainted("v", "", corev1.TaintEffectPreferNoSchedule)(n) })), infoOf(testNode("b", wary))}, "b"},
		{"not the one that would rather not", nil, []*nodeInfo{infoOf(testNode("a", wary)), infoOf(testNode("b", nil), testPod("x", asks("cpu", "1")))}, "b"},
		{"tolerated reluctance does not matter", tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists}), []*nodeInfo{infoOf(testNode("a", wary)), infoOf(testNode("b", nil), testPod("x", asks("cpu", "1")))}, "a"},
		{"no capacity told", nil, []*nodeInfo{infoOf(testNode("a", func(n *corev1.Node) { n.Status.Allocatable = quantities("pods", "5") })), infoOf(testNode("b", nil))}, "b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var fits []candidate
			for _, n := range tc.nodes {
				fits = append(fits, candidate{node: n})
			}
			if got := best(newPodInfo(testPod("p", tc.pod)), nil, fits).node.Name; got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func preferring(ts ...corev1.PreferredSchedulingTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: ts}}
	}
}

func both2(a, b func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { a(p); b(p) }
}

// TestHugeAmounts: what a pod asks for is never so much that it counts as little, nor is what a
// node says to have. 1<<63-1 is what the API reads larger numbers as.
func TestHugeAmounts(t *testing.T) {
	const last = "9223372036854775807"
	inTwo := func(kv ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: quantities(kv...)}}
			p.Spec.Containers = []corev1.Container{c, c}
		}
	}
	for name, ask := range map[string]func(*corev1.Pod){
		"cpu": asks("cpu", last), "memory in two containers": inTwo("memory", last), "others": inTwo("example.com/dongle", last),
		"cpu, by its thousandths": asks("cpu", "18446744073709551"), "as much as the largest node": asks("memory", "2Pi"),
	} {
		huge := func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectPreferNoSchedule}}
			n.Status.Allocatable = quantities("cpu", "100000000000000", "memory", "100000000000000000", "example.com/dongle", last, "pods", "10")
		}
		for i, change := range []func(*corev1.Node){nil, huge} {
			c := newCache()
			c.setNode(testNode("n", change))
			if got, why, _ := c.place(newPodInfo(testPod("p", ask))); got != "" || !strings.Contains(why, "Insufficient") {
				t.Errorf("%s on node %d: placed on %q, %s", name, i, got, why)
			}
			// Somebody has put it there, past the scheduler.
			there := testPod("p", ask)
			there.Spec.NodeName = "n"
			c.setPod(there)
			if n := c.nodes["n"]; n.requested.cpu < 0 || n.requested.memory < 0 || n.requested.other["example.com/dongle"] < 0 {
				t.Errorf("%s: asked for %+v", name, n.requested)
			}
		}
		c := newCache()
		c.setNode(testNode("n", huge))
		if got, why, _ := c.place(newPodInfo(testPod("small", nil))); got != "n" {
			t.Errorf("a node with much takes no small pod: %s", why)
		}
	}
}

func TestEnough(t *testing.T) {
	for total, want := range map[int]int{0: 0, 1: 1, 100: 100, 101: 100, 150: 100, 1000: 420, 5000: 500, 10000: 500, 6000: 300} {
		if got := enough(total); got != want {
			t.Errorf("of %d: %d, want %d", total, got, want)
		}
	}
}

func TestBackoff(t *testing.T) {
	for tries, want := range map[int]time.Duration{1: 1, 2: 2, 3: 4, 4: 8, 5: 10, 6: 10, 100: 10, 1 << 20: 10} {
		if got := backoff(tries, time.Second, 10*time.Second); got != want*time.Second {
			t.Errorf("try %d: %s, want %s", tries, got, want*time.Second)
		}
	}
}

// TestClaims: a pod with resource claims fits nowhere, and says why. On a node it counts.
func TestClaims(t *testing.T) {
	p := newPodInfo(testPod("a", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new(string)}}
		asks("cpu", "1")(p)
	}))
	if !strings.Contains(p.over, "resource claims") || p.requests.cpu != 1000 {
		t.Errorf("%q, %+v", p.over, p.requests)
	}
}
