package explain

// What will happen next, and when.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/controlplane/tainteviction"
)

// maxNames is how many pods a step names.
const maxNames = 5

// pods are those of the node, and when taints have them evicted.
func pods(o *Objects) []Pod {
	var out []Pod
	for i := range o.Pods {
		p := &o.Pods[i]
		pod := Pod{Name: p.Namespace + "/" + p.Name, Phase: string(p.Status.Phase)}
		pod.Terminal = p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		switch {
		case p.DeletionTimestamp != nil:
			pod.Leaving = p.DeletionTimestamp.Time
			if grace := p.DeletionGracePeriodSeconds; grace != nil { // the timestamp is when it should be over
				pod.Leaving = pod.Leaving.Add(-time.Duration(*grace) * time.Second)
			}
		case o.Node != nil:
			pod.At, pod.Evicted = tainteviction.Due(o.Node, p, o.Now)
		}
		out = append(out, pod)
	}
	slices.SortFunc(out, func(a, b Pod) int {
		switch {
		case a.Evicted != b.Evicted && a.Evicted:
			return -1
		case a.Evicted != b.Evicted:
			return 1
		}
		return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Name, b.Name))
	})
	return out
}

// next are the steps.
func next(o *Objects, r *Report) []Step {
	if o.Node == nil {
		if len(o.Pods) > 0 {
			return []Step{{Text: fmt.Sprintf("the pod garbage collector deletes what is left on it: %s", names(r.Pods))}}
		}
		if o.Held {
			return []Step{{Text: "nothing, until a kubelet registers it"}}
		}
		return []Step{{Text: "nothing, until it joins"}}
	}
	var steps []Step
	if o.Node.DeletionTimestamp != nil {
		steps = append(steps, Step{Text: "the node is being deleted"})
	}
	steps = append(steps, turning(o, r)...)
	steps = append(steps, evictions(r)...)
	if len(steps) == 0 {
		steps = append(steps, Step{Text: "nothing is due"})
	}
	return steps
}

// turning says what becomes of the Ready condition and the taints that follow it.
func turning(o *Objects, r *Report) []Step {
	deadline := r.Heartbeat.Latest.Add(o.Grace)
	switch {
	case r.Ready == nil:
		return []Step{{Text: "the node stays not-ready until an agent reports for it"}}
	case r.Ready.Status == corev1.ConditionUnknown && !r.Heartbeat.Stale:
		return []Step{{Text: "the node becomes Ready with its next report of status"}}
	case r.Ready.Status != corev1.ConditionUnknown && r.Heartbeat.Stale:
		return []Step{{At: deadline, Text: "the node turns Unknown at the next look of the lifecycle controller, unless a heartbeat arrives"}}
	case r.Ready.Status == corev1.ConditionTrue && o.Revoked != "":
		return []Step{{At: deadline, Text: "the node turns Unknown unless a machine joins under its name"}}
	case r.Ready.Status == corev1.ConditionTrue && r.Heartbeat.Behind == 0 && o.Now.Sub(r.Heartbeat.Latest) > o.Grace/2:
		return []Step{{At: deadline, Text: "the node turns Unknown unless a heartbeat arrives"}}
	case r.Ready.Status == corev1.ConditionTrue:
		return nil
	case r.Frozen != nil:
		return []Step{{Text: fmt.Sprintf("evictions are frozen since %s: %s: %s", stamp(r.Frozen.Since), r.Frozen.Reason, r.Frozen.Message)}}
	}
	want := corev1.TaintNodeNotReady
	if r.Ready.Status == corev1.ConditionUnknown {
		want = corev1.TaintNodeUnreachable
	}
	for _, t := range r.Taints {
		if t.Key == want && t.Effect == corev1.TaintEffectNoExecute {
			return nil // evictions has it
		}
	}
	return []Step{{Text: "the node gets the taint " + want + ":NoExecute as soon as the eviction rate of its zone allows; its pods' tolerations count from then"}}
}

// evictions are the pods that taints have deleted, in the order of their times.
func evictions(r *Report) []Step {
	var steps []Step
	for _, t := range r.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			steps = append(steps, Step{Text: fmt.Sprintf("tainted %s:%s since %s", t.Key, t.Effect, stamp(t.Since))})
		}
	}
	if len(steps) == 0 {
		return nil
	}
	var due []Pod
	flush := func() {
		if len(due) > 0 {
			steps = append(steps, Step{At: due[0].At, Text: "deleted for want of tolerance: " + names(due)})
		}
		due = nil
	}
	stay := 0
	for _, p := range r.Pods {
		switch {
		case !p.Leaving.IsZero() || p.Terminal:
		case !p.Evicted:
			stay++
		default:
			if len(due) > 0 && !due[0].At.Equal(p.At) {
				flush()
			}
			due = append(due, p)
		}
	}
	flush()
	if stay > 0 {
		steps = append(steps, Step{Text: fmt.Sprintf("%d pods tolerate the taints for good and stay", stay)})
	}
	return steps
}

// names are the pods', not too many.
func names(ps []Pod) string {
	var all []string
	for _, p := range ps {
		all = append(all, p.Name)
	}
	return some(all, len(all))
}

// some lists the first names of as many as there are.
func some(names []string, of int) string {
	text := strings.Join(names[:min(len(names), maxNames)], ", ")
	if more := of - maxNames; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}
