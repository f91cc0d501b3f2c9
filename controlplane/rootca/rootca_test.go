package rootca

// Tests of who gets the ConfigMap, and gets it back, in fake time.

import (
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const authority = "-----BEGIN CERTIFICATE-----\n"

func namespace(name string, phase corev1.NamespacePhase) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: phase}}
}

func configMap(ns, name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns, Labels: map[string]string{"mine": "1"}}, Data: data}
}

// settle lets a second pass, which is more than anything here takes.
func settle() {
	<-time.After(time.Second)
	synctest.Wait()
}

// TestPublished: every namespace that is there to stay has the authority, no other
// data beside it, and what is right is left alone.
func TestPublished(t *testing.T) {
	right, stale := map[string]string{Key: authority}, map[string]string{Key: "old", "other": "x"}
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(
			namespace("bare", corev1.NamespaceActive), namespace("stale", corev1.NamespaceActive),
			namespace("right", corev1.NamespaceActive), namespace("going", corev1.NamespaceTerminating),
			configMap("stale", Name, stale), configMap("right", Name, right), configMap("bare", "another", stale),
		)
		if err != nil {
			t.Fatal(err)
		}
		_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Client: client, Informers: f}, Config{CA: func() []byte { return []byte(authority) }})
		})
		writes := func() (out []string) {
			t.Helper()
			settle()
			for _, a := range client.Actions() {
				if a.GetResource().Resource == "configmaps" && !slices.Contains([]string{"list", "watch", "get"}, a.GetVerb()) {
					out = append(out, a.GetVerb()+" "+a.GetNamespace())
				}
			}
			client.ClearActions()
			slices.Sort(out)
			return out
		}
		published := func(ns string) {
			t.Helper()
			m, err := client.CoreV1().ConfigMaps(ns).Get(t.Context(), Name, metav1.GetOptions{})
			if err != nil || !maps.Equal(m.Data, right) {
				t.Errorf("%s: %v, %v", ns, m, err)
			}
		}
		if got, want := writes(), []string{"create bare", "update stale"}; !slices.Equal(got, want) {
			t.Errorf("first: %q, want %q", got, want)
		}
		for _, ns := range []string{"bare", "stale", "right"} {
			published(ns)
		}
		if m, err := client.CoreV1().ConfigMaps("stale").Get(t.Context(), Name, metav1.GetOptions{}); err != nil || m.Labels["mine"] != "1" {
			t.Errorf("somebody else's label is gone: %v, %v", m, err)
		}
		client.ClearActions()

		// What others do to it is undone, and a new namespace is given it.
		if err := client.CoreV1().ConfigMaps("bare").Delete(t.Context(), Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, want := writes(), []string{"create bare", "delete bare"}; !slices.Equal(got, want) {
			t.Errorf("deleted: %q, want %q", got, want)
		}
		changed, err := client.CoreV1().ConfigMaps("right").Get(t.Context(), Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		changed.Data = stale
		if _, err := client.CoreV1().ConfigMaps("right").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, want := writes(), []string{"update right", "update right"}; !slices.Equal(got, want) {
			t.Errorf("changed: %q, want %q", got, want)
		}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace("new", corev1.NamespaceActive), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, want := writes(), []string{"create new"}; !slices.Equal(got, want) {
			t.Errorf("new namespace: %q, want %q", got, want)
		}
		for _, ns := range []string{"bare", "right", "new"} {
			published(ns)
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestReplaced: another authority is in every namespace at once, and nobody is told of
// any when the controller has ended.
func TestReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(namespace("one", corev1.NamespaceActive), namespace("two", corev1.NamespaceActive))
		if err != nil {
			t.Fatal(err)
		}
		var now atomic.Value
		var tell func()
		now.Store("old")
		_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Client: client, Informers: f}, Config{
				CA:      func() []byte { return []byte(now.Load().(string)) },
				Changed: func(f func()) func() { tell = f; return func() { tell = nil } },
			})
		})
		for _, want := range []string{"old", "new"} {
			if want != now.Swap(want) {
				tell()
			}
			settle()
			for _, ns := range []string{"one", "two"} {
				if m, err := client.CoreV1().ConfigMaps(ns).Get(t.Context(), Name, metav1.GetOptions{}); err != nil || m.Data[Key] != want {
					t.Errorf("%s: %v, %v, want %s", ns, m, err, want)
				}
			}
		}
		if err := stop(); err != nil || tell != nil {
			t.Errorf("Run: %v; told when it has ended: %t", err, tell != nil)
		}
	})
}

// TestTooLate: a namespace that is on its way out, unseen by the cache, is no fault,
// and a refusal is tried again.
func TestTooLate(t *testing.T) {
	terminating := apierrors.NewForbidden(corev1.Resource("configmaps"), Name, nil)
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, tc := range map[string]struct {
		answer error
		tries  int
	}{
		"terminating":   {terminating, 1},
		"gone":          {apierrors.NewNotFound(corev1.Resource("namespaces"), "ns"), 1},
		"another's":     {apierrors.NewAlreadyExists(corev1.Resource("configmaps"), Name), 1},
		"out of order":  {apierrors.NewInternalError(errors.New("out of order")), 2},
		"not permitted": {apierrors.NewForbidden(corev1.Resource("configmaps"), Name, nil), 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _, err := apitest.New(namespace("ns", corev1.NamespaceActive))
				if err != nil {
					t.Fatal(err)
				}
				tries := 0
				client.PrependReactor("create", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
					tries++
					return tries < tc.tries || tc.tries == 1, nil, tc.answer
				})
				_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
					return New(loop.Deps{Client: client, Informers: f}, Config{CA: func() []byte { return []byte(authority) }})
				})
				settle()
				if err := stop(); err != nil {
					t.Errorf("Run: %v", err)
				}
				if tries != tc.tries {
					t.Errorf("tried %d times, want %d", tries, tc.tries)
				}
			})
		})
	}
}

func TestNoAuthority(t *testing.T) {
	if _, err := New(loop.Deps{}, Config{}); err == nil {
		t.Error("accepted")
	}
}
