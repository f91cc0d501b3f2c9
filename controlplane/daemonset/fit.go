package daemonset

// Which nodes a DaemonSet is for, and the pod that it has there.

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/controlplane/children"
)

// templateGeneration is a label that pods had before there were revisions, and that
// Kubernetes still puts there.
const templateGeneration = "pod-template-generation"

// An answer is whether a node shall get a pod, and whether one that is there may stay.
type answer struct{ should, stays bool }

// A fit says which nodes a DaemonSet is for.
type fit struct {
	name        string // of the only node; empty means any
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
}

func fitOf(ds *appsv1.DaemonSet) *fit {
	spec := &ds.Spec.Template.Spec
	return &fit{
		name: spec.NodeName, affinity: nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}),
		tolerations: tolerations(spec),
	}
}

// of says what holds for a node, which may be nil for none.
func (f *fit) of(n *corev1.Node) answer {
	if n == nil || f.name != "" && f.name != n.Name {
		return answer{}
	}
	if ok, err := f.affinity.Match(n); err != nil || !ok {
		return answer{}
	}
	a := answer{true, true}
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule || corev1helpers.TolerationsTolerateTaint(klog.Logger{}, f.tolerations, t, true) {
			continue
		}
		a.should = false
		if t.Effect == corev1.TaintEffectNoExecute {
			a.stays = false
		}
	}
	return a
}

// tolerations are those of the template and those that every daemon has.
func tolerations(spec *corev1.PodSpec) []corev1.Toleration {
	out := slices.Clone(spec.Tolerations)
	add := func(effect corev1.TaintEffect, keys ...string) {
		for _, key := range keys {
			t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
			there := false
			for i := range out {
				if out[i].MatchToleration(&t) {
					out[i], there = t, true // without end
				}
			}
			if !there {
				out = append(out, t)
			}
		}
	}
	add(corev1.TaintEffectNoExecute, corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable)
	add(corev1.TaintEffectNoSchedule, corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable)
	if spec.HostNetwork {
		add(corev1.TaintEffectNoSchedule, corev1.TaintNodeNetworkUnavailable)
	}
	return out
}

// pod is the pod to be made for a node.
func (l *look) pod(o children.Owner, node string) *corev1.Pod {
	p := children.FromTemplate(o, &l.ds.Spec.Template)
	p.Spec.Tolerations = l.fit.tolerations
	p.Spec.Affinity = only(p.Spec.Affinity, node)
	metav1.SetMetaDataLabel(&p.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, l.hash)
	if g := l.ds.Annotations[appsv1.DeprecatedTemplateGeneration]; g != "" {
		metav1.SetMetaDataLabel(&p.ObjectMeta, templateGeneration, g)
	}
	return p
}

// only is a, which is the caller's own and may be nil, for one node. What a requires of
// nodes has been seen to.
func only(a *corev1.Affinity, node string) *corev1.Affinity {
	if a == nil {
		a = &corev1.Affinity{}
	}
	if a.NodeAffinity == nil {
		a.NodeAffinity = &corev1.NodeAffinity{}
	}
	a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}
	return a
}

// nodeOf is the node that p is on or was made for; empty if it does not say.
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range t.MatchFields {
			if e.Key == metav1.ObjectNameField && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}
