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
	"k8s.io/apimachinery/pkg/types"
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
	PrepareLease(l, n.cfg.Name, node.UID)
	return nil
}

// PrepareLease makes a Lease that is about to be written that of the node with uid.
//
// It also has the server keep no record of who wrote which of its fields: nobody else
// writes them, and to compare them with those recorded is a tenth of what a renewal
// costs the server. A list of one empty entry is how the API is asked to:
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields
func PrepareLease(l *coordinationv1.Lease, node string, uid types.UID) {
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}}
	if len(l.ManagedFields) > 0 {
		l.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	}
}
