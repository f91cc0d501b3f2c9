package daemonset

// What there is, as the status says it.

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// observe returns the status, by the pods that there were before anything was done. Of
// two pods on a node the older counts.
func (l *look) observe(collisions *int32) appsv1.DaemonSetStatus {
	s := appsv1.DaemonSetStatus{ObservedGeneration: l.ds.Generation, CollisionCount: collisions, Conditions: l.ds.Status.Conditions}
	for _, at := range l.places {
		switch {
		case !at.should:
			if len(at.pods) > 0 {
				s.NumberMisscheduled++
			}
			continue
		case len(at.pods) > 0:
			s.CurrentNumberScheduled++
			p := at.pods[0]
			if children.Ready(p) {
				s.NumberReady++
			}
			if l.available(p) {
				s.NumberAvailable++
			}
			if l.updated(p) {
				s.UpdatedNumberScheduled++
			}
		}
		s.DesiredNumberScheduled++
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	return s
}

// write writes the status if it is not so already.
func (c *Controller) write(ctx context.Context, ds *appsv1.DaemonSet, s appsv1.DaemonSetStatus) error {
	if equality.Semantic.DeepEqual(ds.Status, s) {
		return nil
	}
	ds = ds.DeepCopy()
	ds.Status = s
	_, err := c.client.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, ds, metav1.UpdateOptions{})
	return loop.StatusError("daemon set "+ds.Name, err)
}
