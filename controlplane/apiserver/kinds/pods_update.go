// Rules for what of a pod may change.

package kinds

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// validatePodUpdate checks a change of a pod's spec. Once made, a pod is what
// it is: only a few fields may change, and some of them in one direction only.
func validatePodUpdate(pod, old *corev1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	errs := podItself(pod)
	errs = append(errs, mirrorUnchanged(pod.Annotations, old.Annotations)...)
	errs = append(errs, appArmorUnchanged(pod.Annotations, old.Annotations)...)
	errs = append(errs, containersUpdate(pod.Spec.Containers, old.Spec.Containers, spec.Child("containers"))...)
	errs = append(errs, containersUpdate(pod.Spec.InitContainers, old.Spec.InitContainers, spec.Child("initContainers"))...)
	errs = append(errs, deadlineUpdate(pod.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, spec.Child("activeDeadlineSeconds"))...)
	errs = append(errs, tolerationsUpdate(pod.Spec.Tolerations, old.Spec.Tolerations, spec.Child("tolerations"))...)
	errs = append(errs, gatesUpdate(pod.Spec.SchedulingGates, old.Spec.SchedulingGates, spec.Child("schedulingGates"))...)
	if len(old.Spec.SchedulingGates) > 0 {
		errs = append(errs, nodeSelectorUpdate(pod.Spec.NodeSelector, old.Spec.NodeSelector, spec.Child("nodeSelector"))...)
		errs = append(errs, nodeAffinityUpdate(nodeAffinityOf(&pod.Spec), nodeAffinityOf(&old.Spec), spec.Child("affinity", "nodeAffinity"))...)
	}
	if len(errs) > 0 {
		return errs
	}
	return restUnchanged(&pod.Spec, &old.Spec, len(old.Spec.SchedulingGates) > 0, spec)
}

// restUnchanged compares what must not change at all, with the fields that may
// put back to what they were. The caller has checked how those changed.
func restUnchanged(spec, old *corev1.PodSpec, gated bool, p *field.Path) field.ErrorList {
	back := spec.DeepCopy()
	for i := range back.Containers {
		back.Containers[i].Image = old.Containers[i].Image
	}
	for i := range back.InitContainers {
		back.InitContainers[i].Image = old.InitContainers[i].Image
	}
	back.ActiveDeadlineSeconds = old.ActiveDeadlineSeconds
	back.Tolerations = old.Tolerations
	back.SchedulingGates = old.SchedulingGates
	if g := old.TerminationGracePeriodSeconds; g != nil && *g < 0 && spec.TerminationGracePeriodSeconds != nil && *spec.TerminationGracePeriodSeconds == 1 {
		back.TerminationGracePeriodSeconds = g
	}
	if gated {
		back.NodeSelector = old.NodeSelector
		putBackNodeAffinity(back, old)
	}
	if equal(back, old) {
		return nil
	}
	return field.ErrorList{field.Forbidden(p, "pod updates may not change fields other than "+strings.Join([]string{
		"`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
		"`spec.tolerations` (only additions to existing tolerations)",
		"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
	}, ",")+"\n"+strings.Join(changes(old, back, p.String()), "\n"))}
}

func containersUpdate(list, old []corev1.Container, p *field.Path) field.ErrorList {
	if len(list) != len(old) {
		return field.ErrorList{field.Forbidden(p, "pod updates may not add or remove containers")}
	}
	return nil
}

func mirrorUnchanged(annotations, old map[string]string) field.ErrorList {
	p := field.NewPath("metadata", "annotations").Key(corev1.MirrorPodAnnotationKey)
	now, is := annotations[corev1.MirrorPodAnnotationKey]
	then, was := old[corev1.MirrorPodAnnotationKey]
	switch {
	case is && !was:
		return field.ErrorList{field.Forbidden(p, "may not add mirror pod annotation")}
	case was && !is:
		return field.ErrorList{field.Forbidden(p, "may not remove mirror pod annotation")}
	case now != then:
		return field.ErrorList{field.Forbidden(p, "may not update mirror pod annotation")}
	default:
		return nil
	}
}

