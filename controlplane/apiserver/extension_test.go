// Extension servers: API servers behind an APIService.

package apiserver_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/controlplane/apiserver"
)

const (
	stuffGroup   = "stuff.example.com"
	stuffService = "v1." + stuffGroup
)

// An extension is a server that believes the front proxy only, and notes for whom it asks.
type extension struct {
	*httptest.Server
	ca *pkitest.Authority

	mu      sync.Mutex
	asked   []http.Header // of requests for things
	dialled []string
}

func newExtension(t *testing.T, proxies *pkitest.Authority) *extension {
	t.Helper()
	e := &extension{ca: pkitest.New(t, "extension-ca")}
	serving := e.ca.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "stuff"}, DNSNames: []string{"stuff.default.svc"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/"+stuffGroup+"/v1", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: stuffGroup + "/v1",
			APIResources: []metav1.APIResource{{Name: "things", SingularName: "thing", Kind: "Thing", Verbs: metav1.Verbs{"get"}}},
		})
	})
	mux.HandleFunc("GET /apis/"+stuffGroup+"/v1/things/a", func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.asked = append(e.asked, r.Header)
		e.mu.Unlock()
		answer(w, map[string]any{"kind": "Thing", "apiVersion": stuffGroup + "/v1", "metadata": map[string]any{"name": "a"}})
	})
	mux.HandleFunc("GET /openapi/v3", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"paths": map[string]any{
			"apis/" + stuffGroup + "/v1": map[string]string{"serverRelativeURL": "/openapi/v3/apis/" + stuffGroup + "/v1?hash=1"},
			"apis/apps/v1":               map[string]string{"serverRelativeURL": "/another's"},
		}})
	})
	mux.HandleFunc("GET /openapi/v3/apis/"+stuffGroup+"/v1", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]string{"openapi": "3.0.0 of the extension"})
	})
	e.Server = httptest.NewUnstartedServer(mux)
	e.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*serving}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: proxies.Pool()}
	e.Config.ErrorLog = log.New(testWriter{t}, "", 0)
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

// testWriter writes to the log of a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// dial is a Config.ToServices that leads to the server from wherever it is asked.
func (e *extension) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	e.mu.Lock()
	e.dialled = append(e.dialled, addr)
	e.mu.Unlock()
	return (&net.Dialer{}).DialContext(ctx, network, e.Listener.Addr().String())
}

// register makes the APIService of the extension, whose service is default/stuff.
func register(t *testing.T, in *instance, e *extension) aggregatorclient.Interface {
	t.Helper()
	registry := must(aggregatorclient.NewForConfig(in.config))(t)
	must(registry.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: stuffService},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: stuffGroup, Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 100, CABundle: e.ca.PEM(),
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "stuff", Port: ptr.To[int32](443)},
		},
	}, metav1.CreateOptions{}))(t)
	return registry
}

// condition waits until the APIService is available or is not, for a reason.
func condition(t *testing.T, c aggregatorclient.Interface, status apiregistrationv1.ConditionStatus, reason string) {
	t.Helper()
	until(t, fmt.Sprintf("available %s, %s", status, reason), func() bool {
		s, err := c.ApiregistrationV1().APIServices().Get(t.Context(), stuffService, metav1.GetOptions{})
		return err == nil && len(s.Status.Conditions) == 1 && s.Status.Conditions[0].Status == status && s.Status.Conditions[0].Reason == reason
	})
}

// startExtended starts an API server, which ends with the test, and an extension server. adjust, unless
// it is nil, changes the configuration; certOf gives the file of a certificate.
func startExtended(t *testing.T, adjust func(c *apiserver.Config, certOf func(name string) string)) (*instance, *extension) {
	t.Helper()
	dir := t.TempDir()
	certOf := func(name string) string { return filepath.Join(dir, "pki", name+".crt") }
	keyOf := func(name string) string { return filepath.Join(dir, "pki", name+".key") }
	if _, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki"), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}); err != nil {
		t.Fatal(err)
	}
	ext := newExtension(t, pkitest.Load(t, certOf(pki.FrontProxyCA), keyOf(pki.FrontProxyCA)))
	in := must(startWith(dir, func(c *apiserver.Config) {
		c.ToServices = ext.dial
		c.Proxy = apiserver.Proxy{
			CertFile: certOf(pki.FrontProxyClient), KeyFile: keyOf(pki.FrontProxyClient),
			CAFile: certOf(pki.FrontProxyCA), Name: pki.FrontProxyClientUser,
		}
		if adjust != nil {
			adjust(c, certOf)
		}
	}))(t)
	t.Cleanup(func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	})
	return in, ext
}

