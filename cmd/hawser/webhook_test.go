package main

// Tests of a service that is asked what users may, and hangs.

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth"
)

// A hanging is a service that never answers, and the filter that asks it.
type hanging struct {
	asked, left chan struct{} // for each question
	filter      http.Handler
}

// hang starts one. bob may read pods by a role.
func hang(t *testing.T, timeout time.Duration) *hanging {
	t.Helper()
	h := &hanging{asked: make(chan struct{}, 10), left: make(chan struct{}, 10)}
	service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a server learns that its client has gone once it has read all
		h.asked <- struct{}{}
		<-r.Context().Done()
		h.left <- struct{}{}
	}))
	t.Cleanup(service.Close)
	file := kubeconfigAt(t, service.URL)
	o := accessOptions{modes: []string{modeNode, modeRBAC, modeWebhook}, webhookConfig: file, webhookTimeout: timeout}
	z, err := o.newAccess(kubeauth.NewObjects(), new(auth.Files))
	if err != nil {
		t.Fatal(err)
	}
	f := informers.NewSharedInformerFactory(fake.NewClientset(
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"pods"}}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "b"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "r"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "bob"}},
		},
	), 0)
	if err := z.use(f); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	t.Cleanup(func() {
		cancel()
		f.Shutdown()
	})
	h.filter = filters.WithAuthorization(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), z, scheme.Codecs)
	return h
}

// list is the answer to a user who lists pods.
func (h *hanging) list(ctx context.Context, name string, groups ...string) (int, string) {
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: name, Groups: groups})
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{IsResourceRequest: true, Verb: "list", APIVersion: "v1", Resource: "pods", Path: "/api/v1/pods"})
	w := httptest.NewRecorder()
	h.filter.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/pods", nil))
	return w.Code, w.Body.String()
}

// While the service hangs, who needs no answer of it is served without being kept
// waiting, and a request that is given up asks no longer.
func TestAuthorizationWebhookHangs(t *testing.T) {
	h := hang(t, 0)
	ctx, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { h.list(ctx, "eve") })
	<-h.asked
	for name, groups := range map[string][]string{"root": {user.SystemPrivilegedGroup}, "bob": nil} {
		if code, body := h.list(t.Context(), name, groups...); code != http.StatusOK {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	giveUp()
	wg.Wait()
	<-h.left
	if n := len(h.asked) + len(h.left); n > 0 {
		t.Errorf("%d more questions", n)
	}
}

// Who is allowed by the service alone is refused once it has not answered in time, and
// learns nothing of where it is.
func TestAuthorizationWebhookTimeout(t *testing.T) {
	h := hang(t, 2*time.Second)
	code, body := h.list(t.Context(), "eve")
	if code != http.StatusForbidden || !strings.Contains(body, `User \"eve\" cannot list resource \"pods\"`) || !strings.Contains(body, "does not answer") || strings.Contains(body, "127.0.0.1") {
		t.Errorf("%d %s", code, body)
	}
	<-h.asked
	<-h.left
	if n := len(h.asked); n > 0 {
		t.Errorf("asked %d times more", n)
	}
}