// deadlineUpdate lets the deadline be set and brought forward.
func deadlineUpdate(d, old *int64, p *field.Path) field.ErrorList {
	switch {
	case old == nil:
		return nil
	case d == nil:
		return field.ErrorList{field.Invalid(p, d, "must not update from a positive integer to nil value")}
	case *d > *old:
		return field.ErrorList{field.Invalid(p, *d, "must be less than or equal to previous value")}
	default:
		return nil
	}
}

// tolerationsUpdate lets tolerations be added, and those that exist be changed
// in their seconds.
func tolerationsUpdate(list, old []corev1.Toleration, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, o := range old {
		if !slices.ContainsFunc(list, func(n corev1.Toleration) bool {
			n.TolerationSeconds = o.TolerationSeconds
			return equal(n, o)
		}) {
			errs = append(errs, field.Forbidden(p, "existing toleration can not be modified except its tolerationSeconds"))
			break
		}
	}
	return errs
}

func gatesUpdate(list, old []corev1.PodSchedulingGate, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	had := sets.New(old...)
	for i, g := range list {
		if !had.Has(g) {
			errs = append(errs, field.Forbidden(p.Index(i), fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name)))
		}
	}
	return errs
}

// nodeSelectorUpdate lets a pod that no scheduler has looked at yet become
// choosier.
func nodeSelectorUpdate(m, old map[string]string, p *field.Path) field.ErrorList {
	for k, v := range old {
		if now, ok := m[k]; !ok || now != v {
			return field.ErrorList{field.Invalid(p, m, "only additions to spec.nodeSelector are allowed (no mutations or deletions)")}
		}
	}
	return nil
}

