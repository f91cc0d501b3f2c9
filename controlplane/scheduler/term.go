package scheduler

// Affinity and anti-affinity terms, required and preferred, of pods for other pods.

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// A term says which pods are meant, and what is the same place: nodes with the same value
// of the label key.
type term struct {
	namespaces map[string]bool
	among      labels.Selector // namespaces by their labels; nil for none
	selector   labels.Selector
	key        string
	weight     int64 // of a preferred term; negative for anti-affinity
}

// matches tells whether a term means pod, whose namespace has these labels.
func (t *term) matches(pod *corev1.Pod, namespace labels.Set) bool {
	return (t.namespaces[pod.Namespace] || t.among != nil && t.among.Matches(namespace)) && t.selector.Matches(labels.Set(pod.Labels))
}

// maxTerms is how many terms, and how many spread constraints, of a pod count. Each is
// compared with each pod, for this pod and for those that come after it.
const maxTerms = 100

// Bounds of what else a pod may ask for. All of it is compared with each node or each pod. A pod
// of 1 MiB can name a hundred thousand values, with which one decision would take seconds.
const (
	maxAsked    = 1000     // tolerations, labels of the node, ports of the host and resources in all
	maxAffinity = 64 << 10 // bytes of the affinity and the spread, as they are encoded
)

// asksTooMuch is found out without reading the affinity.
func (p *podInfo) asksTooMuch() bool {
	spec := &p.pod.Spec
	bytes := spec.Affinity.Size()
	for i := range spec.TopologySpreadConstraints {
		bytes += spec.TopologySpreadConstraints[i].Size()
	}
	return len(spec.Tolerations)+len(spec.NodeSelector)+len(p.ports)/2+len(p.demands) > maxAsked || bytes > maxAffinity
}

// podTerms are the terms of one pod.
type podTerms struct {
	affinityTerms, antiAffinityTerms []term // required ones
	preferredPodTerms                []term
	over                             bool // it has more than maxTerms of a kind
}

func (t *podTerms) empty() bool {
	return len(t.affinityTerms)+len(t.antiAffinityTerms)+len(t.preferredPodTerms) == 0
}

// podTermsOf returns the terms of pod.
func podTermsOf(pod *corev1.Pod) podTerms {
	var t podTerms
	a := pod.Spec.Affinity
	if a == nil {
		return t
	}
	if p := a.PodAffinity; p != nil {
		t.affinityTerms = requiredTerms(pod, p.RequiredDuringSchedulingIgnoredDuringExecution)
		t.preferredPodTerms = preferredTerms(pod, p.PreferredDuringSchedulingIgnoredDuringExecution, 1)
	}
	if p := a.PodAntiAffinity; p != nil {
		t.antiAffinityTerms = requiredTerms(pod, p.RequiredDuringSchedulingIgnoredDuringExecution)
		t.preferredPodTerms = append(t.preferredPodTerms, preferredTerms(pod, p.PreferredDuringSchedulingIgnoredDuringExecution, -1)...)
	}
	for _, list := range []*[]term{&t.affinityTerms, &t.antiAffinityTerms, &t.preferredPodTerms} {
		if len(*list) > maxTerms {
			*list, t.over = (*list)[:maxTerms], true
		}
	}
	return t
}

func requiredTerms(pod *corev1.Pod, list []corev1.PodAffinityTerm) []term {
	out := make([]term, len(list))
	for i := range list {
		out[i] = newTerm(pod, &list[i], 0)
	}
	return out
}

func preferredTerms(pod *corev1.Pod, list []corev1.WeightedPodAffinityTerm, sign int64) []term {
	out := make([]term, len(list))
	for i := range list {
		out[i] = newTerm(pod, &list[i].PodAffinityTerm, sign*int64(list[i].Weight))
	}
	return out
}

func newTerm(pod *corev1.Pod, a *corev1.PodAffinityTerm, weight int64) term {
	t := term{key: a.TopologyKey, weight: weight, namespaces: make(map[string]bool, 1)}
	for _, ns := range a.Namespaces {
		t.namespaces[ns] = true
	}
	if a.NamespaceSelector != nil {
		t.among = selecting(a.NamespaceSelector)
	} else if len(a.Namespaces) == 0 {
		t.namespaces[pod.Namespace] = true
	}
	t.selector = byKeys(selecting(a.LabelSelector), pod, selection.In, a.MatchLabelKeys)
	t.selector = byKeys(t.selector, pod, selection.NotIn, a.MismatchLabelKeys)
	return t
}

// selecting returns what s selects. One that does not parse, which validation has refused,
// selects nothing, as none does.
func selecting(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// byKeys narrows s by pod's own values of labels. (KEP-3243, KEP-3633.)
func byKeys(s labels.Selector, pod *corev1.Pod, op selection.Operator, keys []string) labels.Selector {
	for _, key := range keys {
		v, ok := pod.Labels[key]
		if !ok {
			continue
		}
		if r, err := labels.NewRequirement(key, op, []string{v}); err == nil {
			s = s.Add(*r)
		}
	}
	return s
}

// A spread says that pods are spread evenly over the values of a node label.
type spread struct {
	key      string
	selector labels.Selector
	most     int  // how many more a value may have than the one that has fewest
	least    int  // how many values there must be, or those that there are not have none
	hard     bool // or it is only for choosing
	self     int  // 1 if the pod counts among those that are selected
	// honor says which nodes count: those that the pod's affinity matches, and those
	// whose taints it tolerates.
	honorAffinity, honorTaints bool
}

// spreadsOf returns how pod wants to be spread.
func spreadsOf(pod *corev1.Pod) []spread {
	var out []spread
	for i := range pod.Spec.TopologySpreadConstraints[:min(len(pod.Spec.TopologySpreadConstraints), maxTerms)] {
		c := &pod.Spec.TopologySpreadConstraints[i]
		s := spread{
			key: c.TopologyKey, selector: byKeys(selecting(c.LabelSelector), pod, selection.In, c.MatchLabelKeys),
			most: int(c.MaxSkew), hard: c.WhenUnsatisfiable == corev1.DoNotSchedule,
			honorAffinity: c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
			honorTaints:   c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
		}
		if c.MinDomains != nil {
			s.least = int(*c.MinDomains)
		}
		if s.selector.Matches(labels.Set(pod.Labels)) {
			s.self = 1
		}
		out = append(out, s)
	}
	return out
}
