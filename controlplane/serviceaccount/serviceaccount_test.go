package serviceaccount

// Tests of which namespaces get the account, in fake time.

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func namespace(name string, phase corev1.NamespacePhase) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: phase}}
}

// start runs a controller in a bubble of synctest.
func start(t *testing.T, client kubernetes.Interface) (stop func() error) {
	t.Helper()
	_, stop = apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
		return New(loop.Deps{Client: client, Informers: f}, Config{})
	})
	return stop
}

// settle lets a second pass, which is more than anything here takes.
func settle() {
	<-time.After(time.Second)
	synctest.Wait()
}

// TestAccounts: each namespace that is there to stay has the account, and has it again
// after it was deleted; other accounts are left alone.
func TestAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := func(ns, name string) *corev1.ServiceAccount {
			return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns}}
		}
		client, _, err := apitest.New(
			namespace("bare", corev1.NamespaceActive), namespace("has", corev1.NamespaceActive), namespace("going", corev1.NamespaceTerminating),
			account("bare", "robot"), account("has", Name),
		)
		if err != nil {
			t.Fatal(err)
		}
		stop := start(t, client)
		made := func(when string, want ...string) {
			t.Helper()
			settle()
			var got []string
			for _, a := range client.Actions() {
				if a.Matches("create", "serviceaccounts") {
					got = append(got, a.GetNamespace()+"/"+a.(clienttesting.CreateAction).GetObject().(*corev1.ServiceAccount).Name)
				}
			}
			client.ClearActions()
			if !slices.Equal(got, want) {
				t.Errorf("%s: %q were made, want %q", when, got, want)
			}
		}
		made("first", "bare/default")
		for _, name := range []string{Name, "robot"} {
			if err := client.CoreV1().ServiceAccounts("bare").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		made("deleted", "bare/default")
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace("new", corev1.NamespaceActive), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		made("a new namespace", "new/default")
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestTooLate: a namespace that is on its way out, unseen by the cache, is no fault,
// and a refusal is tried again.
func TestTooLate(t *testing.T) {
	terminating := apierrors.NewForbidden(corev1.Resource("serviceaccounts"), Name, nil)
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, tc := range map[string]struct {
		answer error
		tries  int
	}{
		"terminating":   {terminating, 1},
		"gone":          {apierrors.NewNotFound(corev1.Resource("namespaces"), "ns"), 1},
		"another's":     {apierrors.NewAlreadyExists(corev1.Resource("serviceaccounts"), Name), 1},
		"out of order":  {apierrors.NewInternalError(errors.New("out of order")), 2},
		"not permitted": {apierrors.NewForbidden(corev1.Resource("serviceaccounts"), Name, nil), 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _, err := apitest.New(namespace("ns", corev1.NamespaceActive))
				if err != nil {
					t.Fatal(err)
				}
				tries := 0
				client.PrependReactor("create", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
					tries++
					return tries == 1, nil, tc.answer
				})
				stop := start(t, client)
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
