// Webhooks that convert custom resources between the versions of their kind.

package apiserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// converts answers a ConversionReview: it writes into each object what it did.
func converts(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, obj := range review.Request.Objects {
		u := new(unstructured.Unstructured)
		_ = u.UnmarshalJSON(obj.Raw) // the server has written it
		u.SetAPIVersion(review.Request.DesiredAPIVersion)
		_ = unstructured.SetNestedField(u.Object, "converted to "+review.Request.DesiredAPIVersion, "said")
		answer.ConvertedObjects = append(answer.ConvertedObjects, runtime.RawExtension{Object: u})
	}
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the client notices
}

// defineConverted makes a kind with a version that is stored, v1, and one that to converts
// it to, which it returns.
func defineConverted(t *testing.T, in *instance, to *apiextensionsv1.WebhookClientConfig) schema.GroupVersionResource {
	t.Helper()
	gvr := schema.GroupVersionResource{Group: "conversion.example.com", Version: "v2", Resource: "things"}
	version := func(name string, stored bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: stored,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}},
		}
	}
	must(definitionsOf(t, in).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things." + gvr.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: gvr.Group, Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Kind: "Thing"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v2", false)},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig: to, ConversionReviewVersions: []string{"v1"},
			}},
		},
	}, metav1.CreateOptions{}))(t)
	awaitKind(t, in, gvr)
	first := schema.GroupVersion{Group: gvr.Group, Version: "v1"}
	thing := &unstructured.Unstructured{Object: map[string]any{"apiVersion": first.String(), "kind": "Thing", "metadata": map[string]any{"name": "a"}}}
	must(objectsOf(t, in, first.WithResource("things"), "default").Create(t.Context(), thing, metav1.CreateOptions{}))(t)
	return gvr
}

// checkConverted looks at the object of defineConverted in its other version.
func checkConverted(t *testing.T, in *instance, gvr schema.GroupVersionResource) {
	t.Helper()
	got := must(objectsOf(t, in, gvr, "default").Get(t.Context(), "a", metav1.GetOptions{}))(t)
	if said, _, _ := unstructured.NestedString(got.Object, "said"); said != "converted to conversion.example.com/v2" {
		t.Errorf("%v", got.Object)
	}
}

// A webhook converts objects between the versions of a kind.
func TestConversionWebhook(t *testing.T) {
	h := startHookWith(t, converts, "localhost")
	checkConverted(t, shared, defineConverted(t, shared, &apiextensionsv1.WebhookClientConfig{URL: ptr.To(h.URL), CABundle: h.ca}))
}

// A webhook that is a Service is reached as those of admission are: at the node of an
// endpoint, whatever else has that address.
func TestConversionWebhookByService(t *testing.T) {
	h := startHookWith(t, converts, "converter.default.svc")
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) {
		c.ToServices = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != "10.9.9.9%node-1:8443" {
				return nil, errors.New("no way to " + addr)
			}
			return new(net.Dialer).DialContext(ctx, network, h.Listener.Addr().String())
		}
	}))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	gvr := defineConverted(t, in, &apiextensionsv1.WebhookClientConfig{
		Service: &apiextensionsv1.ServiceReference{Namespace: "default", Name: "converter"}, CABundle: h.ca,
	})
	if _, err := objectsOf(t, in, gvr, "default").Get(t.Context(), "a", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), `services "converter" not found`) {
		t.Errorf("without the service: %v", err)
	}
	must(in.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "converter"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	}, metav1.CreateOptions{}))(t)
	must(in.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "converter-1", Labels: map[string]string{discoveryv1.LabelServiceName: "converter"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.9.9.9"}, NodeName: ptr.To("node-1")}},
		Ports:     []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](8443)}},
	}, metav1.CreateOptions{}))(t)
	checkConverted(t, in, gvr)
}
