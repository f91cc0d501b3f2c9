package scheduler

// Tests of pods that are placed by the pods around them.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// inZone puts a node into a zone.
func inZone(zone string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels["zone"] = zone }
}

func labelled(kv string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		set, err := labels.ConvertSelectorToLabelsMap(kv)
		if err != nil {
			panic(err) // the test is wrong
		}
		p.Labels = set
	}
}

// meaning is a term about pods with app=name in the pod's namespace.
func meaning(app, key string) corev1.PodAffinityTerm {
	return corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}
}

func affinityOf(p *corev1.Pod) *corev1.Affinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, PodAntiAffinity: &corev1.PodAntiAffinity{}}
	}
	return p.Spec.Affinity
}

func affinityTerms(ts ...corev1.PodAffinityTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		affinityOf(p).PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = ts
	}
}

func antiAffinityTerms(ts ...corev1.PodAffinityTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		affinityOf(p).PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = ts
	}
}

func wishing(weight int32, t corev1.PodAffinityTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		w := []corev1.WeightedPodAffinityTerm{{Weight: max(weight, -weight), PodAffinityTerm: t}}
		if weight < 0 {
			affinityOf(p).PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = w
		} else {
			affinityOf(p).PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = w
		}
	}
}

// evenly adds a spread over the values of key, changed by edits.
func evenly(key string, hard bool, edits ...func(*corev1.TopologySpreadConstraint)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := corev1.TopologySpreadConstraint{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
		}
		if hard {
			c.WhenUnsatisfiable = corev1.DoNotSchedule
		}
		for _, e := range edits {
			e(&c)
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, c)
	}
}

func inNamespace(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Namespace = name } }

func both[T any](fs ...func(T)) func(T) {
	return func(v T) {
		for _, f := range fs {
			f(v)
		}
	}
}

// newTopology is nodes a1, a2 in zone a, b1 in zone b and c in none, with pods on them as told:
// NODE to what changes the pod.
func newTopology(t *testing.T, on ...any) *cache {
	t.Helper()
	c := newCache()
	c.namespaceLabels = func(ns string) labels.Set { return labels.Set{"team": strings.TrimPrefix(ns, "of-")} }
	for name, f := range map[string]func(*corev1.Node){"a1": inZone("a"), "a2": inZone("a"), "b1": inZone("b"), "c": nil} {
		c.setNode(testNode(name, f))
	}
	for i := 0; i < len(on); i += 2 {
		f, _ := on[i+1].(func(*corev1.Pod))
		p := testPod(fmt.Sprint("there-", i), f)
		p.Spec.NodeName, _ = on[i].(string)
		c.setPod(p)
	}
	return c
}

