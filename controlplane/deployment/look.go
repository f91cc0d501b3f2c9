package deployment

// What is known of a Deployment and its ReplicaSets, and the writing of what has
// been changed of it.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// A look is what is known while one Deployment is looked at. All but was and wasSets
// is our own copy, which is changed and then written.
type look struct {
	d     *appsv1.Deployment
	fresh *appsv1.ReplicaSet   // has d's template; nil if there is none
	old   []*appsv1.ReplicaSet // the others, oldest first
	now   time.Time

	want               int // pods in the end
	surge, unavailable int // how many more and how many fewer there may be meanwhile

	was     *appsv1.Deployment
	wasSets map[types.UID]*appsv1.ReplicaSet
}

func newLook(d *appsv1.Deployment, sets []*appsv1.ReplicaSet, now time.Time) *look {
	l := &look{d: d.DeepCopy(), was: d, wasSets: make(map[types.UID]*appsv1.ReplicaSet, len(sets)), now: now, want: 1}
	if d.Spec.Replicas != nil {
		l.want = int(*d.Spec.Replicas)
	}
	l.surge, l.unavailable = bounds(&d.Spec.Strategy, l.want)
	sets = slices.Clone(sets)
	slices.SortFunc(sets, older)
	for _, rs := range sets {
		l.wasSets[rs.UID] = rs
		rs = rs.DeepCopy()
		if l.fresh == nil && sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
			l.fresh = rs
		} else {
			l.old = append(l.old, rs)
		}
	}
	return l
}

// bounds returns how many pods more, and how many fewer, than want there may be during
// a rollout. Percentages are rounded so that there are more pods rather than fewer; if
// that leaves no room at all, one may be missing.
func bounds(s *appsv1.DeploymentStrategy, want int) (surge, unavailable int) {
	r := s.RollingUpdate
	if s.Type == appsv1.RecreateDeploymentStrategyType || r == nil {
		return 0, 0
	}
	part := func(v *intstr.IntOrString, up bool) int {
		if v == nil {
			return 0
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(v, want, up)
		if err != nil {
			return 0
		}
		return n
	}
	surge, unavailable = part(r.MaxSurge, true), part(r.MaxUnavailable, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, want)
}

// rolling tells whether pods are replaced a few at a time.
func (l *look) rolling() bool {
	return l.d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType
}

// sets returns all sets, the fresh one first.
func (l *look) sets() []*appsv1.ReplicaSet {
	if l.fresh == nil {
		return l.old
	}
	return append([]*appsv1.ReplicaSet{l.fresh}, l.old...)
}

// active returns the sets that shall have pods.
func (l *look) active() []*appsv1.ReplicaSet {
	return slices.DeleteFunc(slices.Clone(l.sets()), func(rs *appsv1.ReplicaSet) bool { return size(rs) == 0 })
}

func older(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// size is how many pods rs shall have; none if rs is nil.
func size(rs *appsv1.ReplicaSet) int {
	switch {
	case rs == nil:
		return 0
	case rs.Spec.Replicas == nil:
		return 1
	}
	return int(*rs.Spec.Replicas)
}

// available is how many pods of rs serve and will go on to: its status may be from
// before it was made smaller.
func available(rs *appsv1.ReplicaSet) int { return min(int(rs.Status.AvailableReplicas), size(rs)) }

// sum adds up f of all sets.
func sum(sets []*appsv1.ReplicaSet, f func(*appsv1.ReplicaSet) int) (n int) {
	for _, rs := range sets {
		n += f(rs)
	}
	return n
}

// sameTemplate compares templates but for the label that tells sets apart.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	delete(a.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	delete(b.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return equality.Semantic.DeepEqual(a, b)
}

// save writes the sets that have been changed.
func (c *Controller) save(ctx context.Context, l *look) error {
	for _, rs := range l.sets() {
		was := l.wasSets[rs.UID]
		if was == nil || equality.Semantic.DeepEqual(was, rs) {
			continue
		}
		_, err := c.client.AppsV1().ReplicaSets(rs.Namespace).Update(ctx, rs, metav1.UpdateOptions{})
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			return loop.Quiet(err) // the cache is behind
		case err != nil:
			return fmt.Errorf("change replica set %s: %w", rs.Name, err)
		}
		c.tell(l.d, rs.Name, size(was), size(rs))
	}
	return nil
}

// tell says that the set of this name has another size.
func (c *Controller) tell(d *appsv1.Deployment, name string, from, to int) {
	if from == to {
		return
	}
	way := "up"
	if from > to {
		way = "down"
	}
	c.events.Eventf(d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", way, name, from, to)
}

// write writes the status and the revision of the Deployment if they are not so
// already.
func (c *Controller) write(ctx context.Context, l *look) error {
	if equality.Semantic.DeepEqual(l.was.Status, l.d.Status) && l.was.Annotations[Revision] == l.d.Annotations[Revision] {
		return nil
	}
	_, err := c.client.AppsV1().Deployments(l.d.Namespace).UpdateStatus(ctx, l.d, metav1.UpdateOptions{})
	return loop.StatusError("deployment "+l.d.Name, err)
}
