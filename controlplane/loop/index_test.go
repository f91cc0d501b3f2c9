package loop

// Tests of the indexes.

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

func bound(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func sliceOf(namespace, name, service, by string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: by},
	}}
}

// put has the cache of inf show objects.
func put[T any](t *testing.T, inf cache.SharedIndexInformer, objects ...T) {
	t.Helper()
	for _, o := range objects {
		if err := inf.GetIndexer().Update(o); err != nil {
			t.Fatal(err)
		}
	}
}

// named checks the names of what was found.
func named[T metav1.Object](t *testing.T, step, want string) func([]T, error) {
	return func(found []T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, o := range found {
			names = append(names, o.GetName())
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: found %q, want %q", step, got, want)
		}
	}
}

func TestPodsByNode(t *testing.T) {
	inf := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods().Informer()
	put(t, inf, bound("early", "a"), bound("waiting", ""))
	first, err := PodsByNode(inf)
	if err != nil {
		t.Fatal(err)
	}
	second, err := PodsByNode(inf)
	if err != nil {
		t.Fatalf("for a second controller: %v", err)
	}
	expect := func(step, node, want string) {
		t.Helper()
		named[*corev1.Pod](t, step, want)(first(node))
		named[*corev1.Pod](t, step+", for a second controller", want)(second(node))
	}
	expect("what was there before", "a", "early")
	put(t, inf, bound("late", "a"))
	expect("added", "a", "early late")
	expect("other node", "b", "")
	expect("pods of no node", "", "")
	put(t, inf, bound("waiting", "b"))
	expect("bound", "b", "waiting")
	if err := inf.GetIndexer().Delete(bound("late", "a")); err != nil {
		t.Fatal(err)
	}
	expect("deleted", "a", "early")
}

func TestIndexOfStoppedInformer(t *testing.T) {
	inf := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	inf.RunWithContext(ctx)
	if _, err := PodsByNode(inf); err == nil || !strings.HasPrefix(err.Error(), "index by spec.nodeName: ") {
		t.Errorf("got %v", err)
	}
}

func TestSlicesByService(t *testing.T) {
	inf := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Discovery().V1().EndpointSlices().Informer()
	by := func(who string) func(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
		find, err := SlicesByService(inf, who)
		if err != nil {
			t.Fatal(err)
		}
		return find
	}
	ours, theirs, all := by("us"), by("them"), by("")
	put(t, inf,
		sliceOf("ns", "a", "web", "us"), sliceOf("ns", "b", "web", "us"), sliceOf("ns", "c", "web", "them"), sliceOf("ns", "d", "db", "us"),
		sliceOf("other", "e", "web", "us"), sliceOf("ns", "f", "", "us"))
	expect := func(step, want string) func([]*discoveryv1.EndpointSlice, error) {
		return named[*discoveryv1.EndpointSlice](t, step, want)
	}
	expect("ours", "a b")(ours("ns", "web"))
	expect("theirs", "c")(theirs("ns", "web"))
	expect("everybody's", "a b c")(all("ns", "web"))
	expect("of a service that is none", "")(ours("ns", ""))
	put(t, inf, sliceOf("ns", "a", "db", "us"))
	expect("one is another service's now", "b")(ours("ns", "web"))
	expect("one is another service's now", "a d")(ours("ns", "db"))
}
