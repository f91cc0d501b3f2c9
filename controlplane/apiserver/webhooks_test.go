package apiserver_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// A hook is a webhook's server: it refuses config maps called "bad", labels all others,
// never answers about "slow", and warns of each.
type hook struct {
	*httptest.Server
	ca []byte
}

func startHook(t *testing.T, names ...string) *hook {
	t.Helper()
	return startHookWith(t, answerReview, names...)
}

func startHookWith(t *testing.T, answer http.HandlerFunc, names ...string) *hook {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	h := &hook{Server: httptest.NewUnstartedServer(answer), ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	h.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func answerReview(w http.ResponseWriter, r *http.Request) {
	var review admissionreviewv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := &admissionreviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "bad", Warnings: []string{"looked at " + review.Request.Name}}
	if review.Request.Name == "slow" {
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // an answer could still be read: TLS says that it closes first
	}
	if !answer.Allowed {
		answer.Result = &metav1.Status{Message: "the name is bad"}
	}
	if strings.HasSuffix(r.URL.Path, "/mutate") {
		answer.PatchType = ptr.To(admissionreviewv1.PatchTypeJSONPatch)
		answer.Patch = []byte(`[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}]`)
	}
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the client notices
}

// configMapRules are requests about config maps.
func configMapRules() []admissionv1.RuleWithOperations {
	return []admissionv1.RuleWithOperations{{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
}

// inNamespace selects one.
func inNamespace(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}
}

func validatingHook(ns string, to admissionv1.WebhookClientConfig, policy admissionv1.FailurePolicyType) *admissionv1.ValidatingWebhookConfiguration {
	return &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "hook-" + ns}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "hook.hawser.dev", ClientConfig: to, Rules: configMapRules(), NamespaceSelector: inNamespace(ns), FailurePolicy: &policy,
		SideEffects: ptr.To(admissionv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](30), AdmissionReviewVersions: []string{"v1"},
	}}}
}

// withHanging adds a webhook to c that is asked about "slow" only, and given a second to answer.
func withHanging(c *admissionv1.ValidatingWebhookConfiguration) *admissionv1.ValidatingWebhookConfiguration {
	hanging := c.Webhooks[0]
	hanging.Name, hanging.TimeoutSeconds = "hanging.hawser.dev", ptr.To[int32](1)
	hanging.MatchConditions = []admissionv1.MatchCondition{{Name: "slow", Expression: "object.metadata.name == 'slow'"}}
	c.Webhooks[0].MatchConditions = []admissionv1.MatchCondition{{Name: "others", Expression: "object.metadata.name != 'slow'"}}
	c.Webhooks = append(c.Webhooks, hanging)
	return c
}

// startHooked runs a server with its ways to services and to URLs, and returns a namespace
// in it.
func startHooked(t *testing.T, services, urls func(ctx context.Context, network, addr string) (net.Conn, error)) (kubernetes.Interface, *warnings, string) {
	t.Helper()
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) { c.ToServices, c.ToURLs = services, urls }))(t)
	t.Cleanup(func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	})
	client, got := warned(t, in)
	ns := must(client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hooked"}}, metav1.CreateOptions{}))(t)
	return client, got, ns.Name
}

// makeMap makes a config map.
func makeMap(t *testing.T, c kubernetes.Interface, ns, name string) (*corev1.ConfigMap, error) {
	t.Helper()
	return c.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
}

