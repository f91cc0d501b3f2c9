// What controllers read of an extension server's objects, however many that says there are.

package apiserver_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// A hoard is an extension server that has no end of things.
type hoard struct {
	*httptest.Server
	read chan int // how much was taken of a list of them, before that is compressed
}

func newHoard(t *testing.T) *hoard {
	t.Helper()
	h := &hoard{read: make(chan int, 2)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/"+stuffGroup+"/v1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: stuffGroup + "/v1",
			APIResources: []metav1.APIResource{{Name: "things", SingularName: "thing", Kind: "Thing", Namespaced: true, Verbs: metav1.Verbs{"list", "watch", "delete"}}},
		})
	})
	mux.HandleFunc("GET /apis/"+stuffGroup+"/v1/things", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var to io.Writer = w
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			to = z
		}
		n, err := io.WriteString(to, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[{}`)
		for chunk := bytes.Repeat([]byte(",{}"), 1<<14); err == nil && n < mostSent; {
			var more int
			more, err = to.Write(chunk)
			n += more
		}
		_, _ = io.WriteString(to, "]}")
		h.read <- n
	})
	h.Server = httptest.NewTLSServer(mux)
	t.Cleanup(h.Close)
	return h
}

// TestEndlessObjects: a controller's list of an extension server's objects fails once it is
// too long. A person gets all of it.
func TestEndlessObjects(t *testing.T) {
	h := newHoard(t)
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) {
		c.ToServices = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, h.Listener.Addr().String())
		}
	}))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	registry := must(aggregatorclient.NewForConfig(in.config))(t)
	must(registry.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: stuffService},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: stuffGroup, Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "stuff", Port: ptr.To[int32](443)},
		},
	}, metav1.CreateOptions{}))(t)
	serveAt(t, in.client, "stuff", "10.9.9.9")
	condition(t, registry, apiregistrationv1.ConditionTrue, "Passed")

	manager := as(in.config, "system:kube-controller-manager", "testers")
	things := must(metadata.NewForConfig(manager))(t).Resource(schema.GroupVersionResource{Group: stuffGroup, Version: "v1", Resource: "things"})
	list, err := things.List(t.Context(), metav1.ListOptions{})
	if err == nil {
		t.Errorf("%d objects were read", len(list.Items))
	}
	if n := <-h.read; n > mostSent/2 {
		t.Errorf("%d bytes were read: %v", n, err)
	}
	person := must(kubernetes.NewForConfig(in.config))(t)
	body := must(person.RESTClient().Get().AbsPath("/apis/" + stuffGroup + "/v1/things").Stream(t.Context()))(t)
	defer body.Close()
	if n := must(io.Copy(io.Discard, body))(t); n < mostSent {
		t.Errorf("a person gets %d bytes", n)
	}
}
