// hawser explain fleet: what the API has about all nodes.

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/cmd/internal/explain"
)

func explainFleet(ctx context.Context, out io.Writer, rc *rest.Config, of explainFlags) error {
	client, clock, err := clocked(rc)
	if err != nil {
		return err
	}
	fleet, doubtful, err := lookAtFleet(ctx, client, clock, of.grace, nil)
	if err != nil {
		return fmt.Errorf("explain fleet: %w", err)
	}
	if len(doubtful) > 0 {
		heard, err := hear(ctx, of.notes, client, doubtful)
		if err != nil { // dates are all that there is
			fmt.Fprintln(of.notes, "Heartbeats cannot be watched:", err)
		} else if again, _, err := lookAtFleet(ctx, client, clock, of.grace, heard); err != nil {
			fmt.Fprintln(of.notes, "This is from before:", err) // and better than nothing
		} else {
			fleet = again
		}
	}
	fleet.Sort()
	return write(out, fleet, of.output)
}

// lookAtFleet reads what the API has about all nodes. It also returns the Leases of those about
// whose heartbeats there is a doubt.
func lookAtFleet(ctx context.Context, client kubernetes.Interface, clock *serverClock, grace time.Duration, heard map[string]*bool) (*explain.Fleet, map[string]*coordinationv1.Lease, error) {
	leases, events := map[string]*coordinationv1.Lease{}, map[string][]corev1.Event{}
	if err := readFleet(ctx, client, leases, events); err != nil {
		return nil, nil, err
	}
	revoked, err := readRevoked(ctx, client)
	if err != nil {
		return nil, nil, err
	}
	away, err := readAbsences(ctx, client)
	if err != nil {
		return nil, nil, err
	}
	fleet, doubtful := &explain.Fleet{Time: clock.now()}, map[string]*coordinationv1.Lease{}
	err = eachNode(ctx, client, func(n *corev1.Node) {
		o := explain.Objects{Name: n.Name, Now: fleet.Time, Grace: grace, Node: n, Lease: leases[n.Name], Events: events[n.Name], Heard: heard[n.Name]}
		o.Away = away.of(n)
		bar(&o, revoked[n.Name])
		if explain.Doubtful(o) {
			doubtful[n.Name] = o.Lease
		}
		fleet.Add(o)
	})
	return fleet, doubtful, err
}

// readRevoked reads which names are revoked, for those who may know.
func readRevoked(ctx context.Context, client kubernetes.Interface) (map[string]*nodekeys.Record, error) {
	revoked := map[string]*nodekeys.Record{}
	err := nodekeys.NewBook(client).Each(ctx, func(r *nodekeys.Record) {
		if r.Revoked != nil {
			revoked[r.Name] = r
		}
	})
	if err != nil { // what else there is to tell is better than nothing
		return nil, ctx.Err()
	}
	return revoked, nil
}

// readFleet reads the leases of nodes, and the events about evictions from them.
func readFleet(ctx context.Context, client kubernetes.Interface, leases map[string]*coordinationv1.Lease, events map[string][]corev1.Event) error {
	ofLeases := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, o)
	}
	err := pager.New(ofLeases).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		l := o.(*coordinationv1.Lease)
		leases[l.Name] = l
		return nil
	})
	if err != nil {
		return err
	}
	for _, reason := range []string{explain.EvictionFrozen, explain.EvictionResumed} {
		only := metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.kind": "Node", "reason": reason}.String()}
		err = eachEvent(ctx, client, only, func(e *corev1.Event) {
			events[e.InvolvedObject.Name] = append(events[e.InvolvedObject.Name], *e)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
