package scheduler

// Tests of the search for pods to remove, among them a property of random clusters.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policylisters "k8s.io/client-go/listers/policy/v1"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

func ranked(priority int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Priority = &priority }
}

func mirror(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "0123"} }

func on(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

// startedAt says how many seconds after some time a pod started.
func startedAt(second int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.StartTime = ptr.To(metav1.Unix(1_000_000+second, 0)) }
}

// budgeted are budgets for pods with app=NAME, that allow as many disruptions as told.
func budgeted(t *testing.T, allowed map[string]int32) *budgets {
	t.Helper()
	store := clientcache.NewIndexer(clientcache.MetaNamespaceKeyFunc, clientcache.Indexers{clientcache.NamespaceIndex: clientcache.MetaNamespaceIndexFunc})
	for app, n := range allowed {
		err := store.Add(&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: app},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: n, DisruptedPods: map[string]metav1.Time{"counted": {}}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return newBudgets(policylisters.NewPodDisruptionBudgetLister(store))
}

func victimNames(f preemption) string {
	var out []string
	for _, v := range f.victims {
		out = append(out, v.Name)
	}
	return strings.Join(out, " ")
}

// cluster is a cache with these nodes and pods on nodes.
func clusterOf(nodes []*corev1.Node, pods ...*corev1.Pod) *cache {
	c := newCache()
	for _, n := range nodes {
		c.setNode(n)
	}
	for _, p := range pods {
		c.setPod(p)
	}
	return c
}

// TestVictims: which pods of one node have to leave, and what is told if it does not help.
func TestVictims(t *testing.T) {
	const none = "0/1 nodes are available: 1 "
	node := func(fs ...func(*corev1.Node)) *corev1.Node { return testNode("node", both(fs...)) }
	there := func(name string, fs ...func(*corev1.Pod)) *corev1.Pod {
		return testPod(name, both(append([]func(*corev1.Pod){on("node")}, fs...)...))
	}
	for _, tc := range []struct {
		name    string
		node    *corev1.Node
		pods    []*corev1.Pod
		pod     func(*corev1.Pod)
		budgets map[string]int32
		want    string // victims
		why     string
	}{
		{"the least important", node(), []*corev1.Pod{there("a", asks("cpu", "1"), ranked(5)), there("b", asks("cpu", "1"), ranked(3))}, both(asks("cpu", "1"), ranked(10)), nil, "b", ""},
		{"no mirror of a static pod", node(), []*corev1.Pod{there("a", asks("cpu", "1"), ranked(5)), there("b", asks("cpu", "1"), mirror)}, both(asks("cpu", "1"), ranked(10)), nil, "a", ""},
		{"of equals the youngest", node(), []*corev1.Pod{there("a", asks("cpu", "1"), startedAt(2)), there("b", asks("cpu", "1"), startedAt(1))}, both(asks("cpu", "1"), ranked(10)), nil, "a", ""},
		{"many", node(), []*corev1.Pod{there("a", asks("cpu", "1"), ranked(1)), there("b", asks("cpu", "1"), ranked(2)), there("idle")}, both(asks("cpu", "2"), ranked(10)), nil, "b a", ""},
		{"a budget", node(), []*corev1.Pod{there("a", asks("cpu", "1"), ranked(5)), there("b", asks("cpu", "1"), labelled("app=x"))}, both(asks("cpu", "1"), ranked(10)), map[string]int32{"x": 0}, "a", ""},
		{"a budget that allows it", node(), []*corev1.Pod{there("a", asks("cpu", "1"), ranked(5)), there("b", asks("cpu", "1"), labelled("app=x"))}, both(asks("cpu", "1"), ranked(10)), map[string]int32{"x": 1}, "b", ""},
		{"a budget that has counted it", node(), []*corev1.Pod{there("a", asks("cpu", "1"), ranked(5)), there("counted", asks("cpu", "1"), labelled("app=x"))}, both(asks("cpu", "1"), ranked(10)), map[string]int32{"x": 0}, "counted", ""},
		{"a budget is no bar", node(), []*corev1.Pod{there("a", asks("cpu", "2"), labelled("app=x"))}, both(asks("cpu", "1"), ranked(10)), map[string]int32{"x": 0}, "a", ""},
		{"a port", node(), []*corev1.Pod{there("a", port(80, "TCP", "")), there("b", port(81, "TCP", ""))}, both(port(80, "TCP", ""), ranked(1)), nil, "a", ""},
		{"the number of pods", node(func(n *corev1.Node) { n.Status.Allocatable = quantities("cpu", "1", "pods", "2") }), []*corev1.Pod{there("a", startedAt(1)), there("b", startedAt(2))}, ranked(1), nil, "b", ""},
		{"whom it does not want near", node(), []*corev1.Pod{there("a", labelled("app=a")), there("b", labelled("app=b"))}, both(antiAffinityTerms(meaning("a", corev1.LabelHostname)), ranked(1)), nil, "a", ""},
		{"who does not want it near", node(), []*corev1.Pod{there("a", antiAffinityTerms(meaning("p", corev1.LabelHostname))), there("b")}, both(labelled("app=p"), ranked(1)), nil, "a", ""},
		{"a negative priority", node(), []*corev1.Pod{there("a", asks("cpu", "2"), ranked(-1))}, asks("cpu", "1"), nil, "a", ""},
		{"its equals", node(), []*corev1.Pod{there("a", asks("cpu", "2"), ranked(10))}, both(asks("cpu", "1"), ranked(10)), nil, "", none + "No preemption victims found for incoming pod."},
		{"too little even so", node(), []*corev1.Pod{there("a", asks("cpu", "1")), there("b", asks("cpu", "1"), ranked(20))}, both(asks("cpu", "2"), ranked(10)), nil, "", none + "Insufficient cpu."},
		{"too large for the node", node(), []*corev1.Pod{there("a", asks("cpu", "1"))}, both(asks("cpu", "3"), ranked(10)), nil, "", none + "Preemption is not helpful for scheduling."},
		{"a taint", node(tainted("k", "v", corev1.TaintEffectNoSchedule)), []*corev1.Pod{there("a", asks("cpu", "2"))}, both(asks("cpu", "1"), ranked(10)), nil, "", none + "Preemption is not helpful for scheduling."},
		{"company that would leave", node(), []*corev1.Pod{there("a", asks("cpu", "2"), labelled("app=a"))}, both(asks("cpu", "1"), ranked(10), affinityTerms(meaning("a", corev1.LabelHostname))), nil, "", none + "node(s) didn't match pod affinity rules."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := clusterOf([]*corev1.Node{tc.node}, tc.pods...)
			p := newPodInfo(testPod("p", tc.pod))
			f := c.preempt(p, budgeted(t, tc.budgets))
			if got := victimNames(f); got != tc.want || f.why != tc.why || (f.node != "") != (tc.want != "") {
				t.Errorf("victims %q on %q, %q; want %q, %q", got, f.node, f.why, tc.want, tc.why)
			}
			if got := c.nominationOf(keyOf(p.pod)); got != f.node {
				t.Errorf("nominated %q, found %q", got, f.node)
			}
		})
	}
}

