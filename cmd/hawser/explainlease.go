// Whether nodes renew their Leases while explain watches. The times in a Lease are by the clock of
// the node, and say nothing if that is wrong.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

const (
	// renewalsPerLease is how often a kubelet renews its Lease within its duration.
	renewalsPerLease = 4
	// maxHear bounds how long a renewal is waited for.
	maxHear = 20 * time.Second
)

// hearFor is how long after its last renewal a Lease certainly is renewed again, with some time for
// the way.
func hearFor(l *coordinationv1.Lease) time.Duration {
	duration := 40 * time.Second
	if s := l.Spec.LeaseDurationSeconds; s != nil {
		duration = time.Duration(*s) * time.Second
	}
	return duration/renewalsPerLease*5/4 + time.Second
}

// hear watches for renewals of Leases, by the names of their nodes, and tells on notes how long.
// It returns for which there was one, and for which there certainly was none.
func hear(ctx context.Context, notes io.Writer, client kubernetes.Interface, leases map[string]*coordinationv1.Lease) (map[string]*bool, error) {
	var o metav1.ListOptions
	var patience time.Duration
	for name, l := range leases {
		if len(leases) == 1 {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		}
		patience = max(patience, min(hearFor(l), maxHear))
	}
	fmt.Fprintf(notes, "Heartbeats and conditions contradict each other: watching for heartbeats, for up to %v\n", patience)
	over := time.NewTimer(patience)
	defer over.Stop()
	w, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	heard := map[string]*bool{}
	for len(heard) < len(leases) {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-over.C:
			for name, l := range leases {
				if heard[name] == nil && hearFor(l) <= maxHear {
					heard[name] = new(false)
				}
			}
			return heard, nil
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil, errors.New("the watch of Leases ended")
			}
			// What is there already comes first.
			l, ok := e.Object.(*coordinationv1.Lease)
			if ok && leases[l.Name] != nil && !l.Spec.RenewTime.Equal(leases[l.Name].Spec.RenewTime) {
				heard[l.Name] = new(true)
			}
		}
	}
	return heard, nil
}