func nodeAffinityOf(s *corev1.PodSpec) *corev1.NodeSelector {
	if s.Affinity == nil || s.Affinity.NodeAffinity == nil {
		return nil
	}
	return s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// nodeAffinityUpdate lets requirements be added to each term, but no terms: the
// terms are alternatives, so another one would widen the choice.
func nodeAffinityUpdate(s, old *corev1.NodeSelector, p *field.Path) field.ErrorList {
	if old == nil {
		return nil
	}
	p = p.Child(requiredDuring, "nodeSelectorTerms")
	if s == nil || len(s.NodeSelectorTerms) != len(old.NodeSelectorTerms) {
		return field.ErrorList{field.Invalid(p, s, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var errs field.ErrorList
	for i, was := range old.NodeSelectorTerms {
		now := s.NodeSelectorTerms[i]
		if !hasPrefix(now.MatchExpressions, was.MatchExpressions) || !hasPrefix(now.MatchFields, was.MatchFields) {
			errs = append(errs, field.Invalid(p.Index(i), now, "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

func hasPrefix(list, prefix []corev1.NodeSelectorRequirement) bool {
	return len(list) >= len(prefix) && equal(list[:len(prefix)], prefix)
}

// putBackNodeAffinity undoes a change of node affinity in s, which is a copy.
func putBackNodeAffinity(s, old *corev1.PodSpec) {
	var was *corev1.NodeAffinity
	if old.Affinity != nil {
		was = old.Affinity.NodeAffinity
	}
	if s.Affinity == nil {
		s.Affinity = &corev1.Affinity{}
	}
	s.Affinity.NodeAffinity = was
	if old.Affinity == nil && *s.Affinity == (corev1.Affinity{}) {
		s.Affinity = nil
	}
}

// validatePodEphemeralContainersUpdate checks a change through the
// ephemeralcontainers subresource, which can only add.
func validatePodEphemeralContainersUpdate(pod, old *corev1.Pod) field.ErrorList {
	p := field.NewPath("spec", "ephemeralContainers")
	if _, ok := old.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	c := newPodContext(&pod.Spec)
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			c.names[list[i].Name] = true
		}
	}
	errs := c.ephemeralContainers(p)
	now := map[string]*corev1.EphemeralContainer{}
	at := map[string]int{}
	for i := range pod.Spec.EphemeralContainers {
		e := &pod.Spec.EphemeralContainers[i]
		now[e.Name], at[e.Name] = e, i
	}
	for i := range old.Spec.EphemeralContainers {
		was := &old.Spec.EphemeralContainers[i]
		switch e := now[was.Name]; {
		case e == nil:
			errs = append(errs, field.Forbidden(p, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", was.Name)))
		case !equal(e, was):
			errs = append(errs, field.Forbidden(p.Index(at[was.Name]), fmt.Sprintf("existing ephemeral containers %q may not be changed\n", was.Name)))
		}
	}
	return errs
}

// validatePodStatusUpdate checks what a pod's node says of it.
func validatePodStatusUpdate(pod, old *corev1.Pod) field.ErrorList {
	p := field.NewPath("status")
	errs := appArmorUnchanged(pod.Annotations, old.Annotations)
	if pod.Spec.NodeName != old.Spec.NodeName {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "nodeName"), "may not be changed directly"))
	}
	if n := pod.Status.NominatedNodeName; n != "" {
		errs = append(errs, dnsSubdomain(n, p.Child("nominatedNodeName"))...)
	}
	if old.Status.QOSClass != "" {
		errs = append(errs, immutable(pod.Status.QOSClass, old.Status.QOSClass, p.Child("qosClass"))...)
	}
	errs = append(errs, nonNegative(pod.Status.ObservedGeneration, p.Child("observedGeneration"))...)
	for i, c := range pod.Status.Conditions {
		errs = append(errs, qualifiedName(string(c.Type), p.Child("conditions").Index(i).Child("type"))...)
	}
	policy := old.Spec.RestartPolicy
	errs = append(errs, stateTransition(pod.Status.ContainerStatuses, old.Status.ContainerStatuses, old.Spec.Containers, policy, p.Child("containerStatuses"))...)
	errs = append(errs, stateTransition(pod.Status.InitContainerStatuses, old.Status.InitContainerStatuses, old.Spec.InitContainers, policy, p.Child("initContainerStatuses"))...)
	errs = append(errs, stateTransition(pod.Status.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses, nil, corev1.RestartPolicyNever, p.Child("ephemeralContainerStatuses"))...)
	errs = append(errs, podIPs(pod, p)...)
	return append(errs, hostIPs(pod, p)...)
}

// stateTransition refuses a status in which a container lives again that its
// restart policy leaves dead.
func stateTransition(list, old []corev1.ContainerStatus, containers []corev1.Container, policy corev1.RestartPolicy, p *field.Path) field.ErrorList {
	if policy == corev1.RestartPolicyAlways {
		return nil
	}
	var errs field.ErrorList
	restartable := sets.New[string]()
	for i := range containers {
		// What follows from a container's own policy and rules is for its node
		// to decide.
		if containers[i].RestartPolicy != nil {
			restartable.Insert(containers[i].Name)
		}
	}
	for _, was := range old {
		t := was.State.Terminated
		if t == nil || restartable.Has(was.Name) || t.ExitCode != 0 && policy == corev1.RestartPolicyOnFailure {
			continue
		}
		for i := range list {
			if list[i].Name == was.Name && list[i].State.Terminated == nil {
				errs = append(errs, field.Forbidden(p.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	return errs
}

func podIPs(pod *corev1.Pod, p *field.Path) field.ErrorList {
	var list []string
	for _, a := range pod.Status.PodIPs {
		list = append(list, a.IP)
	}
	return addressFamilies(list, p.Child("podIPs"))
}

func hostIPs(pod *corev1.Pod, p *field.Path) field.ErrorList {
	var list []string
	for _, a := range pod.Status.HostIPs {
		list = append(list, a.IP)
	}
	var errs field.ErrorList
	if len(list) > 0 && list[0] != pod.Status.HostIP {
		errs = append(errs, field.Invalid(p.Child("hostIPs").Index(0).Child("ip"), list[0], "must be equal to `hostIP`"))
	}
	return append(errs, addressFamilies(list, p.Child("hostIPs"))...)
}

// addressFamilies wants valid addresses, at most one of each family.
func addressFamilies(list []string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, a := range list {
		errs = append(errs, ip(a, p.Index(i))...)
	}
	if len(errs) > 0 || len(list) < 2 {
		return errs
	}
	dual, err := netutils.IsDualStackIPStrings(list)
	if err != nil {
		return field.ErrorList{field.InternalError(p, fmt.Errorf("failed to check for dual stack: %w", err))}
	}
	if !dual || len(list) > 2 {
		errs = append(errs, field.Invalid(p, list, "may specify no more than one IP for each IP family"))
	}
	return errs
}
