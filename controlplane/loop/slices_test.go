package loop

// Tests of the index of EndpointSlices by Service.

import (
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func sliceOf(namespace, name, service, by string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: by},
	}}
}

func TestSlicesByService(t *testing.T) {
	inf := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Discovery().V1().EndpointSlices().Informer()
	ours, err := SlicesByService(inf, "us")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := SlicesByService(inf, "them")
	if err != nil {
		t.Fatalf("for a second controller: %v", err)
	}
	all, err := SlicesByService(inf, "")
	if err != nil {
		t.Fatal(err)
	}
	store := inf.GetIndexer()
	for _, s := range []*discoveryv1.EndpointSlice{
		sliceOf("ns", "a", "web", "us"), sliceOf("ns", "b", "web", "us"), sliceOf("ns", "c", "web", "them"), sliceOf("ns", "d", "db", "us"),
		sliceOf("other", "e", "web", "us"), sliceOf("ns", "f", "", "us"),
	} {
		if err := store.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(step string, find func(namespace, service string) ([]*discoveryv1.EndpointSlice, error), service, want string) {
		t.Helper()
		found, err := find("ns", service)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range found {
			names = append(names, s.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: service %q has %q, want %q", step, service, got, want)
		}
	}
	expect("ours", ours, "web", "a b")
	expect("theirs", theirs, "web", "c")
	expect("everybody's", all, "web", "a b c")
	expect("of a service that is none", ours, "", "")
	if err := store.Update(sliceOf("ns", "a", "db", "us")); err != nil {
		t.Fatal(err)
	}
	expect("one is another service's now", ours, "web", "b")
	expect("one is another service's now", ours, "db", "a d")
}
