package deployment

// The sizes of ReplicaSets when the Deployment itself gets another size, in the
// middle of a rollout perhaps.

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// resize has rs have n pods. What the Deployment's size was then is noted in rs.
func (l *look) resize(rs *appsv1.ReplicaSet, n int) {
	replicas := int32(min(max(n, 0), math.MaxInt32))
	rs.Spec.Replicas = &replicas
	metav1.SetMetaDataAnnotation(&rs.ObjectMeta, DesiredReplicas, strconv.Itoa(l.want))
	metav1.SetMetaDataAnnotation(&rs.ObjectMeta, MaxReplicas, strconv.Itoa(l.want+l.surge))
}

// scaled tells whether a Deployment that is rolled out step by step has another size
// than when one of its sets got its own.
func (l *look) scaled() bool {
	return l.rolling() && slices.ContainsFunc(l.active(), func(rs *appsv1.ReplicaSet) bool {
		return rs.Annotations[DesiredReplicas] != "" && number(rs, DesiredReplicas) != l.want
	})
}

// rescale fits the sets to the Deployment's size without rolling anything out. If only
// one has pods it gets that size. If the rollout is over, the old ones get none.
// Otherwise all are scaled in proportion, so that a rollout that goes wrong does not
// get a larger share by it.
func (l *look) rescale() {
	active := l.active()
	switch {
	case len(active) == 1:
		l.resize(active[0], l.want)
	case len(active) == 0:
		if latest := l.latest(); latest != nil && l.want > 0 {
			l.resize(latest, l.want)
		}
	case l.saturated():
		l.take(sum(l.old, size), size)
	case l.rolling():
		l.share(active)
	}
}

// latest is the fresh set, or the youngest; nil if there is none.
func (l *look) latest() *appsv1.ReplicaSet {
	if l.fresh != nil || len(l.old) == 0 {
		return l.fresh
	}
	return l.old[len(l.old)-1]
}

// saturated tells whether the fresh set has all the pods and all of them serve.
func (l *look) saturated() bool {
	rs := l.fresh
	return rs != nil && size(rs) == l.want && number(rs, DesiredReplicas) == l.want && available(rs) == l.want
}

// share spreads the pods that are to be added, or taken away, over sets by their
// sizes. What rounding leaves over falls to the largest: of equals to the youngest if
// pods are added, and to the oldest if they are taken away.
func (l *look) share(sets []*appsv1.ReplicaSet) {
	allowed := 0
	if l.want > 0 {
		allowed = l.want + l.surge
	}
	add := allowed - sum(sets, size)
	slices.SortStableFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		age := older(a, b)
		if add > 0 {
			age = -age
		}
		return cmp.Or(-cmp.Compare(size(a), size(b)), age)
	})
	left, parts := add, make([]int, len(sets))
	for i, rs := range sets {
		if add > 0 {
			parts[i] = min(l.fraction(rs), left)
		} else {
			parts[i] = max(l.fraction(rs), left)
		}
		if left == 0 {
			parts[i] = 0
		}
		left -= parts[i]
	}
	for i, rs := range sets {
		if i == 0 {
			parts[0] += left
		}
		l.resize(rs, size(rs)+parts[i])
	}
}

// fraction is by how many pods rs would change if it kept its share of the whole.
func (l *look) fraction(rs *appsv1.ReplicaSet) int {
	if l.want == 0 {
		return -size(rs)
	}
	before := number(rs, MaxReplicas)
	if before <= 0 {
		before = int(l.d.Status.Replicas)
	}
	if before <= 0 {
		return 0
	}
	return int(math.Round(float64(size(rs))*float64(l.want+l.surge)/float64(before))) - size(rs)
}
