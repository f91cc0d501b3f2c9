package nodelifecycle

// What a pass does about one node.

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// examine looks at a node and does what follows. What a node deserves goes by
// what it said before this pass had its say: a node that has just been found
// quiet is dealt with by the next pass, when its zone has been judged.
func (r *run) examine(ctx context.Context, s *observation) {
	began := time.Now()
	defer func() { r.metrics.oneNode.Observe(time.Since(began).Seconds()) }()
	if s.err = r.refresh(ctx, s); s.err != nil || s.gone {
		return
	}
	s.rec.settled = true
	s.rec.unready.Store(s.current != "" && s.current != corev1.ConditionTrue)
	if s.current == "" {
		r.queues.remove(s.rec.zone, s.node.Name) // each look at it there takes another node's turn
		if s.first {
			r.untaint(ctx, s) // what is left from a node of that name
		}
		return
	}
	r.act(ctx, s)
	switch {
	case s.observed == corev1.ConditionTrue && s.current != corev1.ConditionTrue:
		r.tellStatus(s.node, nodeNotReady)
		s.mark = true
	case s.first && s.current == corev1.ConditionUnknown, s.status:
		// Whoever found it quiet before us may not have come to its pods.
		s.mark = true
	}
}

// refresh brings the node's conditions up to date, against others who write it.
func (r *run) refresh(ctx context.Context, s *observation) error {
	for try := 1; ; try++ {
		err := r.update(ctx, s)
		if err == nil {
			return nil
		}
		err = r.reach.note(ctx, err)
		if try == healthTries || r.reach.down.Load() || !pause(ctx, healthPause) {
			return err
		}
		fresh, err := r.lookUp(ctx, s.node.Name)
		if apierrors.IsNotFound(err) || (err == nil && fresh.UID != s.node.UID) {
			s.gone = true
			return nil
		}
		if err != nil {
			return r.reach.note(ctx, fmt.Errorf("look up node %s: %w", s.node.Name, err))
		}
		s.node = fresh
	}
}

func (r *run) lookUp(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// update takes note of what is new of the node and makes its conditions Unknown
// if it has been quiet for too long. It asks nobody unless that is so.
func (r *run) update(ctx context.Context, s *observation) error {
	now := time.Now()
	lease, err := r.leases.Get(s.node.Name)
	if err != nil {
		lease = nil // the cache has none
	}
	first := !s.rec.met
	s.rec.hear(s.node, lease, r.arrivals, now)
	if first {
		s.rec.recall(s.node, r.memory.of(s.node.Name), now)
	}
	s.observed = readiness(s.node)
	s.current = s.observed
	if !s.rec.lost(now, r.cfg.Policy) {
		return nil
	}
	conditions, changed := silence(s.node, metav1.NewTime(now))
	if !changed {
		return nil
	}
	if r.reach.down.Load() {
		return errDown
	}
	alive, err := r.renewedMeanwhile(ctx, s, now)
	if alive {
		return nil
	}
	s.current = corev1.ConditionUnknown
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n := *s.node // what is changed of it is a list of our own
	n.Status.Conditions = conditions
	updated, err := r.client.CoreV1().Nodes().UpdateStatus(ctx, &n, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update the status of node %s: %w", n.Name, err)
	}
	if s.observed == "" { // a node that has never spoken was unknown all along
		s.observed = corev1.ConditionUnknown
	}
	s.node, s.status = updated, true
	return nil
}

// renewedMeanwhile asks the server for the Lease of a node that is about to be
// called lost. The cache may be behind, and then it is not the node that is.
func (r *run) renewedMeanwhile(ctx context.Context, s *observation, now time.Time) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := r.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, s.node.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return false, nil // the cache is all that there is to go by
	case err != nil:
		return false, fmt.Errorf("look up the lease of node %s: %w", s.node.Name, err)
	}
	return s.rec.confirm(lease, now), nil
}

// act does what the node's observed readiness calls for, short of a taint that
// it has to wait for.
func (r *run) act(ctx context.Context, s *observation) {
	switch s.observed {
	case corev1.ConditionTrue:
		r.thaw(s.node, s.rec, "the node is ready")
		r.queues.remove(s.rec.zone, s.node.Name)
		r.untaint(ctx, s)
	case corev1.ConditionFalse:
		r.thaw(s.node, s.rec, "the node has said that it is not ready")
		r.queueTaint(ctx, s, corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable)
	case corev1.ConditionUnknown:
		if r.consider(s.node, s.rec) {
			r.queues.remove(s.rec.zone, s.node.Name)
			return
		}
		r.queueTaint(ctx, s, corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady)
	}
}

// queueTaint has the node wait for the NoExecute taint key. If it has the other of
// the two already, its pods are being evicted and it gets the right one at once.
func (r *run) queueTaint(ctx context.Context, s *observation, key, other string) {
	if !evicts(s.node, other) {
		s.taint = !evicts(s.node, key)
		return
	}
	r.rewrite(ctx, s, func(n *corev1.Node, now metav1.Time) ([]corev1.Taint, bool) {
		if verdict(readiness(n)) != key {
			return nil, false // it has changed since; the next pass knows
		}
		return replace(n, corev1.TaintEffectNoExecute, evicting, []string{key}, now)
	})
}

// untaint takes the node's NoExecute taints back.
func (r *run) untaint(ctx context.Context, s *observation) { r.rewrite(ctx, s, withoutNoExecute) }

// rewrite changes the node's taints. If that fails, the next pass finds it undone.
func (r *run) rewrite(ctx context.Context, s *observation, do edit) {
	if _, err := r.editTaints(ctx, s.node, do); err != nil {
		s.err = r.reach.note(ctx, err)
	}
}
