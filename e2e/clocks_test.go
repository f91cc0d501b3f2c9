// Nodes whose clocks are wrong.

package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
)

// A wrongClock is ahead by so much; behind, if that is negative.
type wrongClock struct {
	clock.RealClock
	by time.Duration
}

// Now implements clock.PassiveClock.
func (w wrongClock) Now() time.Time { return w.RealClock.Now().Add(w.by) }

// testClocks has nodes whose clocks are ten minutes off renew their leases. What
// counts is when the server hears of them: they are ready while they do, and given
// up in time when they do not.
func testClocks(t *testing.T, c *cluster) {
	h := c.watch(t)
	joinForeign(t, c, "right") // so that not all nodes are lost at once
	names := map[string]time.Duration{"ahead": 10 * time.Minute, "behind": -10 * time.Minute}
	stop := map[string]func(){}
	for name, by := range names {
		stop[name] = joinForeignAt(t, c, name, wrongClock{by: by})
		h.node(t, name, "may be used", func(n *corev1.Node) bool {
			return is(corev1.NodeReady, corev1.ConditionTrue)(n) && len(n.Spec.Taints) == 0
		})
		if off := time.Until(c.leaseOf(t, name).Spec.RenewTime.Time) - by; off.Abs() > time.Minute {
			t.Errorf("the lease of %s is off by %v more than its clock", name, off)
		}
	}
	// Long enough to be given up, were it by their own word.
	const grace, period = 8 * time.Second, time.Second // of TestOthers
	c.passes(t, 2*int(grace/period))
	for name := range names {
		ready := false
		for _, v := range h.versions(name) {
			now := is(corev1.NodeReady, corev1.ConditionTrue)(v)
			if ready && !now {
				t.Errorf("%s was %v while it renewed its lease", name, condition(v, corev1.NodeReady))
				break
			}
			ready = now
		}
	}
	for name := range names {
		stop[name]()
		// The last word has been heard before now, and the controller saw it no
		// later than in its next pass.
		from := time.Now()
		lost := h.node(t, name, "is Unknown", is(corev1.NodeReady, corev1.ConditionUnknown))
		at := condition(lost, corev1.NodeReady).LastTransitionTime.Time
		timely(t, name+" is Unknown", at, from.Add(grace-2*time.Second).Truncate(time.Second))
	}
	for name := range names {
		h.node(t, name, "is to be left", func(n *corev1.Node) bool { return evicting(n) != nil })
		must(t, c.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
}

// leaseOf is a node's lease, once there is one.
func (c *cluster) leaseOf(t *testing.T, name string) *coordinationv1.Lease {
	t.Helper()
	var l *coordinationv1.Lease
	eventually(t, name+" has a lease", func() error {
		var err error
		if l, err = c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{}); err == nil && l.Spec.RenewTime == nil {
			err = errors.New("never renewed")
		}
		return err
	})
	return l
}

// beat renews a node's lease every second, by its clock, until stop is called.
func beat(t *testing.T, c *cluster, name string, at clock.Clock) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	heartbeat := lease.NewController(at, c.client, name, 8, nil, time.Second, name, corev1.NamespaceNodeLease, nil)
	go func() { defer close(ended); heartbeat.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop
}
