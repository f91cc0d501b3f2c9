// Who gets in, what the server says about itself, and questions asked of it.

package apiserver_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// certificateRequest is a PEM certificate request.
func certificateRequest(t *testing.T) []byte {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "joe"}}, key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// anonymous gets path without saying who asks.
func anonymous(t *testing.T, path string) (int, string) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must(os.ReadFile(shared.config.CAFile))(t))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
	defer transport.CloseIdleConnections()
	req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, shared.config.Host+path, nil))(t)
	resp := must((&http.Client{Transport: transport}).Do(req))(t)
	defer resp.Body.Close()
	return resp.StatusCode, string(must(io.ReadAll(resp.Body))(t))
}

func TestOpenPaths(t *testing.T) {
	for path, want := range map[string]int{
		"/healthz": 200, "/livez": 200, "/readyz": 200, "/readyz?verbose": 200, "/readyz/etcd": 200, "/readyz/built-in-objects": 200, "/version": 200,
		"/": 401, "/api": 401, "/apis": 401, "/metrics": 401, "/openapi/v2": 401, "/versions": 401, "/healthzz": 401,
		"/api/v1/namespaces": 401, "/debug/pprof/": 401, "/configz": 401, "/version/../api/v1/secrets": 401,
		"/healthz/../x": 401, "//healthz": 401, "/healthz/..": 401, "/healthz/%2e%2e/metrics": 401, "/healthz%2f..%2fmetrics": 401, "/livez/": 401, "/livez//etcd": 401,
		"/readyz/./etcd": 401, "/healthz/%2E%2E/api/v1/secrets": 401, "/%68ealthz/../metrics": 401, "/healthz;/../metrics": 401,
	} {
		if code, body := anonymous(t, path); code != want {
			t.Errorf("%s: %d %.80s", path, code, body)
		}
	}
}

