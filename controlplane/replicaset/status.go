package replicaset

// What there is, as the status says it.

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// observe returns the status of rs, which had these pods when scaling it went as
// failed says, and when to look again because a pod will have become available
// by then. A zero time means that nothing is only waited for.
func observe(rs *appsv1.ReplicaSet, pods []*corev1.Pod, failed error, now time.Time) (appsv1.ReplicaSetStatus, time.Duration) {
	var active, labelled, ready, available, terminating int32
	var again time.Duration
	template := labels.SelectorFromSet(rs.Spec.Template.Labels)
	for _, p := range pods {
		if children.Terminating(p) {
			terminating++
		}
		if !children.Active(p) {
			continue
		}
		active++
		if template.Matches(labels.Set(p.Labels)) {
			labelled++
		}
		if children.Ready(p) {
			ready++
		}
		ok, in := children.Available(p, time.Duration(rs.Spec.MinReadySeconds)*time.Second, now)
		if ok {
			available++
		}
		if in > 0 && (again == 0 || in < again) {
			again = in
		}
	}
	return appsv1.ReplicaSetStatus{
		Replicas: active, FullyLabeledReplicas: labelled, ReadyReplicas: ready, AvailableReplicas: available,
		TerminatingReplicas: &terminating, ObservedGeneration: rs.Generation,
		Conditions: conditions(rs, int(active), failed, now),
	}, again
}

// conditions returns rs's conditions. A failure stays as it was first seen until
// all goes well again.
func conditions(rs *appsv1.ReplicaSet, active int, failed error, now time.Time) []appsv1.ReplicaSetCondition {
	is := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	had := slices.Clone(rs.Status.Conditions)
	switch there := slices.ContainsFunc(had, is); {
	case failed == nil:
		return slices.DeleteFunc(had, is)
	case there:
		return had
	}
	reason := "FailedCreate"
	if active > wanted(rs) {
		reason = "FailedDelete"
	}
	return append(had, appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now), Reason: reason, Message: children.Message(failed),
	})
}

// write writes the status if it is not so already.
func (c *Controller) write(ctx context.Context, rs *appsv1.ReplicaSet, s appsv1.ReplicaSetStatus) error {
	if equality.Semantic.DeepEqual(rs.Status, s) {
		return nil
	}
	rs = rs.DeepCopy()
	rs.Status = s
	_, err := c.client.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
	return loop.StatusError("replica set "+rs.Name, err)
}
