// An authorizer that has no time for one user.

package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/union"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/rbac"
	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// TestThrottledRequests: who asks too much of the authorizer is told to wait, with
// 429 and for how long, and is served nothing. That the store does not answer the
// authorizer is told as it is; any other failure is one of the server.
func TestThrottledRequests(t *testing.T) {
	answers := map[string]error{
		"greedy":  fmt.Errorf("authorize: %w", apierrors.NewTooManyRequests("one at a time", 7)),
		"unlucky": errors.New("out of order"),
		"cut off": fmt.Errorf("authorize: %w", apierrors.NewServiceUnavailable("no store")),
		"late":    fmt.Errorf("authorize: %w", apierrors.NewTimeoutError("no answer of the store", 3)),
	}
	in, err := startWith(t.TempDir(), func(c *apiserver.Config) {
		first := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", answers[a.GetUser().GetName()]
		})
		// As in the program: the library joins the errors of several authorizers.
		c.Authorizer = must(union.New(union.NamedAuthorizer{AuthorizerName: "first", Authorizer: first},
			union.NamedAuthorizer{AuthorizerName: "second", Authorizer: c.Authorizer}))(t)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	list := func(who string) error {
		config := as(in.config, who, "nobody")
		client := must(kubernetes.NewForConfig(config))(t)
		_, err := client.CoreV1().RESTClient().Get().Resource("configmaps").Namespace("kube-system").MaxRetries(0).Do(t.Context()).Get()
		return err
	}
	err = list("greedy")
	if s, ok := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !ok || s != 7 || !strings.Contains(err.Error(), "one at a time") {
		t.Errorf("greedy: %v, come back after %d s", err, s)
	}
	if err := list("unlucky"); !apierrors.IsInternalError(err) {
		t.Errorf("unlucky: %v", err)
	}
	if err := list("cut off"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("cut off: %v", err)
	}
	if err := list("late"); !apierrors.IsTimeout(err) {
		t.Errorf("late: %v", err)
	}
	if _, err := in.client.CoreV1().ConfigMaps("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("another: %v", err)
	}
}

// TestNotListedYet: until roles have been listed who has one is told to try again, and
// /readyz fails. The server is ready for those parts of the program that list them.
func TestNotListedYet(t *testing.T) {
	t.Parallel()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "ann"}},
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "viewer"},
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"*"}}}}
	objects := informers.NewSharedInformerFactory(fake.NewClientset(binding, role), 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer objects.Shutdown()
	defer cancel()
	roles, listed := &rbac.Authorizer{}, make(chan struct{})
	if err := roles.Use(objects); err != nil {
		t.Fatal(err)
	}
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) {
		c.Listed = listed
		c.Authorizer = must(union.New(union.NamedAuthorizer{AuthorizerName: "first", Authorizer: c.Authorizer},
			union.NamedAuthorizer{AuthorizerName: "RBAC", Authorizer: roles}))(t)
	}))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	ready := func() error {
		return in.client.Discovery().RESTClient().Get().AbsPath("/readyz").MaxRetries(0).Do(t.Context()).Error()
	}
	ann := must(kubernetes.NewForConfig(as(in.config, "ann", "nobody")))(t)
	list := func() error {
		return ann.CoreV1().RESTClient().Get().Resource("configmaps").Namespace("kube-system").MaxRetries(0).Do(t.Context()).Error()
	}
	err := list()
	if s, ok := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !ok || s != 1 {
		t.Errorf("who has a role: %v, come back after %d s", err, s)
	}
	if err := ready(); err == nil || !strings.Contains(err.Error(), "authorizer-informer-sync failed") {
		t.Errorf("/readyz: %v", err)
	}
	objects.Start(ctx.Done())
	objects.WaitForCacheSync(ctx.Done())
	close(listed)
	if err := list(); err != nil {
		t.Errorf("who has a role: %v", err)
	}
	if err := ready(); err != nil {
		t.Errorf("/readyz: %v", err)
	}
}

// TestThrottledImpersonation: an authorizer that has no time lets nobody be somebody else,
// then or later, and lets no handler do what it has not allowed.
func TestThrottledImpersonation(t *testing.T) {
	t.Parallel()
	var busy atomic.Bool
	busy.Store(true)
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) {
		first := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			switch who := a.GetUser().GetName(); {
			case who == "boss", who == "patcher" && a.GetVerb() == "patch":
				return authorizer.DecisionAllow, "", nil
			case busy.Load() && who != "admin":
				return authorizer.DecisionNoOpinion, "", apierrors.NewTooManyRequests("not listed yet", 1)
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
		c.Authorizer = must(union.New(union.NamedAuthorizer{AuthorizerName: "first", Authorizer: first},
			union.NamedAuthorizer{AuthorizerName: "second", Authorizer: c.Authorizer}))(t)
	}))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	config := as(in.config, "nobody", "nobody")
	config.Impersonate.UserName = "boss"
	nobody := must(kubernetes.NewForConfig(config))(t).CoreV1().RESTClient()
	list := func() error {
		return nobody.Get().Resource("secrets").Namespace("kube-system").MaxRetries(0).Do(t.Context()).Error()
	}
	for range 3 {
		if err := list(); !apierrors.IsForbidden(err) {
			t.Errorf("nobody as boss, while the authorizer has no time: %v", err)
		}
	}
	patcher := must(kubernetes.NewForConfig(as(in.config, "patcher", "nobody")))(t)
	_, err := patcher.CoreV1().ConfigMaps("kube-system").Apply(t.Context(), corev1ac.ConfigMap("new", "kube-system"), metav1.ApplyOptions{FieldManager: "test"})
	if err == nil {
		t.Error("who may patch alone has created an object by it")
	}
	if _, err := in.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "new", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the object that was not to be created: %v", err)
	}
	busy.Store(false)
	if err := list(); !apierrors.IsForbidden(err) {
		t.Errorf("nobody as boss, when the authorizer has time again: %v", err)
	}
}

// TestReadyWithoutList: what cannot be listed does not keep a server from being used for
// ever.
func TestReadyWithoutList(t *testing.T) {
	t.Parallel()
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) { c.Listed, c.ReadyBound = make(chan struct{}), time.Second }))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	until(t, "/readyz", func() bool {
		return in.client.Discovery().RESTClient().Get().AbsPath("/readyz").MaxRetries(0).Do(t.Context()).Error() == nil
	})
}
