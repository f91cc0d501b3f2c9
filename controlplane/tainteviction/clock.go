package tainteviction

// When a pod has to go: since when each taint counts, and what the pod's
// tolerations make of it.

import (
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// maxSeconds bounds what can be made a time.Duration of: a hundred years.
const maxSeconds = 100 * 365 * 24 * 60 * 60

// A taint is a NoExecute taint of a node. seen is when this process first saw it,
// and since is from when it counts.
type taint struct {
	corev1.Taint
	seen, since time.Time
}

// A node is what is known of one: its NoExecute taints, if any. epoch tells one
// spell of being tainted from the next.
type node struct {
	epoch  uint64
	taints []taint
}

// note brings what is known of a node up to date and tells whether its pods have
// to be looked at.
func (r *run) note(n *corev1.Node, now time.Time) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, known := r.nodes[n.Name]
	if !known {
		was = &node{}
	}
	is := &node{epoch: was.epoch, taints: noExecute(n, was.taints, now)}
	if len(was.taints) == 0 && len(is.taints) > 0 {
		r.epochs++
		is.epoch = r.epochs
	}
	r.nodes[n.Name] = is
	return !known || !slices.EqualFunc(was.taints, is.taints, func(a, b taint) bool { return same(&a.Taint, &b.Taint) })
}

// same tells whether two taints of a node are one that was not touched.
func same(a, b *corev1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.TimeAdded.Equal(b.TimeAdded)
}

// noExecute returns the NoExecute taints of n, given those that were known.
func noExecute(n *corev1.Node, known []taint, now time.Time) []taint {
	var out []taint
	for i := range n.Spec.Taints {
		t := taint{Taint: n.Spec.Taints[i], seen: now}
		if t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		j := slices.IndexFunc(known, func(k taint) bool { return same(&k.Taint, &t.Taint) })
		if j >= 0 {
			t = known[j]
		} else {
			t.since = since(n, &t.Taint, now)
		}
		out = append(out, t)
	}
	return out
}

// since returns from when a taint of n counts that was first seen at seen.
//
// That is its timeAdded. Taints that people add often have none; then it is when
// somebody last wrote the list of taints, which the server keeps for each writer.
// That may be later than when the taint was added, but not earlier. So it is with a
// timeAdded after seen, which a node may write when it is made. No taint is
// older than its node. See notBefore for what a time of the API means.
func since(n *corev1.Node, t *corev1.Taint, seen time.Time) time.Time {
	at := taintsWritten(n)
	if !undated(t, seen) {
		at = t.TimeAdded.Time
	}
	if at.IsZero() {
		return seen
	}
	if at.Before(n.CreationTimestamp.Time) {
		at = n.CreationTimestamp.Time
	}
	return notBefore(at, seen)
}

// undated tells whether a taint that is seen at seen has no time that counts.
func undated(t *corev1.Taint, seen time.Time) bool {
	return t.TimeAdded.IsZero() || t.TimeAdded.After(seen)
}

// WithoutManagers is loop.WithoutManagers for informers that this controller shares: a
// node keeps who wrote which field while that dates one of its taints. It keeps all of
// that, since an object may be written as it is here.
func WithoutManagers(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		now := time.Now()
		for i := range n.Spec.Taints {
			if t := &n.Spec.Taints[i]; t.Effect == corev1.TaintEffectNoExecute && undated(t, now) {
				return n, nil
			}
		}
	}
	return loop.WithoutManagers(o)
}

// notBefore returns the earliest time of which it is certain that it is not before
// what the API says happened at, and which was seen later. Times of the API are
// whole seconds, cut short, so the end of that second is meant, or seen if that is
// earlier: a toleration must not run out early. A time after seen is another
// machine's clock and means seen too.
func notBefore(at, seen time.Time) time.Time {
	if at = at.Add(time.Second); at.After(seen) {
		return seen
	}
	return at
}

// taintsWritten returns when the taints of n became what they are, as far as the
// server has kept track; zero means that it has not, which is so for nodes that
// were made with nothing but a name. Whoever changes the list
// becomes its only owner, and who sets it to what it is already becomes one more,
// so the earliest owner is meant.
func taintsWritten(n *corev1.Node) time.Time {
	var first time.Time
	for i := range n.ManagedFields {
		e := &n.ManagedFields[i]
		if e.Subresource != "" || e.Time.IsZero() || !ownsTaints(e.FieldsV1) {
			continue
		}
		if first.IsZero() || e.Time.Time.Before(first) {
			first = e.Time.Time
		}
	}
	return first
}

func ownsTaints(f *metav1.FieldsV1) bool {
	var owned struct {
		Spec struct {
			Taints json.RawMessage `json:"f:taints"`
		} `json:"f:spec"`
	}
	return f != nil && json.Unmarshal(f.GetRawBytes(), &owned) == nil && owned.Spec.Taints != nil
}

// due returns when a pod that tolerates this much, and is on the node from bound,
// has to leave it; leaves is false if it may stay. For each taint the first
// toleration that covers it counts.
func due(tolerations []corev1.Toleration, taints []taint, bound time.Time) (at time.Time, leaves bool) {
	for i := range taints {
		t := &taints[i]
		goes := t.since
		if goes.Before(bound) {
			goes = bound
		}
		j := slices.IndexFunc(tolerations, func(o corev1.Toleration) bool {
			return o.ToleratesTaint(klog.Logger{}, &t.Taint, true)
		})
		if j >= 0 {
			seconds := tolerations[j].TolerationSeconds
			if seconds == nil {
				continue
			}
			goes = goes.Add(time.Duration(min(max(*seconds, 0), maxSeconds)) * time.Second)
		}
		if !leaves || goes.Before(at) {
			at, leaves = goes, true
		}
	}
	return at, leaves
}

// Due returns when the NoExecute taints of n have p deleted, as the controller counts at now;
// leaves is false if p may stay. at is zero if nobody knows when a taint that p tolerates for a
// while was added.
func Due(n *corev1.Node, p *corev1.Pod, now time.Time) (at time.Time, leaves bool) {
	taints := noExecute(n, nil, now)
	at, leaves = due(p.Spec.Tolerations, taints, boundAt(p, now))
	if !taintsWritten(n).IsZero() {
		return at, leaves
	}
	for i := range taints {
		t := &taints[i].Taint
		if leaves && at.After(now) && undated(t, now) && slices.ContainsFunc(p.Spec.Tolerations, func(o corev1.Toleration) bool {
			return o.TolerationSeconds != nil && o.ToleratesTaint(klog.Logger{}, t, true)
		}) {
			return time.Time{}, true
		}
	}
	return at, leaves
}

// boundAt returns since when a pod that is seen now has been on its node, by its
// own account and with the same care for times of the API as since. Its node may
// write when it was scheduled: a time after now would mean another one after each
// restart, so it does not count.
func boundAt(p *corev1.Pod, now time.Time) time.Time {
	at := p.CreationTimestamp.Time
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue &&
			c.LastTransitionTime.After(at) && !c.LastTransitionTime.After(now) {
			at = c.LastTransitionTime.Time
		}
	}
	return notBefore(at, now)
}