// TestChoosesNode: the order in which nodes are preferred.
func TestChoosesNode(t *testing.T) {
	half := asks("cpu", "1")
	for _, tc := range []struct {
		name       string
		good, poor []func(*corev1.Pod) // the pods on either
	}{
		{"fewest violations", []func(*corev1.Pod){both(asks("cpu", "2"), ranked(9))}, []func(*corev1.Pod){both(asks("cpu", "2"), labelled("app=x"))}},
		{"lowest highest priority", []func(*corev1.Pod){both(half, ranked(4)), both(half, ranked(4))}, []func(*corev1.Pod){both(half, ranked(5)), half}},
		{"smallest sum", []func(*corev1.Pod){both(half, ranked(4)), both(half, ranked(1))}, []func(*corev1.Pod){both(half, ranked(4)), both(half, ranked(2))}},
		{"fewest", []func(*corev1.Pod){both(asks("cpu", "2"), ranked(-3))}, []func(*corev1.Pod){both(half, ranked(-3)), both(half, ranked(-3))}},
		{"latest start", []func(*corev1.Pod){both(asks("cpu", "2"), startedAt(9))}, []func(*corev1.Pod){both(asks("cpu", "2"), startedAt(8))}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range 20 { // wherever it begins
				c := clusterOf([]*corev1.Node{testNode("poor", nil), testNode("good", nil)})
				for node, pods := range map[string][]func(*corev1.Pod){"good": tc.good, "poor": tc.poor} {
					for i, f := range pods {
						c.setPod(testPod(fmt.Sprint(node, i), both(on(node), f)))
					}
				}
				f := c.preempt(newPodInfo(testPod("p", both(asks("cpu", "2"), ranked(10)))), budgeted(t, map[string]int32{"x": 0}))
				if f.node != "good" {
					t.Fatalf("chose %q, %q", f.node, f.why)
				}
			}
		})
	}
}

