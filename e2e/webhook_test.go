// An admission webhook that runs in a pod behind a NAT: the server reaches it as an
// endpoint of its service, through the tunnel.

package e2e

import (
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
	"net/http"
	"strings"
	"testing"
	"time"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/utils/ptr"
)

// hookPort is where the webhook listens, and hookName the server's name in TLS.
const (
	hookPort = 18720
	hookName = "hook.default.svc"
)

// serveReviews is a webhook that refuses objects whose names begin with "bad". To a GET it
// answers as an API without resources. After the line that says where it listens it prints its
// certificate.
func serveReviews(addr string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{hookName}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	l, err := tls.Listen("tcp", addr, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		return err
	}
	fmt.Printf("listening on %s\n%s", l.Addr(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","resources":[]}`)
			return
		}
		var review admissionreviewv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, fmt.Sprint("no review: ", err), http.StatusBadRequest)
			return
		}
		review.Response = &admissionreviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: !strings.HasPrefix(review.Request.Name, "bad")}
		if !review.Response.Allowed {
			review.Response.Result = &metav1.Status{Message: "the name is bad"}
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // the server notices
	}))
}

// serveHook makes the service of a pod's webhook, and has config maps reviewed by it.
func (c *cluster) serveHook(t *testing.T, pod *corev1.Pod, ca []byte) admissionclient.ValidatingWebhookConfigurationInterface {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "hook", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}}
	_, err := c.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}, metav1.CreateOptions{})
	must(t, err)
	_, err = c.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](hookPort)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{pod.Status.PodIP}, NodeName: &pod.Spec.NodeName}},
	}, metav1.CreateOptions{})
	must(t, err)
	hooks := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = hooks.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "hook.hawser.dev", ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "default", Name: "hook"}, CABundle: ca},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "default"}},
		FailurePolicy:     ptr.To(admissionv1.Fail), SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
	}}}, metav1.CreateOptions{})
	must(t, err)
	return hooks
}

func TestWebhookInPod(t *testing.T) {
	if !netnsHere(t) {
		t.Skip("a node that is a plain process is reached without the tunnel")
	}
	t.Parallel()
	c := startUp(t, "--nodes", "1", "--netns")
	c.roleInPodWith(t, "hook", fmt.Sprintf(`,"ports":[{"containerPort":%d}]`, hookPort), "", fmt.Sprintf("admission-webhook :%d", hookPort))
	block, _ := pem.Decode([]byte(c.mustKubectl(t, "", "logs", "hook")))
	pod, err := c.client.CoreV1().Pods("default").Get(t.Context(), "hook", metav1.GetOptions{})
	must(t, err)
	hooks := c.serveHook(t, pod, pem.EncodeToMemory(block))
	makes := func(name string) error {
		_, err := c.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	// refuses waits until an object is refused by an error that has text.
	refuses := func(name, text string) {
		t.Helper()
		eventually(t, name+" is refused: "+text, func() error {
			err := makes(name)
			switch {
			case err == nil:
				must(t, c.client.CoreV1().ConfigMaps("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
				return errors.New("it was admitted")
			case !strings.Contains(err.Error(), text):
				return err
			}
			return nil
		})
	}
	refuses("bad-1", `admission webhook "hook.hawser.dev" denied the request: the name is bad`)
	must(t, makes("good-1"))
	c.mustKubectl(t, "", "delete", "pod", "hook", "--now")
	refuses("good-2", `failed calling webhook "hook.hawser.dev"`)
	_, err = hooks.Patch(t.Context(), "hook", types.JSONPatchType, []byte(`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`), metav1.PatchOptions{})
	must(t, err)
	eventually(t, "a webhook that is gone is ignored", func() error { return makes("bad-2") })
}
