// This file renews the node's Lease.

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"
)

// renewLease renews the Lease every quarter of its duration until ctx is done. It
// does not depend on the status being written.
func (n *Node) renewLease(ctx context.Context) {
	owner := func(l *coordinationv1.Lease) error { return n.ownLease(ctx, l) }
	lease.NewController(clock.RealClock{}, n.cfg.API, n.cfg.Name, int32(n.cfg.LeaseDuration/time.Second), //nolint:gosec // a few seconds
		n.cfg.CloseConnections, n.cfg.LeaseDuration/4, n.cfg.Name, corev1.NamespaceNodeLease, owner).Run(ctx)
}

// ownLease makes the node the owner of its Lease, so that the Lease goes when the
// node does. Without a node there is no Lease.
func (n *Node) ownLease(ctx context.Context, l *coordinationv1.Lease) error {
	node := n.self.node()
	if node == nil {
		var err error
		if node, err = n.cfg.API.CoreV1().Nodes().Get(ctx, n.cfg.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("find the owner of the lease: %w", err)
		}
	}
	if node.UID == "" {
		return errors.New("find the owner of the lease: the node has no uid")
	}
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.cfg.Name, UID: node.UID}}
	return nil
}