// TestClaimedStart: a node says when its pods started. It is not believed that one started before
// it was made or is still to start.
func TestClaimedStart(t *testing.T) {
	made := func(second int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(1_000_000+second, 0) }
	}
	whole, p := asks("cpu", "2"), newPodInfo(testPod("p", both(asks("cpu", "2"), ranked(10))))
	for range 20 { // wherever it begins
		c := clusterOf([]*corev1.Node{testNode("liar", nil), testNode("honest", nil)},
			testPod("young", both(whole, on("liar"), made(100), startedAt(-1_000_000))), testPod("old", both(whole, on("honest"), made(0), startedAt(1))))
		if f := c.preempt(p, budgeted(t, nil)); f.node != "liar" {
			t.Fatalf("chose %q, %q", f.node, f.why)
		}
	}
	s := &search{now: time.Unix(2_000_000, 0)}
	for _, tc := range []struct{ made, started, want int64 }{{0, 5, 5}, {10, 5, 10}, {0, 1_000_001, 1_000_000}, {1_000_002, 5, 1_000_000}} {
		if got := s.started(newPodInfo(testPod("p", both(made(tc.made), startedAt(tc.started))))); got.Unix() != 1_000_000+tc.want {
			t.Errorf("made at %d, says %d: %d, want %d", tc.made, tc.started, got.Unix()-1_000_000, tc.want)
		}
	}
}

// TestNominations: who has been promised a node, and against whom that counts.
func TestNominations(t *testing.T) {
	c := clusterOf([]*corev1.Node{testNode("node", nil)}, testPod("low", both(on("node"), asks("cpu", "2"))))
	b := budgeted(t, nil)
	first := newPodInfo(testPod("first", both(asks("cpu", "2"), ranked(10))))
	if f := c.preempt(first, b); victimNames(f) != "low" {
		t.Fatalf("%+v", f)
	}
	if f := c.preempt(first, b); f.why != waits {
		t.Errorf("it does not wait: %+v", f)
	}
	c.removePod(keyOf(testPod("low", nil)))
	for _, other := range []int32{-1, 0, 10} {
		if node, why, _ := c.place(newPodInfo(testPod("other", both(asks("cpu", "1"), ranked(other))))); node != "" || why != "0/1 nodes are available: 1 Insufficient cpu." {
			t.Errorf("priority %d: placed on %q, %q", other, node, why)
		}
	}
	high := newPodInfo(testPod("high", both(asks("cpu", "1"), ranked(11))))
	if node, _, _ := c.place(high); node != "node" {
		t.Error("the nomination holds one of higher priority")
	}
	c.removePod(keyOf(high.pod))
	if node, _, _ := c.place(first); node != "node" || len(c.nominated)+len(c.claims) != 0 {
		t.Errorf("placed on %q; nominations left: %v", node, c.nominated)
	}

	// A higher one takes the node from those that end and from whom it was promised to.
	second := newPodInfo(testPod("second", both(asks("cpu", "2"), ranked(20))))
	if f := c.preempt(second, b); victimNames(f) != "first" {
		t.Fatalf("%+v", f)
	}
	third := newPodInfo(testPod("third", both(asks("cpu", "2"), ranked(30))))
	if f := c.preempt(third, b); victimNames(f) != "first" || !slices.Equal(f.outranks, []types.NamespacedName{second.name()}) {
		t.Errorf("%+v", f)
	}
	if got := c.nominationOf(keyOf(second.pod)); got != "" {
		t.Errorf("the second is still promised %s", got)
	}
	if f := c.preempt(second, b); f.node != "" || f.why != "0/1 nodes are available: 1 Insufficient cpu." {
		t.Errorf("the second found %+v", f)
	}
	if got := c.removeNode("node"); !slices.Equal(got, []types.NamespacedName{third.name()}) || len(c.nominated)+len(c.claims) != 0 {
		t.Errorf("the node is gone, and %v were nominated, %v are", got, c.nominated)
	}
}

