package admission

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Whoever makes a namespace stricter is told of the pods that are there: also of one that
// was made just before, which a cache of the API server may not have yet.
func TestPodsOfNamespaceAreReadFromStore(t *testing.T) {
	client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}})
	plugin, err := PodSecurity(func(context.Context, string) (*corev1.Namespace, error) { return &corev1.Namespace{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	p := plugin.(*podSecurity)
	p.SetExternalKubeClientSet(client)
	pods, err := p.ListPods(t.Context(), "ns")
	if err != nil || len(pods) != 1 {
		t.Fatalf("%v, %v", pods, err)
	}
	for _, a := range client.Actions() {
		if o := a.(clienttesting.ListActionImpl).ListOptions; o.ResourceVersion != "" {
			t.Errorf("a list as of resource version %q may be one of before", o.ResourceVersion)
		}
	}
}
