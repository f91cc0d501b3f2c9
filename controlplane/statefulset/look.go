package statefulset

// What is known while one StatefulSet is looked at, and which pods are missing or go.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/revision"
)

// A slot is an ordinal that is to have a pod, and the pod; nil for none. Of the ordinals
// without a pod only the first children.MaxWrites have a slot: a set may ask for two
// thousand million pods.
type slot struct {
	ordinal int
	pod     *corev1.Pod
}

// A look is what is known of a StatefulSet, and what has been decided.
type look struct {
	set             *appsv1.StatefulSet
	now             time.Time
	current, update *revision.Revision
	before          *corev1.PodTemplateSpec // of current

	pods   []*corev1.Pod
	want   int           // how many pods there are to be
	absent int           // how many ordinals have none
	slots  []slot        // by ordinal
	excess []*corev1.Pod // of other ordinals, the last one first

	missing  []int // ordinals that are to get a pod
	pending  []int // ordinals whose pod does not run yet and may miss a claim
	removals []removal
	again    time.Duration // when time alone will have changed something; zero for never
}

// A removal is of a pod that is to be deleted. failed says that it has ended and is to be replaced,
// excess that it has no successor.
type removal struct {
	pod            *corev1.Pod
	failed, excess bool
}

// newLook sorts pods by their ordinals. all are the set's revisions, of which update is
// the present template's.
func newLook(set *appsv1.StatefulSet, all []*revision.Revision, update *revision.Revision, pods []*corev1.Pod) *look {
	l := &look{set: set, now: time.Now(), current: update, update: update, before: &set.Spec.Template, pods: pods}
	for _, r := range all {
		if r.Name != set.Status.CurrentRevision || r.Name == update.Name {
			continue
		}
		if t, err := revision.Template(r); err == nil {
			l.current, l.before = r, t
		}
	}
	l.want = int(ptr.Deref(set.Spec.Replicas, 1))
	l.settle()
	return l
}

// settle finds the slot of each pod.
func (l *look) settle() {
	first := start(l.set)
	var filled, others []slot
	for _, p := range l.pods {
		n, ok := ordinal(l.set.Name, p.Name)
		switch {
		case !ok:
		case n >= first && n < first+l.want:
			filled = append(filled, slot{n, p})
		default:
			others = append(others, slot{n, p})
		}
	}
	byOrdinal := func(a, b slot) int { return cmp.Compare(a.ordinal, b.ordinal) }
	slices.SortFunc(filled, byOrdinal)
	slices.SortFunc(others, byOrdinal)
	for _, s := range slices.Backward(others) {
		l.excess = append(l.excess, s.pod)
	}
	l.absent = l.want - len(filled)
	next, room := first, children.MaxWrites
	for _, s := range append(filled, slot{ordinal: first + l.want}) {
		for ; next < s.ordinal && room > 0; next++ {
			l.slots = append(l.slots, slot{ordinal: next})
			room--
		}
		if s.pod != nil {
			l.slots = append(l.slots, s)
			next = s.ordinal + 1
		}
	}
}

// ordered tells whether one pod is changed at a time.
func (l *look) ordered() bool { return l.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement }

func (l *look) available(p *corev1.Pod) bool {
	ok, in := children.Available(p, time.Duration(l.set.Spec.MinReadySeconds)*time.Second, l.now)
	l.after(in)
	return ok && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil
}

// after has the StatefulSet looked at again by then, if d is not zero.
func (l *look) after(d time.Duration) {
	if d > 0 && (l.again == 0 || d < l.again) {
		l.again = d
	}
}

// place is under which an ordinal's failures are counted: those of another spec do not count.
func (l *look) place(ordinal int) string { return fmt.Sprintf("%d/%d", l.set.Generation, ordinal) }

// outdated tells whether p is not of the present template.
func (l *look) outdated(p *corev1.Pod) bool { return revisionOf(p) != l.update.Name }