// TestPending: what the API says of nominations counts unless something newer is known.
func TestPending(t *testing.T) {
	c := clusterOf([]*corev1.Node{testNode("node", nil)}, testPod("low", both(on("node"), asks("cpu", "2"))))
	says := func(node string) *corev1.Pod {
		p := testPod("p", both(asks("cpu", "2"), ranked(10)))
		p.Status.NominatedNodeName = node
		return p
	}
	is := func(step, want string) {
		t.Helper()
		if got := c.nominationOf(keyOf(says(""))); got != want {
			t.Errorf("%s: nominated %q, want %q", step, got, want)
		}
	}
	c.pending(nil, says(""))
	is("new", "")
	c.preempt(newPodInfo(says("")), budgeted(t, nil))
	is("found", "node")
	c.pending(says(""), says(""))
	is("the API has not heard", "node")
	c.pending(says(""), says("node"))
	is("the API has heard", "node")
	if f := c.preempt(newPodInfo(says("node")), budgeted(t, nil)); f.why != waits {
		t.Errorf("it no longer waits: %+v", f)
	}
	c.pending(says("node"), says(""))
	is("somebody cleared it", "")
	c.pending(nil, says("other"))
	is("known from before", "other")
	c.endNomination(keyOf(says("")))
	c.pending(says("other"), says("other"))
	is("ended, and the API has not heard", "")
}

// TestPreemptedByAnother: pods that a scheduler before this one removed are waited for, but
// not on a node that has become impossible.
func TestPreemptedByAnother(t *testing.T) {
	leaving := testPod("low", both(on("node"), asks("cpu", "2"), func(p *corev1.Pod) {
		p.DeletionTimestamp = ptr.To(metav1.Now())
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}
	}))
	c := clusterOf([]*corev1.Node{testNode("node", nil), testNode("other", nil)}, leaving, testPod("low2", both(on("other"), asks("cpu", "2"))))
	p := testPod("p", both(asks("cpu", "2"), ranked(10), func(p *corev1.Pod) { p.Status.NominatedNodeName = "node" }))
	c.pending(nil, p)
	if f := c.preempt(newPodInfo(p), budgeted(t, nil)); f.why != waits {
		t.Errorf("%+v", f)
	}
	c.setNode(testNode("node", tainted("node.kubernetes.io/unreachable", "", corev1.TaintEffectNoSchedule)))
	if f := c.preempt(newPodInfo(p), budgeted(t, nil)); victimNames(f) != "low2" {
		t.Errorf("%+v", f)
	}
}

// TestSearchesTakeTurns: namespaces have an equal share of the searches, whatever one of
// them asks for, and what a namespace has waiting is bounded.
func TestSearchesTakeTurns(t *testing.T) {
	s := newSearches()
	add := func(ns, name string, priority int32) string {
		out, full := s.add(binding{pod: newPodInfo(testPod(name, both(inNamespace(ns), ranked(priority))))})
		if !full {
			return ""
		}
		return out.pod.pod.Name
	}
	for i := range maxSearches {
		if out := add("flood", fmt.Sprint("f", i), 10); out != "" {
			t.Fatalf("%s is left out", out)
		}
	}
	for _, tc := range []struct {
		name     string
		priority int32
		out      string
	}{{"late", 10, "late"}, {"f3", 10, ""}, {"more", 11, fmt.Sprint("f", maxSearches-1)}, {"less", 9, "less"}} {
		if out := add("flood", tc.name, tc.priority); out != tc.out {
			t.Errorf("%s comes and %q is left out, want %q", tc.name, out, tc.out)
		}
	}
	add("quiet", "q0", -5)
	add("quiet", "q1", -5)
	var got []string
	for range 6 {
		b, _ := s.poll()
		got = append(got, b.pod.pod.Name)
	}
	if want := []string{"more", "q0", "f0", "q1", "f1", "f2"}; !slices.Equal(got, want) {
		t.Errorf("searched for %v, want %v", got, want)
	}
	for left := maxSearches - 4; left > 0; left-- {
		if _, ok := s.poll(); !ok {
			t.Fatalf("%d are missing", left)
		}
	}
	if _, ok := s.poll(); ok || len(s.of)+len(s.turns) != 0 {
		t.Errorf("left over: %v %v", s.of, s.turns)
	}
}

// TestSearchIsBounded: a search that costs too much ends and says so.
func TestSearchIsBounded(t *testing.T) {
	c := newCache()
	var terms []corev1.PodAffinityTerm
	for range maxTerms {
		terms = append(terms, meaning("a", corev1.LabelHostname))
	}
	for i := range 50 {
		node := fmt.Sprint("node-", i)
		c.setNode(testNode(node, func(n *corev1.Node) { n.Status.Allocatable = quantities("cpu", "100", "pods", "101") }))
		for j := range 100 {
			c.setPod(testPod(fmt.Sprint(node, "-", j), both(on(node), asks("cpu", "1"), labelled("app=a"))))
		}
		c.setPod(testPod(fmt.Sprint(node, "-high"), both(on(node), labelled("app=a"), ranked(20))))
	}
	f := c.preempt(newPodInfo(testPod("p", both(asks("cpu", "1"), ranked(10), antiAffinityTerms(terms...)))), budgeted(t, nil))
	if f.node != "" || !strings.Contains(f.why, notLooked) {
		t.Errorf("%+v", f)
	}
}

