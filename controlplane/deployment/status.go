package deployment

// What there is, and whether it makes progress, as the status says it.

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of the condition Progressing by which decisions are made here.
const (
	reasonAvailable = "NewReplicaSetAvailable"
	reasonTimedOut  = "ProgressDeadlineExceeded"
	reasonPaused    = "DeploymentPaused"
)

// observe makes the status of l.d say what its sets have. During a rollout it says as
// well whether there is progress, and which pods cannot be made.
func (l *look) observe(rollout bool) {
	s := l.count()
	if rollout {
		if !hasDeadline(l.d) {
			removeCondition(&s, appsv1.DeploymentProgressing)
		} else {
			l.judge(&s)
		}
		if c := l.failure(); c != nil {
			setCondition(&s, *c)
		} else {
			removeCondition(&s, appsv1.DeploymentReplicaFailure)
		}
	}
	l.d.Status = s
}

// count adds up the sets.
func (l *look) count() appsv1.DeploymentStatus {
	s := appsv1.DeploymentStatus{
		ObservedGeneration: l.d.Generation, CollisionCount: l.d.Status.CollisionCount,
		Conditions: slices.Clone(l.d.Status.Conditions), TerminatingReplicas: l.terminating(),
	}
	for _, rs := range l.sets() {
		s.Replicas += rs.Status.Replicas
		s.ReadyReplicas += rs.Status.ReadyReplicas
		s.AvailableReplicas += rs.Status.AvailableReplicas
	}
	if l.fresh != nil {
		s.UpdatedReplicas = l.fresh.Status.Replicas
	}
	s.UnavailableReplicas = int32(min(max(sum(l.sets(), size)-int(s.AvailableReplicas), 0), math.MaxInt32))
	c := appsv1.DeploymentCondition{
		Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue,
		Reason: "MinimumReplicasAvailable", Message: "Deployment has minimum availability.",
		LastUpdateTime: metav1.NewTime(l.now), LastTransitionTime: metav1.NewTime(l.now),
	}
	if int(s.AvailableReplicas) < l.want-l.unavailable {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
	}
	setCondition(&s, c)
	return s
}

// terminating adds up the pods on their way out; nil while a set does not say.
func (l *look) terminating() *int32 {
	var n int32
	for _, rs := range l.sets() {
		if rs.Status.TerminatingReplicas == nil {
			return nil
		}
		n += *rs.Status.TerminatingReplicas
	}
	return &n
}

// judge says in s, which is the status to be, whether the rollout is done, or has made
// progress since the last status, or has made none for too long. A rollout that was
// done is not judged again until the next.
func (l *look) judge(s *appsv1.DeploymentStatus) {
	had := condition(s, appsv1.DeploymentProgressing)
	if had != nil && had.Reason == reasonAvailable && s.Replicas == s.UpdatedReplicas {
		return
	}
	who := fmt.Sprintf("Deployment %q", l.d.Name)
	if l.fresh != nil {
		who = fmt.Sprintf("ReplicaSet %q", l.fresh.Name)
	}
	c := l.newCondition(corev1.ConditionTrue, "", "")
	switch {
	case complete(l.d, s):
		c.Reason, c.Message = reasonAvailable, who+" has successfully progressed."
	case progressed(&l.d.Status, s):
		c.Reason, c.Message = "ReplicaSetUpdated", who+" is progressing."
		if had != nil && had.Status == c.Status {
			c.LastTransitionTime = had.LastTransitionTime
		}
		removeCondition(s, c.Type) // for the time of the last update counts here
	case had != nil && had.Reason != reasonAvailable && l.now.After(l.until(had)):
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, reasonTimedOut, who+" has timed out progressing."
	default:
		return
	}
	setCondition(s, c)
}

// until is when the time for the next progress after c is over.
func (l *look) until(c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*l.d.Spec.ProgressDeadlineSeconds) * time.Second)
}

// deadline is when to look again for want of progress; zero if nothing is waited for.
func (l *look) deadline() time.Duration {
	c := condition(&l.d.Status, appsv1.DeploymentProgressing)
	if !hasDeadline(l.d) || c == nil || c.Reason == reasonAvailable || c.Reason == reasonTimedOut {
		return 0
	}
	return max(l.until(c).Sub(l.now), 0) + time.Second // the API's times are whole seconds
}

// failure is why pods cannot be made or deleted, by the fresh set or else by another;
// nil if all can.
func (l *look) failure() *appsv1.DeploymentCondition {
	for _, rs := range l.sets() {
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return &appsv1.DeploymentCondition{
					Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastUpdateTime: c.LastTransitionTime, LastTransitionTime: c.LastTransitionTime,
				}
			}
		}
	}
	return nil
}

// notePause says when a rollout is paused and when it goes on, from which moment on it
// has all of its time again. One that has failed for want of progress stays failed.
func (l *look) notePause() {
	c := condition(&l.d.Status, appsv1.DeploymentProgressing)
	if !hasDeadline(l.d) || c != nil && c.Reason == reasonTimedOut {
		return
	}
	paused := c != nil && c.Reason == reasonPaused
	switch {
	case l.d.Spec.Paused && !paused:
		l.progressing(corev1.ConditionUnknown, reasonPaused, "Deployment is paused")
	case !l.d.Spec.Paused && paused:
		l.progressing(corev1.ConditionUnknown, "DeploymentResumed", "Deployment is resumed")
	}
}

// progressing sets the condition Progressing of l.d.
func (l *look) progressing(status corev1.ConditionStatus, reason, message string) {
	setCondition(&l.d.Status, l.newCondition(status, reason, message))
}

func (l *look) newCondition(status corev1.ConditionStatus, reason, message string) appsv1.DeploymentCondition {
	now := metav1.NewTime(l.now)
	return appsv1.DeploymentCondition{
		Type: appsv1.DeploymentProgressing, Status: status, Reason: reason, Message: message,
		LastUpdateTime: now, LastTransitionTime: now,
	}
}

// hasDeadline tells whether progress is judged at all.
func hasDeadline(d *appsv1.Deployment) bool {
	s := d.Spec.ProgressDeadlineSeconds
	return s != nil && *s != math.MaxInt32
}

// complete tells whether all pods are of d's template and serve, by a status s of d.
func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	return s.UpdatedReplicas == want && s.Replicas == want && s.AvailableReplicas == want && s.ObservedGeneration >= d.Generation
}

// progressed tells whether a rollout has come further between two states.
func progressed(was, is *appsv1.DeploymentStatus) bool {
	return is.UpdatedReplicas > was.UpdatedReplicas || is.Replicas-is.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
		is.ReadyReplicas > was.ReadyReplicas || is.AvailableReplicas > was.AvailableReplicas
}

func condition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

func removeCondition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == t })
}

// setCondition puts c in the place of the condition of its type, unless that has the
// same status and reason.
func setCondition(s *appsv1.DeploymentStatus, c appsv1.DeploymentCondition) {
	if had := condition(s, c.Type); had != nil {
		if had.Status == c.Status && had.Reason == c.Reason {
			return
		}
		if had.Status == c.Status {
			c.LastTransitionTime = had.LastTransitionTime
		}
	}
	removeCondition(s, c.Type)
	s.Conditions = append(s.Conditions, c)
}