func TestExtensionServer(t *testing.T) {
	in, ext := startExtended(t, nil)
	ctx := t.Context()
	registry := register(t, in, ext)
	get := func() error {
		return in.client.RESTClient().Get().AbsPath("/apis/"+stuffGroup+"/v1/things/a").SetHeader("X-Remote-User", "root").SetHeader("X-Remote-Group", "system:masters").
			SetHeader("X-Remote-Extra-A", "b").Do(ctx).Error()
	}

	// Nothing else minds that it is not there.
	condition(t, registry, apiregistrationv1.ConditionFalse, "ServiceNotFound")
	if err := get(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without a service: %v", err)
	}
	_, lists, err := in.client.Discovery().ServerGroupsAndResources()
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); !ok || len(failed) != 1 || len(lists) < 10 {
		t.Errorf("discovery: %v, %d groups", err, len(lists))
	}
	serveAt(t, in.client, "stuff", "10.9.9.9")
	condition(t, registry, apiregistrationv1.ConditionTrue, "Passed")
	until(t, "it answers", func() bool { return get() == nil })
	checkAsked(t, ext)
	if r, err := in.client.Discovery().ServerResourcesForGroupVersion(stuffGroup + "/v1"); err != nil || r.APIResources[0].Kind != "Thing" {
		t.Errorf("discovery: %v, %v", r, err)
	}
	raw := func(path string) string {
		return string(must(in.client.RESTClient().Get().AbsPath(path).DoRaw(ctx))(t))
	}
	if all := raw("/openapi/v3"); !strings.Contains(all, stuffGroup+"/v1?hash=1") || strings.Contains(all, "another's") || !strings.Contains(all, "apis/batch/v1") {
		t.Errorf("documents: %s", all)
	}
	if one := raw("/openapi/v3/apis/" + stuffGroup + "/v1"); !strings.Contains(one, "of the extension") {
		t.Errorf("document: %s", one)
	}
	config := must(in.client.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{}))(t)
	for key, want := range map[string]string{
		"requestheader-allowed-names": `["front-proxy-client"]`, "requestheader-username-headers": `["X-Remote-User"]`, "requestheader-group-headers": `["X-Remote-Group"]`,
		"requestheader-uid-headers": `["X-Remote-Uid"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	} {
		if config.Data[key] != want {
			t.Errorf("%s: %q", key, config.Data[key])
		}
	}
	if ca := config.Data["requestheader-client-ca-file"]; !strings.HasPrefix(ca, "-----BEGIN CERTIFICATE-----") {
		t.Errorf("authority: %q", ca)
	}

	// Without endpoints it is unavailable again.
	if err := in.client.DiscoveryV1().EndpointSlices("default").Delete(ctx, "stuff-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	condition(t, registry, apiregistrationv1.ConditionFalse, "EndpointsNotFound")
	until(t, "it is refused", func() bool { return apierrors.IsServiceUnavailable(get()) })
	if err := registry.ApiregistrationV1().APIServices().Delete(ctx, stuffService, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the group is gone", func() bool { return apierrors.IsNotFound(get()) })
}

// serveAt makes the service of an extension server and its endpoint.
func serveAt(t *testing.T, c kubernetes.Interface, name, addr string) {
	t.Helper()
	must(c.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}, metav1.CreateOptions{}))(t)
	must(c.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{addr}, NodeName: ptr.To("n"), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports:     []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8443), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}, metav1.CreateOptions{}))(t)
}

// checkAsked looks at for whom the server was asked, and where it was dialled.
func checkAsked(t *testing.T, e *extension) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.asked[len(e.asked)-1]
	if h.Get("X-Remote-User") != "admin" || !strings.Contains(strings.Join(h.Values("X-Remote-Group"), " "), "system:authenticated") || h.Get("X-Remote-Uid") != "uid-of-admin" {
		t.Errorf("asked for %v", h)
	}
	if h.Get("X-Remote-Extra-A") != "" || h.Get("Authorization") != "" {
		t.Errorf("a user's own headers are passed on: %v", h)
	}
	for _, addr := range e.dialled {
		if addr != "10.9.9.9%n:8443" {
			t.Errorf("dialled %s", addr)
		}
	}
}

// Extension servers believe the headers of Config.FrontProxy, so no user may send them.
func TestExtensionServerGetsNoHeadersOfFrontProxies(t *testing.T) {
	in, ext := startExtended(t, func(c *apiserver.Config, certOf func(name string) string) {
		c.FrontProxy = &kubeauth.FrontProxy{
			CAFile: certOf(pki.CA), AllowedNames: []string{"sso"}, UserHeaders: []string{"X-Sso-User"}, UIDHeaders: []string{"X-Sso-Uid"},
			GroupHeaders: []string{"X-Sso-Group"}, ExtraPrefixes: []string{"X-Sso-Extra-"},
		}
	})
	ctx := t.Context()
	registry := register(t, in, ext)
	serveAt(t, in.client, "stuff", "10.9.9.9")
	condition(t, registry, apiregistrationv1.ConditionTrue, "Passed")
	sent := map[string]string{"X-Sso-User": "root", "X-Sso-Uid": "0", "X-Sso-Group": "system:masters", "X-Sso-Extra-A": "b"}
	until(t, "it answers", func() bool {
		r := in.client.RESTClient().Get().AbsPath("/apis/"+stuffGroup+"/v1/things/a").SetHeader("X-Remote-Extra-A", "b").SetHeader("X-Other", "kept")
		for header, value := range sent {
			r.SetHeader(header, value)
		}
		return r.Do(ctx).Error() == nil
	})
	checkAsked(t, ext)
	config := must(in.client.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{}))(t)
	if groups := config.Data["requestheader-group-headers"]; groups != `["X-Remote-Group","X-Sso-Group"]` {
		t.Errorf("headers of groups: %s", groups)
	}
	ext.mu.Lock()
	defer ext.mu.Unlock()
	h := ext.asked[len(ext.asked)-1]
	for header := range sent {
		if got := h.Values(header); len(got) > 0 {
			t.Errorf("a user's own %s is passed on: %q", header, got)
		}
	}
	if h.Get("X-Other") != "kept" {
		t.Error("another header is not passed on")
	}
}
