// Tests of what the clients ask a server.

package apiclient

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// TestRequests: each call is the request that client-go's typed client would make.
func TestRequests(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if len(body) > 0 && r.Method != http.MethodPatch && r.Header.Get("Content-Type") != protobuf {
			t.Errorf("%s %s has a body of type %q", r.Method, r.URL, r.Header.Get("Content-Type"))
		}
		asked = append(asked, r.Method+" "+r.URL.String())
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`) // the client reads it
	}))
	defer s.Close()
	api, err := New(&rest.Config{Host: s.URL, QPS: 1000, Burst: 1000, ContentConfig: rest.ContentConfig{ContentType: protobuf}}, s.Client())
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	each := func(path string, f func(context.Context) (any, error)) {
		t.Helper()
		want = append(want, path)
		if _, err := f(t.Context()); !apierrors.IsConflict(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	each("GET /api/v1/nodes/n", func(ctx context.Context) (any, error) { return api.Nodes.Get(ctx, "n", metav1.GetOptions{}) })
	each("PATCH /api/v1/nodes/n/status", func(ctx context.Context) (any, error) {
		return api.Nodes.Patch(ctx, "n", types.StrategicMergePatchType, []byte("{}"), metav1.PatchOptions{}, "status")
	})
	each("GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn", func(ctx context.Context) (any, error) {
		return api.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n"})
	})
	each("GET /api/v1/pods?watch=true", func(ctx context.Context) (any, error) { return api.Pods("").Watch(ctx, metav1.ListOptions{}) })
	each("DELETE /api/v1/namespaces/a/pods/p", func(ctx context.Context) (any, error) {
		return nil, api.Pods("a").Delete(ctx, "p", metav1.DeleteOptions{})
	})
	each("POST /api/v1/namespaces/a/events", func(ctx context.Context) (any, error) {
		return api.Events("a").Create(ctx, &corev1.Event{}, metav1.CreateOptions{})
	})
	each("GET /api/v1/namespaces/a/configmaps/c", func(ctx context.Context) (any, error) {
		return api.ConfigMaps("a").Get(ctx, "c", metav1.GetOptions{})
	})
	each("GET /api/v1/namespaces/a/secrets/s", func(ctx context.Context) (any, error) {
		return api.Secrets("a").Get(ctx, "s", metav1.GetOptions{})
	})
	each("POST /api/v1/namespaces/a/serviceaccounts/s/token", func(ctx context.Context) (any, error) {
		return api.CreateToken(ctx, "a", "s", &authenticationv1.TokenRequest{})
	})
	each("PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n", func(ctx context.Context) (any, error) {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		return api.Leases(corev1.NamespaceNodeLease).Update(ctx, l, metav1.UpdateOptions{})
	})
	each("POST /apis/certificates.k8s.io/v1/certificatesigningrequests", func(ctx context.Context) (any, error) {
		return api.CSRs.Create(ctx, &certificatesv1.CertificateSigningRequest{}, metav1.CreateOptions{})
	})
	each("POST /apis/authentication.k8s.io/v1/tokenreviews", func(ctx context.Context) (any, error) {
		return api.TokenReviews.Create(ctx, &authenticationv1.TokenReview{}, metav1.CreateOptions{})
	})
	each("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(ctx context.Context) (any, error) {
		return api.AccessReviews.Create(ctx, &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
	})
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

// TestEventsAreSentOnce: who creates or patches an event learns at once that the server has no room for it.
func TestEventsAreSentOnce(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","details":{"retryAfterSeconds":7},"code":429}`) // the client reads it
	}))
	defer s.Close()
	api, err := New(&rest.Config{Host: s.URL}, s.Client())
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() (*corev1.Event, error){
		"create": func() (*corev1.Event, error) {
			return api.Events("a").Create(t.Context(), &corev1.Event{}, metav1.CreateOptions{})
		},
		"patch": func() (*corev1.Event, error) {
			return api.Events("a").Patch(t.Context(), "e", types.StrategicMergePatchType, []byte("{}"), metav1.PatchOptions{})
		},
	} {
		asked = 0
		_, err := f()
		if seconds, ok := apierrors.SuggestsClientDelay(err); asked != 1 || !ok || seconds != 7 {
			t.Errorf("%s: %d requests, and an error that asks to wait for %d s: %v", name, asked, seconds, err)
		}
	}
}
