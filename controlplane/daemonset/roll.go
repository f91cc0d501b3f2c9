package daemonset

// Replacing pods whose template has changed, a few at a time.

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// surges tells whether a node may have a new pod beside the old one.
func surges(ds *appsv1.DaemonSet) bool { _, surge := bounds(ds, 100); return surge > 0 }

// bounds returns how many of want nodes may lack an available pod during a rollout, and
// how many may have two. Percentages are rounded up; if both are none, one may lack it.
func bounds(ds *appsv1.DaemonSet, want int) (unavailable, surge int) {
	r := ds.Spec.UpdateStrategy.RollingUpdate
	if ds.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		return 0, 0
	}
	part := func(v *intstr.IntOrString) int {
		if v == nil {
			return 0
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(v, want, true)
		if err != nil {
			return 0
		}
		return n
	}
	if r != nil {
		unavailable, surge = part(r.MaxUnavailable), part(r.MaxSurge)
	}
	if unavailable == 0 && surge == 0 {
		unavailable = 1
	}
	return unavailable, surge
}

// roll decides which pods are replaced.
func (l *look) roll() {
	want := 0
	for _, at := range l.places {
		if at.should {
			want++
		}
	}
	unavailable, surge := bounds(l.ds, want)
	if surge > 0 {
		l.rollBySurge(want, surge)
		return
	}
	var broken, candidates []*corev1.Pod
	for _, at := range l.places {
		if !at.should && len(at.pods) == 0 {
			continue
		}
		fresh, old := l.halves(at)
		switch {
		case (fresh == nil) == (old == nil): // there will be one pod, which is not there yet
			unavailable--
		case fresh != nil:
			if !l.available(fresh) {
				unavailable--
			}
		case l.available(old):
			candidates = append(candidates, old)
		default: // nothing is lost with it
			broken = append(broken, old)
			unavailable--
		}
	}
	l.remove(broken...)
	l.remove(candidates[:min(max(unavailable, 0), len(candidates))]...)
}

// rollBySurge decides which nodes get a new pod beside the old one, and which old pods
// are not needed any more. An available pod of a node that gets no new one stays until there are
// more available pods than the want nodes that are to have one.
func (l *look) rollBySurge(want, surge int) {
	var candidates []string
	var leaving []*corev1.Pod // of nodes that get no new pod, and available
	available := 0            // nodes that have an available pod
	for _, at := range l.places {
		if !at.should && len(at.pods) == 0 {
			continue
		}
		fresh, old := l.halves(at)
		freshRuns, oldRuns := fresh != nil && l.available(fresh), old != nil && l.available(old)
		if freshRuns || oldRuns {
			available++
		}
		switch {
		case old == nil:
		case freshRuns:
			l.remove(old)
		case fresh != nil:
			surge--
		case !at.should && oldRuns:
			leaving = append(leaving, old)
		case !at.should:
			l.remove(old)
		case !oldRuns:
			l.missing = append(l.missing, at.node)
			surge--
		default:
			candidates = append(candidates, at.node)
		}
	}
	l.missing = append(l.missing, candidates[:min(max(surge, 0), len(candidates))]...)
	l.remove(leaving[:min(max(available-want, 0), len(leaving))]...)
}

// halves returns the pods of a place that stay: one of the present template and one of
// another; nil for none.
func (l *look) halves(at *place) (fresh, old *corev1.Pod) {
	for _, p := range at.pods {
		switch {
		case !l.stays(p):
		case l.updated(p):
			fresh = p
		default:
			old = p
		}
	}
	return fresh, old
}
