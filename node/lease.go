// This file renews the node's Lease.

package node

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hawser-project/hawser/auth/apiclient"
)

const (
	// leaseAttempts bounds the updates of one renewal.
	leaseAttempts = 5
	// minLeaseBackoff and maxLeaseBackoff bound the wait between two attempts to read or make
	// the Lease.
	minLeaseBackoff, maxLeaseBackoff = 200 * time.Millisecond, 7 * time.Second
	// heartbeatTimeout bounds a request, as the kubelet's does. Two that fail one after the
	// other and a third one fit into the 40 s after which a node is not ready.
	heartbeatTimeout = 10 * time.Second
)

// repeated reports whether so many failures in a row are a reason to close the connections to
// the API server: the second is, and then the fourth, the eighth, and so on. All nodes fail
// together when the servers lose their store, and watches are on these connections.
func repeated(failures int) bool { return failures > 1 && failures&(failures-1) == 0 }

// LeaseConfig configures RenewLease. All but CloseConnections is required.
type LeaseConfig struct {
	API      *apiclient.API
	Node     string
	Duration time.Duration
	// UID is that of the Node object, which owns the Lease. While it fails no Lease is made.
	UID func(ctx context.Context) (types.UID, error)
	// CloseConnections closes the connections to the API server, which may be dead. If there
	// are several servers the next ones should be to another.
	CloseConnections func()
}

// RenewLease renews a node's Lease every quarter of its duration until ctx is done.
//
// It does what k8s.io/component-helpers/apimachinery/lease does for a kubelet. That package needs
// all of client-go's typed clients.
func RenewLease(ctx context.Context, c LeaseConfig) {
	r := &leaseRenewer{cfg: c, api: c.API.Leases(corev1.NamespaceNodeLease)}
	wait.JitterUntilWithContext(ctx, r.renew, c.Duration/4, 0.04, true)
}

// renewLease renews the Lease until ctx is done. It does not depend on the status being
// written.
func (n *Node) renewLease(ctx context.Context) {
	RenewLease(ctx, LeaseConfig{API: n.cfg.API, Node: n.cfg.Name, Duration: n.cfg.LeaseDuration, UID: n.uid, CloseConnections: n.cfg.CloseConnections})
}

// uid is that of the Node object, with which the Lease is deleted.
func (n *Node) uid(ctx context.Context) (types.UID, error) {
	node := n.self.node()
	if node == nil {
		var err error
		if node, err = n.cfg.API.Nodes.Get(ctx, n.cfg.Name, metav1.GetOptions{}); err != nil {
			return "", fmt.Errorf("find the owner of the lease: %w", err)
		}
	}
	return node.UID, nil
}

// A leaseRenewer renews the Lease, which only the node writes: it updates the version of before
// without reading it.
type leaseRenewer struct {
	cfg    LeaseConfig
	api    apiclient.Leases
	latest *coordinationv1.Lease // nil if that is not known
}

// renew renews once. It waits for the API server if the Lease has to be read or made.
func (r *leaseRenewer) renew(ctx context.Context) {
	if r.latest != nil && r.update(ctx) {
		return
	}
	if created := r.ensure(ctx); !created && r.latest != nil {
		r.update(ctx)
	}
}

// ensure reads the Lease, or makes it, and tries until it has or ctx is done. It returns whether
// it has made it.
func (r *leaseRenewer) ensure(ctx context.Context) (created bool) {
	pause := minLeaseBackoff
	for failures := 1; ; failures++ {
		r.latest = nil
		within, cancel := context.WithTimeout(ctx, heartbeatTimeout)
		l, err := r.api.Get(within, r.cfg.Node, metav1.GetOptions{})
		cancel()
		created = apierrors.IsNotFound(err)
		if created {
			if l = r.next(ctx); l == nil {
				return true // the next renewal tries again
			}
			l, err = r.api.Create(ctx, l, metav1.CreateOptions{})
		}
		if err == nil {
			r.latest = l
			return created
		}
		if repeated(failures) && r.cfg.CloseConnections != nil {
			r.cfg.CloseConnections()
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
		pause = min(2*pause, maxLeaseBackoff)
	}
}

// update writes the renewed Lease. After a conflict it reads it anew. If it fails twice it
// closes the connections to the API server, which may be dead.
func (r *leaseRenewer) update(ctx context.Context) bool {
	for i := range leaseAttempts {
		l := r.next(ctx)
		if l != nil {
			within, cancel := context.WithTimeout(ctx, heartbeatTimeout)
			out, err := r.api.Update(within, l, metav1.UpdateOptions{})
			cancel()
			if err == nil {
				r.latest = out
				return true
			}
			if apierrors.IsConflict(err) {
				r.ensure(ctx)
				continue
			}
		}
		if i > 0 && r.cfg.CloseConnections != nil {
			r.cfg.CloseConnections()
		}
	}
	return false
}

// next is the Lease as of now; nil while its owner is not known.
func (r *leaseRenewer) next(ctx context.Context) *coordinationv1.Lease {
	uid, err := r.cfg.UID(ctx)
	if err != nil || uid == "" {
		return nil
	}
	l := r.latest.DeepCopy()
	if l == nil {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Node, Namespace: corev1.NamespaceNodeLease}}
		l.Spec.HolderIdentity = &r.cfg.Node
	}
	l.Spec.LeaseDurationSeconds = new(int32(r.cfg.Duration / time.Second)) //nolint:gosec // a few seconds
	l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	prepareLease(l, r.cfg.Node, uid)
	return l
}

// prepareLease sets the owner and the managed fields of a Lease before it is written.
//
// It clears managedFields: only the node writes the Lease, and comparing them is a tenth of
// the server's cost of a renewal. A list of one empty entry clears them:
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields
func prepareLease(l *coordinationv1.Lease, node string, uid types.UID) {
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}}
	if len(l.ManagedFields) > 0 {
		l.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	}
}