// TestCompany: where a pod may be, by the pods around.
func TestCompany(t *testing.T) {
	const host, zone = corev1.LabelHostname, "zone"
	a, b := labelled("app=a"), labelled("app=b")
	elsewhere := func(t corev1.PodAffinityTerm, names []string, s *metav1.LabelSelector) corev1.PodAffinityTerm {
		t.Namespaces, t.NamespaceSelector = names, s
		return t
	}
	everywhere := &metav1.LabelSelector{}
	keys := func(t corev1.PodAffinityTerm, match, mismatch []string) corev1.PodAffinityTerm {
		t.MatchLabelKeys, t.MismatchLabelKeys = match, mismatch
		return t
	}
	for name, tc := range map[string]struct {
		there []any
		pod   func(*corev1.Pod)
		want  string // the nodes where it may be, or why it may be nowhere
	}{
		"nothing asked":             {[]any{"a1", a}, b, "a1 a2 b1 c"},
		"near its zone":             {[]any{"a1", a}, affinityTerms(meaning("a", zone)), "a1 a2"},
		"near its host":             {[]any{"a1", a}, affinityTerms(meaning("a", host)), "a1"},
		"near nobody":               {[]any{"a1", a}, affinityTerms(meaning("b", zone)), "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."},
		"near its own kind, first":  {nil, both(b, affinityTerms(meaning("b", zone))), "a1 a2 b1"},
		"near its own kind, second": {[]any{"b1", b}, both(b, affinityTerms(meaning("b", zone))), "b1"},
		"near two at once":          {[]any{"a1", a, "b1", b, "a2", labelled("app=a,x=y")}, affinityTerms(meaning("a", host), corev1.PodAffinityTerm{TopologyKey: zone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"x": "y"}}}), "a2"},
		"near another namespace's":  {[]any{"a1", both(a, inNamespace("of-x"))}, affinityTerms(meaning("a", host)), "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."},
		"of a named namespace":      {[]any{"a1", both(a, inNamespace("of-x"))}, affinityTerms(elsewhere(meaning("a", host), []string{"of-x"}, nil)), "a1"},
		"of all namespaces":         {[]any{"a1", both(a, inNamespace("of-x"))}, affinityTerms(elsewhere(meaning("a", host), nil, everywhere)), "a1"},
		"of labelled namespaces":    {[]any{"a1", both(a, inNamespace("of-x")), "b1", both(a, inNamespace("of-y"))}, affinityTerms(elsewhere(meaning("a", host), nil, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "y"}})), "b1"},
		"of its own version":        {[]any{"a1", labelled("app=a,v=1"), "b1", labelled("app=a,v=2")}, both(labelled("v=2"), affinityTerms(keys(meaning("a", host), []string{"v"}, nil))), "b1"},
		"not of its own tenant":     {[]any{"a1", labelled("app=a,v=1"), "b1", labelled("app=a,v=2")}, both(labelled("v=2"), antiAffinityTerms(keys(meaning("a", host), nil, []string{"v"}))), "a2 b1 c"},
		"not in the zone":           {[]any{"a1", a}, antiAffinityTerms(meaning("a", zone)), "b1 c"},
		"not by the host":           {[]any{"a1", a}, antiAffinityTerms(meaning("a", host)), "a2 b1 c"},
		"not wanted":                {[]any{"a1", both(b, antiAffinityTerms(meaning("a", zone)))}, a, "b1 c"},
		"not wanted anywhere": {
			[]any{"a1", antiAffinityTerms(meaning("a", zone)), "b1", antiAffinityTerms(meaning("a", zone)), "c", antiAffinityTerms(meaning("a", host))},
			a,
			"0/4 nodes are available: 4 node(s) didn't satisfy existing pods anti-affinity rules.",
		},
		"not wanted by another namespace's": {[]any{"a1", both(inNamespace("of-x"), antiAffinityTerms(meaning("a", zone)))}, a, "a1 a2 b1 c"},
		"spread, first":                     {nil, both(a, evenly(zone, true)), "a1 a2 b1"},
		"spread, second":                    {[]any{"a1", a}, both(a, evenly(zone, true)), "b1"},
		"spread, others do not count":       {[]any{"a1", b, "a1", both(a, inNamespace("of-x"))}, both(a, evenly(zone, true)), "a1 a2 b1"},
		"spread, itself not counted":        {[]any{"a1", a}, both(b, evenly(zone, true)), "a1 a2 b1"},
		"spread over hosts":                 {[]any{"a1", a, "a2", a, "c", a}, both(a, evenly(host, true)), "b1"},
		"spread over both":                  {[]any{"a1", a, "b1", a}, both(a, evenly(host, true), evenly(zone, true)), "a2"},
		"spread over too few zones":         {[]any{"a1", a, "b1", a}, both(a, evenly(zone, true, func(c *corev1.TopologySpreadConstraint) { c.MinDomains = ptr.To[int32](3) })), "0/4 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label), 3 node(s) didn't match pod topology spread constraints."},
		"spread by version":                 {[]any{"a1", labelled("app=a,v=1")}, both(labelled("app=a,v=2"), evenly(zone, true, func(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = []string{"v"} })), "a1 a2 b1"},
		"spread over where it may be":       {[]any{"a1", a}, both(a, evenly(zone, true), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "a"} }), "a1 a2"},
		"spread over all": {[]any{"a1", a}, both(a, evenly(zone, true, func(c *corev1.TopologySpreadConstraint) {
			c.NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
		}), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "a"} }), "0/4 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, 2 node(s) didn't match pod topology spread constraints."},
		"spread, rather": {[]any{"a1", a}, both(a, evenly(zone, false)), "a1 a2 b1 c"},
	} {
		t.Run(name, func(t *testing.T) {
			var may []string
			for _, node := range []string{"a1", "a2", "b1", "c"} {
				c := newTopology(t, tc.there...)
				p := newPodInfo(testPod("p", tc.pod))
				p.only = node
				if got, _, _ := c.place(p); got != "" {
					may = append(may, got)
				}
			}
			c := newTopology(t, tc.there...)
			got, why, _ := c.place(newPodInfo(testPod("p", tc.pod)))
			if all := strings.Join(may, " "); all != tc.want && why != tc.want || got != "" && !strings.Contains(" "+all+" ", " "+got+" ") {
				t.Errorf("it may be on %q and is on %q (%s), want %s", all, got, why, tc.want)
			}
		})
	}
}

// TestManyTerms: a pod with more terms than are looked at is not placed and told why; one
// that is on a node all the same costs others no more than the terms that count.
func TestManyTerms(t *testing.T) {
	const host = corev1.LabelHostname
	for name, change := range map[string]func(*corev1.Pod){
		"near": affinityTerms(slices.Repeat([]corev1.PodAffinityTerm{meaning("a", host)}, maxTerms+1)...),
		"far":  antiAffinityTerms(slices.Repeat([]corev1.PodAffinityTerm{meaning("a", host)}, maxTerms+1)...),
		"spread": func(p *corev1.Pod) {
			evenly(host, true)(p)
			p.Spec.TopologySpreadConstraints = slices.Repeat(p.Spec.TopologySpreadConstraints, maxTerms+1)
		},
	} {
		c := newTopology(t)
		p := newPodInfo(testPod("p", change))
		if node, why, _ := c.place(p); node != "" || !strings.Contains(why, "more than 100") {
			t.Errorf("%s: on %q: %s", name, node, why)
		}
		if n := max(len(p.podTerms.affinityTerms), len(p.podTerms.antiAffinityTerms), len(p.spreads)); n != maxTerms {
			t.Errorf("%s: %d terms count", name, n)
		}
	}
}

