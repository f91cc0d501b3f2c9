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

	"github.com/hawser-project/hawser/cmd/internal/explain"
)

func explainFleet(ctx context.Context, out io.Writer, rc *rest.Config, grace time.Duration, output string) error {
	client, clock, err := clocked(rc)
	if err != nil {
		return err
	}
	leases, events := map[string]*coordinationv1.Lease{}, map[string][]corev1.Event{}
	if err = readFleet(ctx, client, leases, events); err != nil {
		return fmt.Errorf("explain fleet: %w", err)
	}
	fleet := explain.Fleet{Time: clock.now()}
	err = eachNode(ctx, client, func(n *corev1.Node) {
		fleet.Add(explain.Objects{Name: n.Name, Now: fleet.Time, Grace: grace, Node: n, Lease: leases[n.Name], Events: events[n.Name]})
	})
	if err != nil {
		return fmt.Errorf("explain fleet: %w", err)
	}
	fleet.Sort()
	return write(out, &fleet, output)
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
	ofEvents := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Events(metav1.NamespaceAll).List(ctx, o)
	}
	for _, reason := range []string{explain.EvictionFrozen, explain.EvictionResumed} {
		only := metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.kind": "Node", "reason": reason}.String()}
		err = pager.New(ofEvents).EachListItem(ctx, only, func(o runtime.Object) error {
			e := o.(*corev1.Event)
			events[e.InvolvedObject.Name] = append(events[e.InvolvedObject.Name], *e)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
