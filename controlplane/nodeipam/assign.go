package nodeipam

// What becomes of each node: it is noted, given blocks, or forgotten.

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/loop"
)

const (
	writeTries = 3 // how often a node is written before that counts as a failure
	// remind is how long an event about a node stands for those of its kind that
	// would follow.
	remind = 5 * time.Minute

	reasonEmpty  = "CIDRNotAvailable"
	reasonFailed = "CIDRAssignmentFailed"
	// These two are ours: Kubernetes ends instead.
	reasonForeign = "CIDRNotInClusterCIDR"
	reasonShared  = "CIDRHeldTwice"
)

// sync looks at the node of this name.
func (r *run) sync(ctx context.Context, name string) (time.Duration, error) {
	n, err := r.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		n, err = nil, nil
	}
	if err != nil {
		return 0, err
	}
	blocks, err := r.decide(name, n)
	if err != nil || blocks == nil {
		return 0, err
	}
	return 0, r.outage.Note(r.assign(ctx, n, blocks))
}

// decide brings the ledger up to date with a node, nil if it is gone, and returns
// the blocks that it has to be told of. An error is that there are none.
func (r *run) decide(name string, n *corev1.Node) ([]netip.Prefix, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wakeLocked()
	if n == nil || n.DeletionTimestamp != nil {
		r.ledger.forget(name)
		return nil, nil
	}
	if held := podCIDRs(n); len(held) > 0 {
		r.noteLocked(n, held)
		return nil, nil
	}
	m := r.ledger.member(name, n.UID)
	if m.told {
		return nil, nil // the cache is behind
	}
	if len(m.blocks) == 0 {
		if empty, ok := r.ledger.reserve(name, m); !ok {
			if r.complainLocked(m, n, reasonEmpty) {
				r.log.Warn("no range is left for a node", "node", name, "of", empty.String())
			}
			return nil, loop.Quiet(fmt.Errorf("every block of %s is taken", empty))
		}
	}
	return m.blocks, nil
}

// wakeLocked has the nodes that wait for a free block looked at if something has
// been given back.
func (r *run) wakeLocked() {
	if !r.ledger.freed {
		return
	}
	r.ledger.freed = false
	for name := range r.ledger.waiting {
		r.queue.Add(name)
	}
}

// assign writes blocks into the node. If it may have been written though the
// answer was lost, the blocks stay the node's and the next try is with them.
func (r *run) assign(ctx context.Context, n *corev1.Node, blocks []netip.Prefix) error {
	texts := make([]string, 0, len(blocks))
	for _, c := range blocks {
		texts = append(texts, c.String())
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID}, // not another node of this name
		"spec":     map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return fmt.Errorf("encode the ranges of node %s: %w", n.Name, err)
	}
	for range writeTries {
		_, err = r.client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wakeLocked()
	m := r.ledger.member(n.Name, n.UID)
	switch {
	case err == nil:
		m.told = true
		r.log.Info("node was given its ranges", "node", n.Name, "ranges", texts)
		return nil
	case apierrors.IsNotFound(err):
		r.ledger.forget(n.Name)
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if !loop.Unreachable(err) {
		r.ledger.giveBack(m)
	}
	r.complainLocked(m, n, reasonFailed)
	return fmt.Errorf("write the ranges of node %s: %w", n.Name, err)
}

// complainLocked records an event about a node unless that has been done lately,
// and tells whether it did.
func (r *run) complainLocked(m *member, n *corev1.Node, reason string) bool {
	now := time.Now()
	if m.complained == reason && now.Sub(m.at) < remind {
		return false
	}
	m.complained, m.at = reason, now
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
	r.events.Event(ref, corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", n.Name, reason))
	return true
}