// TestMuchAsked: a pod that asks for more than is compared with nodes and pods is not placed
// and told why, and one that asks for less is; one that is on a node all the same costs others
// no more than what counts.
func TestMuchAsked(t *testing.T) {
	many := func(n int) []string { return slices.Repeat([]string{"0123456789012345678901234567890123456789"}, n) }
	values := func(n int) corev1.PodAffinityTerm {
		term := meaning("a", corev1.LabelHostname)
		term.LabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: many(n)}}
		return term
	}
	for name, change := range map[string]func(int) func(*corev1.Pod){
		"tolerations": func(n int) func(*corev1.Pod) { return tolerating(make([]corev1.Toleration, n)...) },
		"ports": func(n int) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				for i := range n {
					port(int32(i+1), corev1.ProtocolTCP, "")(p)
				}
			}
		},
		"node affinity": func(n int) func(*corev1.Pod) { return required("zone", corev1.NodeSelectorOpNotIn, many(n)...) },
		"far":           func(n int) func(*corev1.Pod) { return antiAffinityTerms(values(n)) },
		"wishes":        func(n int) func(*corev1.Pod) { return wishing(1, values(n)) },
		"namespaces": func(n int) func(*corev1.Pod) {
			term := meaning("a", corev1.LabelHostname)
			term.Namespaces = many(n)
			return antiAffinityTerms(term)
		},
		"spread": func(n int) func(*corev1.Pod) {
			return evenly(corev1.LabelHostname, true, func(c *corev1.TopologySpreadConstraint) { c.LabelSelector = values(n).LabelSelector })
		},
	} {
		c := newTopology(t)
		if node, why, _ := c.place(newPodInfo(testPod("few", change(maxAsked)))); node == "" {
			t.Errorf("%s: a pod that asks for half as much: %s", name, why)
		}
		p := newPodInfo(testPod("p", change(3*maxAsked)))
		if node, why, _ := c.place(p); node != "" || !strings.Contains(why, "more than 1000 tolerations") {
			t.Errorf("%s: on %q: %s", name, node, why)
		}
		terms := len(p.podTerms.antiAffinityTerms) + len(p.podTerms.preferredPodTerms)
		if n := len(p.ports); n > 2*maxAsked+2 || terms > 0 {
			t.Errorf("%s: %d ports and %d terms count", name, n, terms)
		}
	}
}

// TestPreferredAffinity: of nodes where a pod may be, the one with the highest affinity score gets it.
func TestPreferredAffinity(t *testing.T) {
	const host, zone = corev1.LabelHostname, "zone"
	a := labelled("app=a")
	for name, tc := range map[string]struct {
		there []any
		pod   func(*corev1.Pod)
		want  string // any of these nodes
	}{
		"near":            {[]any{"b1", a}, wishing(1, meaning("a", host)), "b1"},
		"far":             {[]any{"a1", a, "b1", a}, wishing(-1, meaning("a", zone)), "c"},
		"liked by others": {[]any{"b1", wishing(1, meaning("a", host))}, a, "b1"},
		"shunned":         {[]any{"a1", wishing(-1, meaning("a", zone)), "c", wishing(-1, meaning("a", host))}, a, "b1"},
		"followed":        {[]any{"b1", both(a, affinityTerms(meaning("a", host)))}, a, "b1"},
		"even":            {[]any{"a1", a, "a2", a, "b1", a}, both(a, evenly(zone, false)), "b1"},
		"labels missing":  {[]any{"a1", a, "a2", a}, both(a, evenly(zone, false)), "b1"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 { // nodes are in no order
				c := newTopology(t, tc.there...)
				if got, why, _ := c.place(newPodInfo(testPod("p", tc.pod))); got != tc.want {
					t.Fatalf("on %q (%s), want %s", got, why, tc.want)
				}
			}
		})
	}
}

// TestAffinityWakes: a pod that waits for one that its affinity terms match is tried when that is bound, and one that
// waits for room apart when somebody goes.
func TestAffinityWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil, testNode("node-1", nil))
		defer b.stop()
		b.create(testPod("waits", affinityTerms(meaning("a", corev1.LabelHostname))))
		after(5 * time.Second)
		b.isOn("waits", "")
		b.create(testPod("a", both(labelled("app=a"), antiAffinityTerms(meaning("a", corev1.LabelHostname)))))
		after(5 * time.Second) // sooner than everybody is looked at again
		b.isOn("a", "node-1")
		b.isOn("waits", "node-1")
		b.create(testPod("b", labelled("app=a")))
		after(5 * time.Second)
		b.isOn("b", "")
		if err := b.client.CoreV1().Pods("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(12 * time.Second)
		b.isOn("b", "node-1")
	})
}