func TestStrangersAreRefused(t *testing.T) {
	stranger := must(kubernetes.NewForConfig(as(shared.config, "eve", "nobody")))(t)
	_, err := stranger.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "eve" cannot list resource "secrets"`) {
		t.Errorf("%v", err)
	}
	// The loopback token is nobody else's to guess, and no name makes one of it.
	loopback := must(kubernetes.NewForConfig(as(shared.config, "system:apiserver", "nobody")))(t)
	if _, err := loopback.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("%v", err)
	}
}

func TestVersion(t *testing.T) {
	v := must(shared.client.Discovery().ServerVersion())(t)
	if v.GitVersion != "v1.37.2+hawser" || v.Major != "1" || v.Minor != "37" {
		t.Errorf("%+v", v)
	}
}

func TestDiscovery(t *testing.T) {
	_, lists, err := shared.client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]metav1.APIResource{}
	for _, l := range lists {
		for _, r := range l.APIResources {
			found[l.GroupVersion+" "+r.Name] = r
		}
	}
	for _, want := range []string{
		"v1 namespaces", "v1 namespaces/status", "v1 namespaces/finalize", "v1 nodes", "v1 nodes/status", "v1 pods", "v1 pods/status",
		"v1 pods/binding", "v1 pods/eviction", "v1 pods/ephemeralcontainers", "v1 pods/resize", "v1 bindings", "v1 events", "v1 secrets",
		"v1 persistentvolumeclaims/status", "v1 services/status", "v1 replicationcontrollers/scale",
		"apps/v1 deployments", "apps/v1 deployments/scale", "apps/v1 statefulsets/status", "batch/v1 cronjobs", "batch/v1 jobs/status",
		"certificates.k8s.io/v1 certificatesigningrequests/approval", "coordination.k8s.io/v1 leases", "discovery.k8s.io/v1 endpointslices",
		"events.k8s.io/v1 events", "policy/v1 poddisruptionbudgets/status", "rbac.authorization.k8s.io/v1 clusterrolebindings",
		"scheduling.k8s.io/v1 priorityclasses", "node.k8s.io/v1 runtimeclasses", "storage.k8s.io/v1 csinodes", "networking.k8s.io/v1 ingresses",
		"v1 pods/log", "v1 pods/exec", "v1 pods/portforward", "v1 nodes/proxy", "v1 services/proxy",
		"authentication.k8s.io/v1 tokenreviews", "authentication.k8s.io/v1 selfsubjectreviews", "authorization.k8s.io/v1 selfsubjectaccessreviews",
	} {
		if _, ok := found[want]; !ok {
			t.Errorf("not served: %s", want)
		}
	}
	for _, name := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		if r := found["admissionregistration.k8s.io/v1 "+name]; strings.Join(r.Categories, "") != "api-extensions" {
			t.Errorf("%s are of the categories %v", name, r.Categories)
		}
	}
	if r := found["v1 pods"]; r.SingularName != "pod" || strings.Join(r.ShortNames, "") != "po" || strings.Join(r.Categories, "") != "all" || !r.Namespaced {
		t.Errorf("pods: %+v", r)
	}
	if r := found["apps/v1 deployments/scale"]; r.Group != "autoscaling" || r.Kind != "Scale" {
		t.Errorf("scale: %+v", r)
	}
}

func TestOpenAPI(t *testing.T) {
	client := shared.client.Discovery().RESTClient()
	for path, want := range map[string]string{
		"/openapi/v2": `"io.k8s.api.core.v1.Pod"`, "/openapi/v3": `"apis/apps/v1"`, "/openapi/v3/api/v1": `"io.k8s.api.core.v1.PodSpec"`,
		"/openapi/v3/apis/events.k8s.io/v1": `"io.k8s.api.events.v1.Event"`,
	} {
		body, err := client.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context())
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %v, %.100s", path, err, body)
		}
		if strings.Contains(string(body), "__internal") {
			t.Errorf("%s speaks of internal versions", path)
		}
	}
}

func TestMetrics(t *testing.T) {
	body, err := shared.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil || !strings.Contains(string(body), "apiserver_request_total") {
		t.Errorf("%v, %.100s", err, body)
	}
}

func TestReviews(t *testing.T) {
	ctx := t.Context()
	joe := must(kubernetes.NewForConfig(as(shared.config, "joe", "testers")))(t)
	self := must(joe.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}))(t)
	if self.Status.UserInfo.Username != "joe" || self.CreationTimestamp.IsZero() {
		t.Errorf("whoami: %+v", self)
	}
	for token, want := range map[string]string{"joe/testers": "joe", "garbage": ""} {
		r := must(shared.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{}))(t)
		if r.Status.User.Username != want || r.Status.Authenticated != (want != "") {
			t.Errorf("token %s: %+v", token, r.Status)
		}
	}
	attributes := &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "get", Resource: "pods"}
	own := must(joe.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
	}, metav1.CreateOptions{}))(t)
	if !own.Status.Allowed {
		t.Errorf("own: %+v", own.Status)
	}
	for group, want := range map[string]bool{"testers": true, "others": false} {
		r := must(shared.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: attributes, User: "ann", Groups: []string{group}},
		}, metav1.CreateOptions{}))(t)
		if r.Status.Allowed != want {
			t.Errorf("%s: %+v", group, r.Status)
		}
		l := must(shared.client.AuthorizationV1().LocalSubjectAccessReviews("default").Create(ctx, &authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
			Spec:       authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: attributes, User: "ann", Groups: []string{group}},
		}, metav1.CreateOptions{}))(t)
		if l.Status.Allowed != want {
			t.Errorf("local, %s: %+v", group, l.Status)
		}
	}
	_, err := shared.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("an empty review: %v", err)
	}
	for what, want := range map[string]struct {
		fields *authorizationv1.FieldSelectorAttributes
		labels *authorizationv1.LabelSelectorAttributes
	}{
		"spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: \"a=b\": may not specified at the same time as requirements": {
			fields: &authorizationv1.FieldSelectorAttributes{RawSelector: "a=b", Requirements: []metav1.FieldSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"b"}}}},
		},
		"spec.resourceAttributes.fieldSelector.requirements: Required value": {fields: &authorizationv1.FieldSelectorAttributes{}},
		"spec.resourceAttributes.labelSelector.requirements: Required value": {labels: &authorizationv1.LabelSelectorAttributes{}},
		"spec.resourceAttributes.labelSelector.requirements[0].values": {
			labels: &authorizationv1.LabelSelectorAttributes{Requirements: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In"}}},
		},
		"": {labels: &authorizationv1.LabelSelectorAttributes{Requirements: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}},
	} {
		asked := attributes.DeepCopy()
		asked.FieldSelector, asked.LabelSelector = want.fields, want.labels
		_, err := joe.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: asked},
		}, metav1.CreateOptions{})
		if what == "" && err != nil || what != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), what)) {
			t.Errorf("%q: %v", what, err)
		}
	}
	rules := must(joe.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"},
	}, metav1.CreateOptions{}))(t)
	if !rules.Status.Incomplete {
		t.Errorf("rules: %+v", rules.Status)
	}
}

func TestTables(t *testing.T) {
	body, err := shared.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, c.Name)
	}
	if got := strings.Join(columns, " "); got != "Name Status Age" || len(table.Rows) < 4 || table.ResourceVersion == "" {
		t.Errorf("columns %s, %d rows", got, len(table.Rows))
	}
}

// TestConnect asks for what only a node knows: the way there is tried, and how it
// failed is told.
func TestConnect(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	must(shared.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}))(t)
	p := pod("p")
	p.Spec.NodeName = ns
	must(shared.client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}))(t)
	seconds := int64(5)
	err := shared.client.CoreV1().Pods(ns).GetLogs("p", &corev1.PodLogOptions{Container: "main", SinceSeconds: &seconds}).MaxRetries(0).Do(ctx).Error()
	if err == nil || !strings.Contains(err.Error(), "no way to "+ns+":10250") {
		t.Errorf("log: %v", err)
	}
	err = shared.client.CoreV1().Pods(ns).GetLogs("p", &corev1.PodLogOptions{Container: "other"}).Do(ctx).Error()
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "container other is not valid for pod p") {
		t.Errorf("log of no container: %v", err)
	}
	err = shared.client.CoreV1().RESTClient().Get().Resource("nodes").Name(ns).SubResource("proxy").Suffix("healthz").MaxRetries(0).Do(ctx).Error()
	if err == nil || apierrors.IsNotFound(err) {
		t.Errorf("node proxy: %v", err)
	}
}

// Extension servers read in a ConfigMap which front proxies are believed, and clients are
// told that a proxy's certificate may be shown.
func TestFrontProxyIsTold(t *testing.T) {
	dir := t.TempDir()
	proxies := pkitest.New(t, "the proxies' authority")
	file := filepath.Join(dir, "proxies")
	if err := os.WriteFile(file, proxies.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	in := must(startWith(dir, func(c *apiserver.Config) {
		c.FrontProxy = &kubeauth.FrontProxy{CAFile: file, UserHeaders: []string{"X-Remote-User"}, AllowedNames: []string{"aggregator"}}
	}))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	m := must(in.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{}))(t)
	for key, want := range map[string]string{
		"requestheader-client-ca-file": string(proxies.PEM()), "requestheader-username-headers": `["X-Remote-User"]`,
		"requestheader-allowed-names": `["aggregator"]`, "requestheader-group-headers": `[]`,
	} {
		if m.Data[key] != want {
			t.Errorf("%s: %q", key, m.Data[key])
		}
	}
	if !strings.HasPrefix(m.Data["client-ca-file"], "-----BEGIN CERTIFICATE-----") {
		t.Errorf("client-ca-file: %q", m.Data["client-ca-file"])
	}
	next := pkitest.New(t, "the next authority")
	if err := os.WriteFile(file, append(proxies.PEM(), next.PEM()...), 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "extension servers are told of an authority that comes later", func() bool {
		m := must(in.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{}))(t)
		return strings.Contains(m.Data["requestheader-client-ca-file"], string(next.PEM()))
	})
	asked := false
	conn, err := tls.Dial("tcp", strings.TrimPrefix(in.config.Host, "https://"), &tls.Config{
		InsecureSkipVerify: true,
		GetClientCertificate: func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			for _, name := range r.AcceptableCAs {
				asked = asked || bytes.Equal(name, proxies.Cert.RawSubject)
			}
			return &tls.Certificate{}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if !asked {
		t.Error("no certificate of the proxies' authority is asked for")
	}
}