// refusedBad waits until a config map called bad is refused: a configuration takes effect
// a moment after it was made.
func refusedBad(t *testing.T, c kubernetes.Interface, ns string) error {
	t.Helper()
	var err error
	until(t, "bad config maps are refused", func() bool {
		if _, err = makeMap(t, c, ns, "bad"); err != nil {
			return true
		}
		if err := c.CoreV1().ConfigMaps(ns).Delete(t.Context(), "bad", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		return false
	})
	return err
}

func TestWebhooksByURL(t *testing.T) {
	var asked atomic.Bool
	client, got, ns := startHooked(t, nil, func(ctx context.Context, network, addr string) (net.Conn, error) {
		asked.Store(true)
		return new(net.Dialer).DialContext(ctx, network, addr)
	})
	h := startHook(t)
	hooks := client.AdmissionregistrationV1()
	to := admissionv1.WebhookClientConfig{URL: ptr.To(h.URL + "/validate"), CABundle: h.ca}
	made := must(hooks.ValidatingWebhookConfigurations().Create(t.Context(), withHanging(validatingHook(ns, to, admissionv1.Fail)), metav1.CreateOptions{}))(t)
	if made.Generation != 1 || *made.Webhooks[0].MatchPolicy != admissionv1.Equivalent || *made.Webhooks[0].Rules[0].Scope != admissionv1.AllScopes {
		t.Errorf("without defaults: %+v", made)
	}
	if err := refusedBad(t, client, ns); !strings.Contains(err.Error(), `admission webhook "hook.hawser.dev" denied the request: the name is bad`) {
		t.Errorf("%v", err)
	}
	if !asked.Load() {
		t.Error("reached without Config.ToURLs")
	}
	if w := got.take(); !strings.Contains(w, "looked at bad") {
		t.Errorf("warnings: %q", w)
	}
	if _, err := makeMap(t, client, ns, "good"); err != nil {
		t.Error(err)
	}
	if _, err := makeMap(t, client, "default", "bad"); err != nil {
		t.Errorf("in another namespace: %v", err)
	}
	began := time.Now()
	if _, err := makeMap(t, client, ns, "slow"); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("a webhook that hangs: %v", err)
	}
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("a webhook of 1 s held a request up for %v", took)
	}
	made.Webhooks[1].FailurePolicy = ptr.To(admissionv1.Ignore)
	if again := must(hooks.ValidatingWebhookConfigurations().Update(t.Context(), made, metav1.UpdateOptions{}))(t); again.Generation != 2 {
		t.Errorf("generation %d", again.Generation)
	}
	until(t, "a webhook that hangs is ignored", func() bool {
		_, err := makeMap(t, client, ns, "slow")
		return err == nil
	})
	mutating := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "labels"}, Webhooks: []admissionv1.MutatingWebhook{{
		Name: "labels.hawser.dev", ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To(h.URL + "/mutate"), CABundle: h.ca}, Rules: configMapRules(),
		NamespaceSelector: inNamespace(ns), SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		MatchConditions: []admissionv1.MatchCondition{{Name: "new", Expression: "object.metadata.name.startsWith('new-')"}},
	}}}
	must(hooks.MutatingWebhookConfigurations().Create(t.Context(), mutating, metav1.CreateOptions{}))(t)
	n := 0
	until(t, "config maps get a label", func() bool {
		n++
		return must(makeMap(t, client, ns, fmt.Sprint("new-", n)))(t).Labels["hooked"] == "yes"
	})
	if m := must(makeMap(t, client, ns, "other"))(t); len(m.Labels) > 0 {
		t.Errorf("the condition does not hold and there are labels %v", m.Labels)
	}
}

func TestWebhooksByService(t *testing.T) {
	h := startHook(t, "hook.hooked.svc")
	asked := make(chan string, 1000)
	client, _, ns := startHooked(t, func(ctx context.Context, network, addr string) (net.Conn, error) {
		asked <- addr
		if addr != "10.9.9.9%node-1:8443" {
			return nil, errors.New("no way to " + addr)
		}
		return new(net.Dialer).DialContext(ctx, network, h.Listener.Addr().String())
	}, nil)
	to := admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: ns, Name: "hook", Path: ptr.To("/validate")}, CABundle: h.ca}
	must(client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), validatingHook(ns, to, admissionv1.Fail), metav1.CreateOptions{}))(t)
	if err := refusedBad(t, client, ns); !strings.Contains(err.Error(), `services "hook" not found`) {
		t.Errorf("without the service: %v", err)
	}
	must(client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}, metav1.CreateOptions{}))(t)
	if err := refusedBad(t, client, ns); !strings.Contains(err.Error(), "no endpoints available") {
		t.Errorf("without an endpoint: %v", err)
	}
	must(client.DiscoveryV1().EndpointSlices(ns).Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "hook-1", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.9.9.9"}, NodeName: ptr.To("node-1")}},
		Ports:     []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](8443)}},
	}, metav1.CreateOptions{}))(t)
	until(t, "the webhook answers", func() bool { return strings.Contains(refusedBad(t, client, ns).Error(), "the name is bad") })
	if len(asked) == 0 {
		t.Error("reached without Config.ToServices")
	}
}

// A server without a way to services says so, and what to do.
func TestWebhooksWithoutServices(t *testing.T) {
	client, _, ns := startHooked(t, nil, nil)
	must(client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}, metav1.CreateOptions{}))(t)
	must(client.DiscoveryV1().EndpointSlices(ns).Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "hook-1", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.9.9.9"}}}, Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8443)}},
	}, metav1.CreateOptions{}))(t)
	to := admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: ns, Name: "hook"}}
	must(client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), validatingHook(ns, to, admissionv1.Fail), metav1.CreateOptions{}))(t)
	if err := refusedBad(t, client, ns); !strings.Contains(err.Error(), "give the webhook a url") {
		t.Errorf("%v", err)
	}
}
