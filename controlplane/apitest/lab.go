package apitest

// What tests of controllers do over and over: run one, let time pass, and look
// at what it did and said.

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
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

// A Lab is a server, a client of it that can be made to fail, and what a controller
// did there. It is for bubbles of synctest.
type Lab struct {
	testing.TB
	Client *fake.Clientset
	Server *Server
	Start  time.Time     // when it was made; a test may set it to another beginning
	Said   *bytes.Buffer // for the controller to write to
	Stop   func()        // ends the controller that Run has started last; nil before

	mu    sync.Mutex
	times Times                                   // guarded by mu
	fail  func(verb, resource, name string) error // guarded by mu
}

// NewLab makes a lab with objs. Observe, if it is not nil, sees each request that
// names an object and does not fail.
func NewLab(t testing.TB, observe func(l *Lab, a clienttesting.Action), objs ...runtime.Object) *Lab {
	t.Helper()
	client, server, err := New(objs...)
	if err != nil {
		t.Fatal(err)
	}
	l := &Lab{TB: t, Client: client, Server: server, Start: time.Now(), Said: &bytes.Buffer{}, times: Times{}}
	client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		named, ok := a.(interface{ GetName() string })
		if !ok {
			return false, nil, nil
		}
		l.mu.Lock()
		fail := l.fail
		l.mu.Unlock()
		if fail != nil {
			if err := fail(a.GetVerb(), a.GetResource().Resource, named.GetName()); err != nil {
				return true, nil, err
			}
		}
		if observe != nil {
			observe(l, a)
		}
		return false, nil, nil
	})
	return l
}

// Run makes a controller with New and starts it in l; see Start.
func Run[C Controller](l *Lab, New func(informers.SharedInformerFactory) (C, error)) C {
	l.Helper()
	c, stop := Start(l, l.Client, New)
	l.Stop = func() { l.Must(stop()) }
	return c
}

// At lets time pass until d after Start; see Until.
func (l *Lab) At(d time.Duration) {
	l.Helper()
	Until(l, l.Start, d)
}

// Must fails the test upon an error.
func (l *Lab) Must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// Failing has requests that name an object answered with the errors of f; nil lets
// all be. It may be called at any time.
func (l *Lab) Failing(f func(verb, resource, name string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = f
}

// Note notes that something happens to an object now.
func (l *Lab) Note(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times[name] = append(l.times[name], time.Since(l.Start))
}

// Noted returns what has been noted.
func (l *Lab) Noted() Times {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.times)
}
