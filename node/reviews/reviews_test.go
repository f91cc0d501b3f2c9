package reviews

// Tests of who may use a kubelet API, what is asked for it, and how often.

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/node/kubeletapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A plane answers like an API server: the token NAME-token is NAME's, and users may
// what is listed as "USER VERB SUBRESOURCE".
type plane struct {
	*fake.Clientset
	down         bool
	may          []string
	tokens, asks int
}

func newPlane(may ...string) (*plane, *Access) {
	p := &plane{Clientset: fake.NewClientset(), may: may}
	p.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p.tokens++
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if p.down {
			return true, nil, errors.New("no route")
		}
		if name, ok := strings.CutSuffix(r.Spec.Token, "-token"); ok {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: name, Groups: []string{"system:authenticated"}, Extra: map[string]authenticationv1.ExtraValue{"x": {"y"}},
			}}
		}
		return true, r, nil
	})
	p.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p.asks++
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		if p.down {
			return true, nil, errors.New("no route")
		}
		at := r.Spec.ResourceAttributes
		if at.Resource != "nodes" || at.Name != "node-1" || at.Group != "" || !slices.Contains(r.Spec.Groups, "system:authenticated") {
			return true, nil, fmt.Errorf("asked for %v", at)
		}
		r.Status.Allowed = slices.Contains(p.may, r.Spec.User+" "+at.Verb+" "+at.Subresource)
		return true, r, nil
	})
	return p, New(Config{NodeName: "node-1", Tokens: p.AuthenticationV1().TokenReviews(), Access: p.AuthorizationV1().SubjectAccessReviews()})
}

func request(t *testing.T, method, path, token string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "https://node-1"+path, nil)
	r.TLS = &tls.ConnectionState{}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func showing(r *http.Request, name string, groups ...string) *http.Request {
	r.TLS.VerifiedChains = [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: name, Organization: groups}}}}
	return r
}

// status is that of a refusal, or 200.
func status(t *testing.T, err error) int {
	t.Helper()
	var refused *kubeletapi.RefusedError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &refused):
		return refused.Status
	default:
		t.Errorf("not a refusal: %v", err)
		return 0
	}
}

func TestAuthorize(t *testing.T) {
	users := []string{"prom get metrics", "all get proxy", "all create proxy", "pods get pods", "stats get stats", "health get healthz", "config get configz"}
	for _, tt := range []struct {
		method, path, users string
	}{
		{http.MethodGet, "/metrics", "prom"},
		{http.MethodGet, "/metrics/resource", "prom"},
		{http.MethodPost, "/metrics", ""},
		{http.MethodGet, "/metricsx", "all"},
		{http.MethodGet, "/stats/summary", "stats"},
		{http.MethodGet, "/pods", "pods all"},
		{http.MethodGet, "/runningpods/", "pods all"},
		{http.MethodGet, "/healthz/ping", "health all"},
		{http.MethodGet, "/configz", "config all"},
		{http.MethodGet, "/debug/pprof/heap", "all"},
		{http.MethodGet, "/containerLogs/ns/p/c", "all"},
		{http.MethodPost, "/exec/ns/p/c", "all"},
		{http.MethodGet, "/exec/ns/p/c", "all"},
		{http.MethodDelete, "/exec/ns/p/c", ""},
		{http.MethodPut, "/x", ""},
		{http.MethodPatch, "/x", ""},
	} {
		_, a := newPlane(users...)
		for _, name := range []string{"prom", "all", "pods", "stats", "health", "config", "nobody"} {
			want := http.StatusForbidden
			if slices.Contains(strings.Fields(tt.users), name) {
				want = http.StatusOK
			}
			if got := status(t, a.Authorize(request(t, tt.method, tt.path, name+"-token"))); got != want {
				t.Errorf("%s %s by token of %s: %d", tt.method, tt.path, name, got)
			}
			if got := status(t, a.Authorize(showing(request(t, tt.method, tt.path, ""), name))); got != want {
				t.Errorf("%s %s by certificate of %s: %d", tt.method, tt.path, name, got)
			}
		}
	}
	_, a := newPlane(users...)
	for name, token := range map[string]string{"none": "", "bad": "x", "huge": strings.Repeat("x", maxToken+1), "blank": "  "} {
		if got := status(t, a.Authorize(request(t, http.MethodGet, "/metrics", token))); got != http.StatusUnauthorized {
			t.Errorf("token %s: %d", name, got)
		}
	}
	basic := request(t, http.MethodGet, "/metrics", "")
	basic.SetBasicAuth("prom", "prom-token")
	if got := status(t, a.Authorize(basic)); got != http.StatusUnauthorized {
		t.Errorf("a password: %d", got)
	}
}

// The API server and administrators need no answer. Others wait for one, and get 503
// as long as there is none, also if they have been told before.
func TestUnanswered(t *testing.T) {
	p, a := newPlane("prom get metrics")
	p.down = true
	if err := a.Authorize(showing(request(t, http.MethodPost, "/exec/ns/p/c", ""), "kubernetes-admin", "system:masters")); err != nil {
		t.Error(err)
	}
	if p.tokens+p.asks > 0 {
		t.Error("an administrator was asked about")
	}
	for range 2 {
		if got := status(t, a.Authorize(request(t, http.MethodGet, "/metrics", "prom-token"))); got != http.StatusServiceUnavailable {
			t.Errorf("a token: %d", got)
		}
		if got := status(t, a.Authorize(showing(request(t, http.MethodGet, "/metrics", ""), "prom"))); got != http.StatusServiceUnavailable {
			t.Errorf("a certificate: %d", got)
		}
	}
	p.down = false
	if err := a.Authorize(request(t, http.MethodGet, "/metrics", "prom-token")); err != nil {
		t.Error(err)
	}
}

// Answers are remembered for a while, a no for less long, and not for ever.
func TestRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, a := newPlane("prom get metrics")
		ask := func(token string) { _ = a.Authorize(request(t, http.MethodGet, "/metrics", token)) }
		for range 10 {
			ask("prom-token")
			ask("joe-token")
			ask("bad")
		}
		if p.tokens != 3 || p.asks != 2 {
			t.Errorf("%d and %d questions", p.tokens, p.asks)
		}
		p.may = nil
		time.Sleep(badTTL + time.Second)
		ask("bad")
		if p.tokens != 4 {
			t.Errorf("%d questions", p.tokens)
		}
		time.Sleep(allowedTTL)
		if got := status(t, a.Authorize(request(t, http.MethodGet, "/metrics", "prom-token"))); got != http.StatusForbidden {
			t.Errorf("what was allowed once: %d", got)
		}
	})
}

// Made-up tokens cost no more questions than there may be, and those who are known
// already are answered beside them.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, a := newPlane("prom get metrics", "prom get stats")
		known := func() error { return a.Authorize(request(t, http.MethodGet, "/metrics", "prom-token")) }
		if err := known(); err != nil {
			t.Fatal(err)
		}
		codes := map[int]int{}
		for i := range 3 * maxTokens {
			codes[status(t, a.Authorize(request(t, http.MethodGet, "/metrics", fmt.Sprint("made-up ", i))))]++
			if err := known(); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Authorize(showing(request(t, http.MethodGet, "/stats/summary", ""), "prom")); err != nil {
			t.Errorf("someone with a certificate: %v", err)
		}
		if p.tokens > burst || codes[http.StatusUnauthorized]+codes[http.StatusTooManyRequests] != 3*maxTokens || codes[http.StatusTooManyRequests] == 0 {
			t.Errorf("%d questions, %v", p.tokens, codes)
		}
	})
}
