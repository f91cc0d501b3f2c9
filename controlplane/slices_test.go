package controlplane

// Tests of whose the slices of a Service are.

import (
	"fmt"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestSlicesHaveAnOwner: slices go with their Service, also one whose labels somebody has
// taken away, which does not make it go.
func TestSlicesHaveAnOwner(t *testing.T) {
	c := workload{startCluster(t)}
	client := c.admin.DiscoveryV1().EndpointSlices(workNamespace)
	c.sees(`created`, "create", "service", "clusterip", "web", "--tcp=80:80")
	service, err := c.admin.CoreV1().Services(workNamespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var name string
	count := func() string {
		all, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		all.Items = slices.DeleteFunc(all.Items, func(s discoveryv1.EndpointSlice) bool { return s.Name == "kubernetes" })
		labelled, owned := 0, 0
		for i := range all.Items {
			s := &all.Items[i]
			if o := metav1.GetControllerOf(s); o != nil && o.Kind == "Service" && o.Name == "web" && o.UID == service.UID {
				owned++
			}
			if s.Labels[discoveryv1.LabelServiceName] == "web" {
				labelled++
				name = s.Name
			}
		}
		return fmt.Sprintf("%d, %d owned, %d labelled", len(all.Items), owned, labelled)
	}
	c.becomes("1, 1 owned, 1 labelled", count)
	if _, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("2, 2 owned, 1 labelled", count)
	c.sees(`deleted`, "delete", "service", "web")
	c.becomes("0, 0 owned, 0 labelled", count)
}
