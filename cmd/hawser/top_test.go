// Tests of what top reads and how it is sorted.

package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/cmd/internal/clitest"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/tunnelhealth"
)

// topMetrics are a server's, of three nodes and of others.
const topMetrics = `# TYPE hawser_hub_sessions_pending gauge
hawser_hub_sessions_pending 0
# TYPE hawser_hub_node_rtt_seconds gauge
hawser_hub_node_rtt_seconds{node="a"} 0.0301234567
hawser_hub_node_rtt_seconds{node="b"} 0.5
# TYPE hawser_hub_node_streams gauge
hawser_hub_node_streams{node="a",opener="server"} 3
hawser_hub_node_streams{node="a",opener="agent"} 4
hawser_hub_node_streams{node="ghost",opener="agent"} 1
hawser_hub_node_streams{node="",opener="agent"} 9
# TYPE hawser_hub_node_bytes_total counter
hawser_hub_node_bytes_total{node="a",direction="to_node"} 1048576
hawser_hub_node_bytes_total{node="a",direction="from_node"} 12
# TYPE hawser_hub_node_link_parks_total counter
hawser_hub_node_link_parks_total{node="b"} 5
# TYPE hawser_hub_node_link_resumes_total counter
hawser_hub_node_link_resumes_total{node="b"} 4
# TYPE hawser_hub_node_dials_total counter
hawser_hub_node_dials_total{node="b",result="ok"} 10
hawser_hub_node_dials_total{node="b",result="error"} 2
`

// topOf is the table of an API with five nodes.
func topOf(t *testing.T, metrics, by string) (string, error) {
	t.Helper()
	now := time.Now()
	node := func(name, site, reason string, annotations map[string]string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations, Labels: map[string]string{auth.SiteLabel: site}}}
		if reason != "" {
			c := corev1.NodeCondition{Type: evidence.TunnelConnected, Status: corev1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.NewTime(now.Add(-3 * time.Minute))}
			c.LastHeartbeatTime = metav1.NewTime(now.Add(-4 * time.Minute)) // when it was last heard
			if reason == tunnelhealth.Attached {
				c.Status, c.LastHeartbeatTime = corev1.ConditionTrue, metav1.NewTime(now.Add(-2*time.Minute-time.Second)) // when the session came
			}
			n.Status.Conditions = []corev1.NodeCondition{c}
		}
		return n
	}
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, Items: []corev1.Node{
		node("d", "", "", map[string]string{setup.TransportAnnotation: setup.SSH}),
		node("a", "lyon", "Attached", nil), node("b", "oslo", "ParkedLinkSilent", nil), node("c", "", "", nil), node("e", "", "Attached", nil),
		node(strings.Repeat("long", 20), "", "LinkSilent", nil),
	}}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = w.Write([]byte(metrics))
			return
		}
		if r.URL.Path == "/hawser/status/fleet" {
			_, _ = w.Write([]byte(`{"started":` + strconv.FormatInt(now.Add(-time.Minute).Unix(), 10) + `,"nodes":2,"rows":[{"node":"a","away":true},{"node":"e","away":true}]}` + "\n"))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(list); err != nil || r.URL.Path != "/api/v1/nodes" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
	}))
	defer api.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = topTunnels(t.Context(), &out, client, client.Discovery().RESTClient(), by, now)
	return out.String(), err
}

func TestTopTunnels(t *testing.T) {
	got, err := topOf(t, topMetrics, "name")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"NODE SITE TUNNEL SINCE RTT STREAMS TO-NODE FROM-NODE LOST RESUMED DIALS FAILED",
		"(others) - - - - 9 0 B 0 B 0 0 0 0",
		"a lyon Attached 2m1s 30.123ms 7 1.0 MiB 12 B 0 0 0 0",
		"b oslo ParkedLinkSilent 3m 500ms 0 0 B 0 B 5 4 12 2",
		"c - none - - - - - - - - -",
		"d - ssh - - - - - - - - -",
		"e - NotBack 60s - - - - - - - -",
		"ghost - no Node - - 1 0 B 0 B 0 0 0 0",
		strings.Repeat("long", 10)[:39] + "… - LinkSilent 3m - - - - - - - -",
	}
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%s", got)
	}
	for i, line := range lines {
		if s := strings.Join(strings.Fields(line), " "); s != want[i] {
			t.Errorf("%q, want %q", s, want[i])
		}
	}
}

func TestTopIsSorted(t *testing.T) {
	for by, first := range map[string]string{"rtt": "b", "streams": "(others)", "bytes": "a", "lost": "b", "resumed": "b", "failed": "b", "tunnel": "(others)", "site": "(others)", "name": "(others)"} {
		got, err := topOf(t, topMetrics, by)
		if lines := strings.Split(got, "\n"); err != nil || !strings.HasPrefix(lines[1], first+" ") {
			t.Errorf("by %s: %v\n%s", by, err, got)
		}
	}
	if len(sortKeys) != 9 {
		t.Errorf("%d keys", len(sortKeys))
	}
}

// TestTopOfAHub: the hub is believed by the authority that it has published.
func TestTopOfAHub(t *testing.T) {
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(topMetrics)) }))
	defer hub.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw})
	published := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{hubKey: string(authority)}}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(published); err != nil || r.URL.Path != "/api/v1/namespaces/"+hubNamespace+"/configmaps/"+hubName {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
	}))
	defer api.Close()
	rc := &rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"http://" + hub.Listener.Addr().String(), hub.Listener.Addr().String(), "https://"} {
		_, err = metricsOf(t.Context(), client, rc, at)
		clitest.Refused(t, err, "--hub \""+at+"\": want https://HOST:PORT")
	}
	metrics, err := metricsOf(t.Context(), client, rc, hub.URL)
	if err != nil {
		t.Fatal(err)
	}
	all, err := readMetrics(t.Context(), metrics)
	if err != nil || all["hawser_hub_node_streams"] == nil {
		t.Errorf("%v, %v", all, err)
	}
}

func TestTopRefuses(t *testing.T) {
	_, err := topOf(t, "up 1\n", "name")
	clitest.Refused(t, err, "has no metrics of tunnels: give --hub")
	_, err = topOf(t, "a{\n", "name")
	clitest.Refused(t, err, "read the server's metrics: ")
	for args, want := range map[string]string{
		"top tunnels --sort-by size": `--sort-by "size": want one of name, site, `,
		"top tunnels":                "no kubeconfig: give --kubeconfig FILE",
		"top --x nodes":              "unknown flag: --x",
	} {
		clitest.Refused(t, clitest.Run(t, newRoot(), "", strings.Fields(args)...), want)
	}
}
