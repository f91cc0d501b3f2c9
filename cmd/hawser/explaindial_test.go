// Tests of what explain dial asks of the API, and of the words between it and the tunnel.

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/cmd/internal/clitest"
	"github.com/hawser-project/hawser/cmd/internal/explain"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/tunnel"
)

// The API server's Status names the code of the tunnel's errors.
var _ interface{ DialCode() string } = (*tunnel.DialError)(nil)

func TestParseDialTarget(t *testing.T) {
	for text, want := range map[string]string{
		"node-1:22":     "/api/v1/nodes/node-1:22/proxy/",
		"pod/web":       "/api/v1/namespaces/ns/pods/web/proxy/",
		"pod/web:8080":  "/api/v1/namespaces/ns/pods/web:8080/proxy/",
		"svc/web:http":  "/api/v1/namespaces/ns/services/web:http/proxy/",
		"service/web:1": "/api/v1/namespaces/ns/services/web:1/proxy/",
	} {
		if got, err := parseDialTarget(text, "ns"); err != nil || got.path() != want {
			t.Errorf("%s: %s, %v", text, got.path(), err)
		}
	}
	for _, text := range []string{"", "node-1", "node-1:", ":22", "node-1:0", "node-1:ssh", "node-1:65536", "job/x", "pod/", "pod/a/b", "pod/a:1:2", "pod/a:", "[::1]:22", "a%2f:1"} {
		_, err := parseDialTarget(text, "ns")
		clitest.Refused(t, err, `"`+text+`": `)
	}
}

// dialAPI is an API of one node, one pod and one service. The dial of a port is answered as
// the port says.
func dialAPI(t *testing.T) *httptest.Server {
	t.Helper()
	name := "node-1"
	objects := map[string]any{
		"/api/v1/nodes/node-1": &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			Status:   corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: evidence.TunnelConnected, Status: "True", Reason: "Attached", Message: "session 3"}}},
		},
		"/api/v1/nodes/by-ssh": &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{setup.TransportAnnotation: setup.SSH}},
		},
		"/api/v1/namespaces/ns/pods/web": &corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: corev1.PodSpec{NodeName: name}, Status: corev1.PodStatus{PodIP: "10.0.0.7", Phase: corev1.PodRunning},
		},
		"/api/v1/namespaces/ns/services/web": &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
	}
	for service, spec := range map[string]corev1.ServiceSpec{
		"old":     {Selector: map[string]string{"app": "x"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
		"any":     {Selector: map[string]string{"app": "x"}},
		"bare":    {IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
		"unready": {Selector: map[string]string{"app": "x"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
	} {
		objects["/api/v1/namespaces/ns/services/"+service] = &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, Spec: spec}
	}
	slicesOf := map[string][]discoveryv1.EndpointSlice{
		"web":     {{Endpoints: []discoveryv1.Endpoint{{NodeName: &name}, {NodeName: &name, Conditions: discoveryv1.EndpointConditions{Ready: new(bool)}}}}},
		"unready": {{Endpoints: []discoveryv1.Endpoint{{NodeName: &name, Conditions: discoveryv1.EndpointConditions{Ready: new(bool)}}}}},
	}
	status := func(w http.ResponseWriter, code int, message string, causes ...metav1.StatusCause) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(&metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code),
			Reason: map[int]metav1.StatusReason{404: metav1.StatusReasonNotFound}[code], Message: message, Details: &metav1.StatusDetails{Causes: causes},
		})
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch object := objects[r.URL.Path]; {
		case strings.HasSuffix(r.URL.Path, "/endpointslices"):
			_, of, _ := strings.Cut(r.URL.Query().Get("labelSelector"), "=")
			list := metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}
			_ = json.NewEncoder(w).Encode(&discoveryv1.EndpointSliceList{TypeMeta: list, Items: slicesOf[of]})
		case object != nil:
			if err := json.NewEncoder(w).Encode(object); err != nil {
				t.Error(err)
			}
		case strings.HasSuffix(r.URL.Path, ":22/proxy/"):
			status(w, 500, "dial node-1:22: not one of its ports", metav1.StatusCause{Type: kubelet.DialFailed, Message: tunnel.Denied.String()})
		case strings.HasSuffix(r.URL.Path, ":99/proxy/"): // a stream
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/proxy/"):
			w.WriteHeader(http.StatusTeapot)
		default:
			status(w, 404, "not found: "+r.URL.Path)
		}
	}))
	t.Cleanup(api.Close)
	return api
}

func TestExplainDial(t *testing.T) {
	api := dialAPI(t)
	rc := &rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	for text, want := range map[string][]string{
		"node-1:80":   {"", "reached: it answered HTTP 418", "node node-1: True (Attached): session 3"},
		"by-ssh:80":   {"", "reached: it answered HTTP 418", "node by-ssh keeps no tunnel: the server reaches it by ssh"},
		"node-1:22":   {"not reached", "policy refuses: dial node-1:22: not one of its ports"},
		"node-2:80":   {"not reached", "object refuses: not found: /api/v1/nodes/node-2"},
		"node-1:99":   {"", "reached: it answered HTTP 200"},
		"pod/web":     {"", "reached", `Running on node "node-1", address "10.0.0.7"`, "node node-1: True"},
		"pod/none":    {"not reached", "object refuses: not found"},
		"svc/old":     {"", "0 of 0 are ready, on 0 nodes; the service selects no running pod that has an IPv4 address"},
		"svc/any":     {"", "0 of 0 are ready, on 0 nodes; the service selects no running pod that has an address"},
		"svc/bare":    {"", "0 of 0 are ready, on 0 nodes; the service has no endpoints"},
		"svc/unready": {"", "0 of 1 are ready, on 0 nodes; none is ready, and the API server picks none"},
		"svc/web":     {"", "reached", "1 of 2 are ready, on 1 nodes; the API server picks one of them", "node node-1: True"},
	} {
		target, err := parseDialTarget(text, "ns")
		if err != nil {
			t.Fatal(err)
		}
		var page bytes.Buffer
		began := time.Now()
		clitest.Refused(t, explainDial(t.Context(), &page, rc, target, text, ""), want[0])
		if d := time.Since(began); d >= dialPatience {
			t.Errorf("%s: takes %v", text, d)
		}
		for _, w := range want[1:] {
			if !strings.Contains(page.String(), w) {
				t.Errorf("%s: lacks %q:\n%s", text, w, page.String())
			}
		}
	}
	api.Close()
	err := explainDial(t.Context(), &bytes.Buffer{}, rc, dialTarget{kind: "nodes", name: "n", port: "1"}, "n:1", "")
	clitest.Refused(t, err, "connection refused")
}

// TestStepsWriteNoLines: what the API has of a node or a pod, which the node writes, moves no
// cursor.
func TestStepsWriteNoLines(t *testing.T) {
	var d explain.Dial
	hostile := func() (string, error) { return "Running\x1b[2J\nVerdict  reached", nil }
	if err := step(&d, "Pod", hostile); err != nil || strings.ContainsAny(d.Steps[0].Text, "\x1b\n") {
		t.Errorf("%q, %v", d.Steps[0].Text, err)
	}
}