// TestVictimsSuffice makes random small clusters. The victims, when they have gone, let the
// pod fit where it was nominated; none of them is superfluous; and the search leaves the
// account of the cache as it was.
func TestVictimsSuffice(t *testing.T) {
	found := 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 1))
		c, pods := randomCluster(r)
		allowed := map[string]int32{"a": int32(r.IntN(2)), "b": int32(r.IntN(3))}
		p := newPodInfo(testPod("p", randomPod(r, int32(5+r.IntN(6)))))
		if node, _, _ := c.place(p); node != "" {
			continue
		}
		before := accounts(c)
		f := c.preempt(p, budgeted(t, allowed))
		if after := accounts(c); after != before {
			t.Fatalf("seed %d: the search changed the account: %s, was %s", seed, after, before)
		}
		if f.room {
			t.Fatalf("seed %d: the pod fits nowhere and there is room", seed)
		}
		if f.node == "" {
			continue
		}
		found++
		fits := func(without []*corev1.Pod) bool {
			c := clusterOf(nodesOf(c))
			for _, q := range pods {
				if !slices.ContainsFunc(without, func(v *corev1.Pod) bool { return v.UID == q.UID }) {
					c.setPod(q)
				}
			}
			n := c.nodes[f.node]
			return c.takesLocked(p, n, c.companyLocked(p), nil, map[reason]int{})
		}
		if !fits(f.victims) {
			t.Fatalf("seed %d: without %q it still does not fit on %s", seed, victimNames(f), f.node)
		}
		for i, v := range f.victims {
			if newPodInfo(v).priority() >= p.priority() || v.Spec.NodeName != f.node {
				t.Errorf("seed %d: victim %s has priority %d and is on %s", seed, v.Name, newPodInfo(v).priority(), v.Spec.NodeName)
			}
			if fits(slices.Delete(slices.Clone(f.victims), i, i+1)) {
				t.Errorf("seed %d: %s need not go", seed, v.Name)
			}
		}
	}
	if found < 500 {
		t.Errorf("%d of the clusters had victims: too few to tell", found)
	}
}

func nodesOf(c *cache) (out []*corev1.Node) {
	for _, n := range c.order {
		out = append(out, n.node)
	}
	return out
}

// accounts is what is counted on each node.
func accounts(c *cache) string {
	var out []string
	for _, n := range c.order {
		out = append(out, fmt.Sprint(n.node.Name, n.requested.cpu, n.requested.memory, len(n.pods)))
	}
	return strings.Join(out, ";")
}

func randomCluster(r *rand.Rand) (*cache, []*corev1.Pod) {
	c := newCache()
	var pods []*corev1.Pod
	for i := range 1 + r.IntN(4) {
		node := fmt.Sprint("node-", i)
		c.setNode(testNode(node, func(n *corev1.Node) {
			n.Labels["zone"] = fmt.Sprint("z", r.IntN(2))
			if r.IntN(8) == 0 {
				tainted("k", "v", corev1.TaintEffectNoSchedule)(n)
			}
		}))
		for j := range r.IntN(5) {
			p := testPod(fmt.Sprint(node, "-", j), both(on(node), randomPod(r, int32(r.IntN(10))), startedAt(int64(r.IntN(5)))))
			pods = append(pods, p)
			c.setPod(p)
		}
	}
	return c, pods
}

// randomPod asks for some of what there is to ask for.
func randomPod(r *rand.Rand, priority int32) func(*corev1.Pod) {
	app := func() string { return string("ab"[r.IntN(2)]) }
	key := []string{corev1.LabelHostname, "zone"}[r.IntN(2)]
	fs := []func(*corev1.Pod){ranked(priority), labelled("app=" + app()), asks("cpu", fmt.Sprint(100*r.IntN(15), "m"), "memory", fmt.Sprint(r.IntN(3), "Gi"))}
	switch r.IntN(8) {
	case 0:
		fs = append(fs, antiAffinityTerms(meaning(app(), key)))
	case 1:
		fs = append(fs, affinityTerms(meaning(app(), key)))
	case 2:
		fs = append(fs, evenly(key, true))
	case 3:
		fs = append(fs, port(int32(80+r.IntN(2)), "TCP", ""))
	case 4:
		fs = append(fs, wishing(5, meaning(app(), key)))
	}
	return both(fs...)
}
