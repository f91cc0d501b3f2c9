package apitest

// What tests of controllers do over and over: run one, let time pass, and look
// at what it did and said.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// A Controller is what Start runs.
type Controller interface {
	Run(ctx context.Context) error
}

// Start makes a controller with New and runs it, in a bubble of synctest. The
// informers that it asked the factory for have filled their caches by then, and
// watch. stop ends it and them, and returns what Run did; it has to be called.
func Start[C Controller](t testing.TB, client kubernetes.Interface, New func(informers.SharedInformerFactory) (C, error)) (c C, stop func() error) {
	t.Helper()
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	synctest.Wait() // informers have listed, but what changes before they watch would be lost on them
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return c, func() error {
		cancel()
		err := <-done
		f.Shutdown()
		return err
	}
}

// Until lets time pass until d after start, and what that sets off come to an
// end. It is for bubbles of synctest, in which nothing takes any time.
func Until(t testing.TB, start time.Time, d time.Duration) {
	t.Helper()
	left := time.Until(start.Add(d))
	if left < 0 {
		t.Fatalf("it is %v already", time.Since(start))
	}
	<-time.After(left)
	synctest.Wait()
}

// Events takes what r has recorded since the last call, in order.
func Events(r *record.FakeRecorder) []string {
	var out []string
	for len(r.Events) > 0 {
		out = append(out, <-r.Events)
	}
	return out
}

// Pods returns the pods of a namespace by name.
func Pods(t testing.TB, client kubernetes.Interface, namespace string) []*corev1.Pod {
	t.Helper()
	list, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]*corev1.Pod, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Times is when things happened to objects, by name.
type Times map[string][]time.Duration

// String lists them as NAME@TIME, by name.
func (ts Times) String() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(ts)) {
		for _, at := range ts[name] {
			out = append(out, fmt.Sprintf("%s@%v", name, at))
		}
	}
	return strings.Join(out, " ")
}