func (l *look) remove(p *corev1.Pod, failed, excess bool) {
	l.removals = append(l.removals, removal{p, failed, excess})
}

// decide decides what is made and what is deleted. wait says how much longer the pod of an
// ordinal that has failed is left alone.
func (l *look) decide(wait func(ordinal int) time.Duration) {
	strategy := &l.set.Spec.UpdateStrategy
	if l.fill(wait) || l.shrink() || strategy.Type != appsv1.RollingUpdateStatefulSetStrategyType {
		return
	}
	l.roll(strategy.RollingUpdate)
}

// fill makes the pods that are missing, and the claims that those miss which do not run yet.
// It tells whether others have to wait for that.
func (l *look) fill(wait func(ordinal int) time.Duration) (hold bool) {
	for _, s := range l.slots {
		switch {
		case s.pod == nil:
			l.missing = append(l.missing, s.ordinal)
		case children.Ended(s.pod):
			if s.pod.DeletionTimestamp != nil {
				break
			}
			if left := wait(s.ordinal); left > 0 {
				l.after(left)
			} else {
				l.remove(s.pod, true, false)
			}
		case l.available(s.pod):
			continue
		case s.pod.Status.Phase != corev1.PodRunning && s.pod.DeletionTimestamp == nil:
			l.pending = append(l.pending, s.ordinal)
		}
		if l.ordered() {
			return true
		}
	}
	return false
}

// shrink deletes pods of ordinals that are none any more. It tells whether others have to
// wait for that.
func (l *look) shrink() (wait bool) {
	for _, p := range l.excess {
		if p.DeletionTimestamp == nil {
			l.remove(p, false, true)
		}
		if l.ordered() {
			return true
		}
	}
	return false
}

// roll replaces outdated pods, the last ones first, as long as not too many are missed: a percentage
// is rounded down, to one at least. If pods are changed all at once, those that are missed anyway go
// first: they may never become available.
func (l *look) roll(r *appsv1.RollingUpdateStatefulSetStrategy) {
	most, partition := 1, 0
	if r != nil {
		partition = int(ptr.Deref(r.Partition, 0))
		if n, err := intstr.GetScaledValueFromIntOrPercent(ptr.To(ptr.Deref(r.MaxUnavailable, intstr.FromInt32(1))), l.want, false); err == nil {
			most = max(n, 1)
		}
	}
	first := start(l.set) + partition
	outdated := func(s slot) bool {
		return s.ordinal >= first && s.pod != nil && s.pod.DeletionTimestamp == nil && l.outdated(s.pod)
	}
	if !l.ordered() {
		for _, s := range slices.Backward(l.slots) {
			if outdated(s) && !l.available(s.pod) && !children.Ended(s.pod) { // fill replaces those that have ended
				l.remove(s.pod, false, false)
			}
		}
	}
	most -= l.absent
	for _, s := range l.slots {
		if s.pod != nil && !l.available(s.pod) {
			most--
		}
	}
	for _, s := range slices.Backward(l.slots) {
		if most <= 0 || s.ordinal < first {
			return
		}
		if outdated(s) && l.available(s.pod) {
			l.remove(s.pod, false, false)
			most--
		}
	}
}

// template returns the template of the next pod of an ordinal and the name of its revision.
func (l *look) template(ordinal int) (*corev1.PodTemplateSpec, string) {
	s := &l.set.Spec.UpdateStrategy
	if s.Type == appsv1.RollingUpdateStatefulSetStrategyType && s.RollingUpdate != nil &&
		ordinal < start(l.set)+int(ptr.Deref(s.RollingUpdate.Partition, 0)) {
		return l.before, l.current.Name
	}
	return &l.set.Spec.Template, l.update.Name
}

// needs tells whether pods have the revision r, or may get it.
func (l *look) needs(r *revision.Revision) bool {
	return r.Name == l.current.Name || r.Name == l.update.Name ||
		slices.ContainsFunc(l.pods, func(p *corev1.Pod) bool { return revisionOf(p) == r.Name })
}
