package job

// The rules that a Job may bring along: which failures end it or do not count
// (spec.podFailurePolicy, KEP-3329), and which successes are enough
// (spec.successPolicy, KEP-3998).

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// fatal says which pod has failed in a way that ends the Job; empty if none has.
func (l *look) fatal() string {
	if l.job.Spec.PodFailurePolicy == nil {
		return ""
	}
	for _, p := range l.pods {
		if l.outcome(p) != corev1.PodFailed {
			continue
		}
		if action, why := l.match(p); action == batchv1.PodFailurePolicyActionFailJob {
			return why
		}
	}
	return ""
}

// counts tells whether a pod that failed counts as a failure of the Job.
func (l *look) counts(p *corev1.Pod) bool {
	action, _ := l.match(p)
	return action != batchv1.PodFailurePolicyActionIgnore
}

// match returns what the first rule that matches the pod says, and why it
// matches.
func (l *look) match(p *corev1.Pod) (batchv1.PodFailurePolicyAction, string) {
	if l.job.Spec.PodFailurePolicy == nil {
		return batchv1.PodFailurePolicyActionCount, ""
	}
	rules := l.job.Spec.PodFailurePolicy.Rules
	for i := range rules {
		r := &rules[i]
		if r.OnExitCodes != nil {
			if name, code, ok := byExitCode(p, r.OnExitCodes); ok {
				return r.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %d matching %s rule at index %d", name, p.Namespace, p.Name, code, r.Action, i)
			}
		} else if c, ok := byCondition(p, r.OnPodConditions); ok {
			return r.Action, fmt.Sprintf("Pod %s/%s has condition %s matching %s rule at index %d", p.Namespace, p.Name, c, r.Action, i)
		}
	}
	return batchv1.PodFailurePolicyActionCount, ""
}

// byExitCode returns the container that ended in a way the rule is about.
// Success never is.
func byExitCode(p *corev1.Pod, r *batchv1.PodFailurePolicyOnExitCodesRequirement) (string, int32, bool) {
	for _, set := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range set {
			c, end := &set[i], set[i].State.Terminated
			if end == nil || end.ExitCode == 0 || r.ContainerName != nil && *r.ContainerName != c.Name {
				continue
			}
			in := slices.Contains(r.Values, end.ExitCode)
			if in && r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn || !in && r.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn {
				return c.Name, end.ExitCode, true
			}
		}
	}
	return "", 0, false
}

func byCondition(p *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) (corev1.PodConditionType, bool) {
	for _, c := range p.Status.Conditions {
		if slices.Contains(patterns, batchv1.PodFailurePolicyOnPodConditionsPattern{Type: c.Type, Status: c.Status}) {
			return c.Type, true
		}
	}
	return "", false
}

// matchedSuccess returns which rule says that enough has succeeded; -1 if none
// does.
func (l *look) matchedSuccess() int {
	if l.job.Spec.SuccessPolicy == nil || !indexed(l.job) {
		return -1
	}
	for i, r := range l.job.Spec.SuccessPolicy.Rules {
		n, need := l.completed.size(), 0
		if r.SucceededIndexes != nil {
			among := parseIndexes(*r.SucceededIndexes, completions(l.job))
			n, need = l.completed.common(among), among.size()
		}
		if r.SucceededCount != nil {
			need = int(*r.SucceededCount)
		}
		if need > 0 && n >= need {
			return i
		}
	}
	return -1
}
