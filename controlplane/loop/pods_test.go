package loop

// Tests of the index of pods by node.

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func bound(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func TestPodsByNode(t *testing.T) {
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	inf := f.Core().V1().Pods().Informer()
	store := inf.GetIndexer()
	for _, p := range []*corev1.Pod{bound("early", "a"), bound("waiting", "")} {
		if err := store.Add(p); err != nil {
			t.Fatal(err)
		}
	}
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
		for _, find := range []func(string) ([]*corev1.Pod, error){first, second} {
			pods, err := find(node)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range pods {
				names = append(names, p.Name)
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != want {
				t.Errorf("%s: node %q has %q, want %q", step, node, got, want)
			}
		}
	}
	expect("what was there before", "a", "early")
	if err := store.Add(bound("late", "a")); err != nil {
		t.Fatal(err)
	}
	expect("added", "a", "early late")
	expect("other node", "b", "")
	expect("pods of no node", "", "")
	if err := store.Update(bound("waiting", "b")); err != nil {
		t.Fatal(err)
	}
	expect("bound", "b", "waiting")
	if err := store.Delete(bound("late", "a")); err != nil {
		t.Fatal(err)
	}
	expect("deleted", "a", "early")
}

func TestPodsByNodeOfStoppedInformer(t *testing.T) {
	inf := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	inf.RunWithContext(ctx)
	if _, err := PodsByNode(inf); err == nil || !strings.HasPrefix(err.Error(), "index pods by node: ") {
		t.Errorf("got %v", err)
	}
}
