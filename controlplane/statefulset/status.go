package statefulset

// What there is, as the status says it.

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// observe returns the status, by the pods that there were before anything was done. Once
// all are ready and of the present template, that is the current one.
func (l *look) observe(collisions *int32) appsv1.StatefulSetStatus {
	s := appsv1.StatefulSetStatus{
		ObservedGeneration: l.set.Generation, CollisionCount: collisions, Conditions: l.set.Status.Conditions,
		CurrentRevision: l.current.Name, UpdateRevision: l.update.Name,
	}
	if s.CollisionCount == nil {
		s.CollisionCount = ptr.To[int32](0)
	}
	for _, p := range l.pods {
		if _, ok := ordinal(l.set.Name, p.Name); !ok {
			continue
		}
		s.Replicas++
		if p.DeletionTimestamp == nil {
			if children.Ready(p) {
				s.ReadyReplicas++
			}
			if l.available(p) {
				s.AvailableReplicas++
			}
			if revisionOf(p) == l.current.Name {
				s.CurrentReplicas++
			}
			if !l.outdated(p) {
				s.UpdatedReplicas++
			}
		}
	}
	if s.UpdatedReplicas == s.Replicas && s.ReadyReplicas == s.Replicas && int(s.Replicas) == l.want {
		s.CurrentRevision, s.CurrentReplicas = s.UpdateRevision, s.UpdatedReplicas
	}
	return s
}

// write writes the status if it is not so already.
func (c *Controller) write(ctx context.Context, set *appsv1.StatefulSet, s appsv1.StatefulSetStatus) error {
	if equality.Semantic.DeepEqual(set.Status, s) {
		return nil
	}
	set = set.DeepCopy()
	set.Status = s
	_, err := c.client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	return loop.StatusError("stateful set "+set.Name, err)
}
