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

// ownLease makes the node the owner of its Lease, so that the Lease is deleted with the
// node. Without a Node object it makes no Lease.
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

// PrepareLease sets the owner and the managed fields of a Lease before it is written.
//
// It clears managedFields: only the node writes the Lease, and comparing them is a tenth of
// the server's cost of a renewal. A list of one empty entry clears them:
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields
func PrepareLease(l *coordinationv1.Lease, node string, uid types.UID) {
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}}
	if len(l.ManagedFields) > 0 {
		l.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	}
}
