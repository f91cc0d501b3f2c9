// Tests of the server that a kubeconfig and a join command name.

package main

import (
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

// published is what servers publish for their own service.
func published(addresses ...string) runtime.Object {
	port := int32(6443)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: metav1.NamespaceDefault},
		Ports:      []discoveryv1.EndpointPort{{Port: &port}},
	}
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return slice
}

// TestAdvertised: a join command names all servers, in an order that stays.
func TestAdvertised(t *testing.T) {
	const fallback = "https://127.0.0.1:6443"
	for _, tt := range []struct{ published, want []string }{
		{nil, []string{fallback}},
		{[]string{"192.0.2.2", "2001:db8::1", "192.0.2.1", "192.0.2.2"}, []string{"https://192.0.2.1:6443", "https://192.0.2.2:6443", "https://[2001:db8::1]:6443"}},
	} {
		got, err := advertised(t.Context(), fake.NewClientset(published(tt.published...)), fallback)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, %v; want %v", tt.published, got, err, tt.want)
		}
	}
}

// TestElsewhere: a person's kubeconfig names what is reached from other machines, and a name
// that was chosen is kept.
func TestElsewhere(t *testing.T) {
	client := fake.NewClientset(published("192.0.2.1"))
	for ours, want := range map[string]string{
		"https://127.0.0.1:6443":  "https://192.0.2.1:6443",
		"https://localhost:6443":  "https://192.0.2.1:6443",
		"https://[::1]:6443":      "https://192.0.2.1:6443",
		"127.0.0.1:6443":          "https://192.0.2.1:6443",
		"https://192.0.2.9:6443":  "https://192.0.2.9:6443",
		"https://api.example/hub": "https://api.example/hub",
	} {
		if got, err := elsewhere(t.Context(), client, &rest.Config{Host: ours}); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", ours, got, err, want)
		}
	}
	if got, err := elsewhere(t.Context(), fake.NewClientset(published()), &rest.Config{Host: "https://127.0.0.1:1"}); err != nil || got != "https://127.0.0.1:1" {
		t.Errorf("where nothing is advertised: %s, %v", got, err)
	}
}
