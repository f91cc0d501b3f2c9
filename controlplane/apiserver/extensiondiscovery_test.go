// What extension servers say of their kinds, however much that is.

package apiserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// mostSent is where an endless answer gives up: far beyond what may be read of it.
const mostSent = 64 << 20

// An endless server never ends its answer to who asks for its kinds at path. Elsewhere it
// has nothing.
type endless struct {
	*httptest.Server
	read chan int // how much was taken of such an answer
}

func newEndless(t *testing.T, path string) *endless {
	t.Helper()
	e := &endless{read: make(chan int, 1)}
	e.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "" {
			return // asked only whether there is an answer
		}
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", strings.Split(discovery.AcceptV2, ",")[0])
		n, err := w.Write([]byte(`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{}`))
		for chunk := bytes.Repeat([]byte(`,{"metadata":{"name":"x"}}`), 1<<12); err == nil && n < mostSent; {
			var more int
			more, err = w.Write(chunk)
			n += more
		}
		select {
		case e.read <- n:
		default:
		}
	}))
	t.Cleanup(e.Close)
	return e
}

// freshness is what discovery says of each group that an extension server has.
func freshness(t *testing.T, in *instance) map[string]apidiscoveryv2.DiscoveryFreshness {
	t.Helper()
	var all apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(must(in.client.RESTClient().Get().AbsPath("/apis").SetHeader("Accept", discovery.AcceptV2).DoRaw(t.Context()))(t), &all); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]apidiscoveryv2.DiscoveryFreshness)
	for _, g := range all.Items {
		if strings.HasSuffix(g.Name, ".example.com") {
			out[g.Name] = g.Versions[0].Freshness
		}
	}
	return out
}

// TestEndlessDiscovery: of an answer without an end little is read, in either way to ask,
// and discovery has everything else.
func TestEndlessDiscovery(t *testing.T) {
	bad := map[string]*endless{"new": newEndless(t, "/apis"), "old": newEndless(t, "/apis/old.example.com/v1")}
	good := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "good.example.com/v1",
		})
	}))
	defer good.Close()
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) {
		c.ToServices = func(ctx context.Context, network, addr string) (net.Conn, error) {
			to := map[string]*httptest.Server{"10.9.9.1%n:8443": good, "10.9.9.2%n:8443": bad["new"].Server, "10.9.9.3%n:8443": bad["old"].Server}[addr]
			return (&net.Dialer{}).DialContext(ctx, network, to.Listener.Addr().String())
		}
	}))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	registry := must(aggregatorclient.NewForConfig(in.config))(t)
	for name, addr := range map[string]string{"good": "10.9.9.1", "new": "10.9.9.2", "old": "10.9.9.3"} {
		serveAt(t, in.client, name, addr)
		must(registry.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1." + name + ".example.com"},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: name + ".example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
				Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: name, Port: ptr.To[int32](443)},
			},
		}, metav1.CreateOptions{}))(t)
	}
	for name, e := range bad {
		select {
		case n := <-e.read:
			if n > mostSent/2 {
				t.Errorf("%s: %d bytes were read", name, n)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: not asked, or read on", name)
		}
	}
	until(t, "all is said", func() bool {
		got := freshness(t, in)
		return len(got) == 3 && got["good.example.com"] == apidiscoveryv2.DiscoveryFreshnessCurrent &&
			got["new.example.com"] == apidiscoveryv2.DiscoveryFreshnessStale && got["old.example.com"] == apidiscoveryv2.DiscoveryFreshnessStale
	})
}
