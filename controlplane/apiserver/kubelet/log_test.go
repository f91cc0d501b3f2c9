package kubelet

// Tests of pods/log.

import (
	"bufio"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// message returns what kubectl would show of an answer that is a Status.
func message(t *testing.T, body string) string {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Kind != "Status" {
		t.Fatalf("not a Status (%v): %s", err, body)
	}
	return s.Message
}

func TestLogs(t *testing.T) {
	b := start(t, nil)
	b.serveKubelet(t, "node-2:10250", "node-1") // the certificate of another node
	const ns = "/api/v1/namespaces/ns/pods/"
	for _, tc := range []struct {
		name, path string
		code       int
		want       string // the body, or what its message contains
		asked      string // what the kubelet was asked
	}{
		{"the only container", "web/log", 200, "a line\n", "GET /containerLogs/ns/web/c"},
		{"by name", "two/log?container=c", 200, "a line\n", "GET /containerLogs/ns/two/c"},
		{"an init container", "two/log?container=i2", 200, "a line\n", "GET /containerLogs/ns/two/i2"},
		{"an ephemeral container", "two/log?container=debug", 200, "a line\n", "GET /containerLogs/ns/two/debug"},
		{
			"every option", "web/log?previous=true&timestamps=true&tailLines=5&limitBytes=100&sinceSeconds=60", 200, "a line\n",
			"GET /containerLogs/ns/web/c?limitBytes=100&previous=true&sinceSeconds=60&tailLines=5&timestamps=true",
		},
		{"since a time", "web/log?sinceTime=2026-01-02T03:04:05Z", 200, "a line\n", "GET /containerLogs/ns/web/c?sinceTime=2026-01-02T03%3A04%3A05Z"},
		{"a stream", "web/log?stream=Stderr", 200, "a line\n", "GET /containerLogs/ns/web/c?stream=Stderr"},
		{"not on a node yet", "pending/log", 204, "", ""},
		{"one of several", "two/log", 400, "a container name must be specified for pod two, choose one of: [c waiting lost] or one of the init containers: [i1 i2]", ""},
		{"no such container", "web/log?container=x", 400, "container x is not valid for pod web", ""},
		{"no such pod", "none/log", 404, `pods "none" not found`, ""},
		{"no such node", "stray/log", 404, `nodes "gone" not found`, ""},
		{"waiting to start", "two/log?container=waiting", 400, `container "waiting" in pod "web" is waiting to start: ContainerCreating`, "GET /containerLogs/ns/two/waiting"},
		{"the kubelet does not know it", "two/log?container=lost", 404, "the server could not find the requested resource", "GET /containerLogs/ns/two/lost"},
		{"negative tail", "web/log?tailLines=-1", 422, "must be greater than or equal to 0", ""},
		{"no bytes", "web/log?limitBytes=0", 422, "must be greater than 0", ""},
		{"no seconds", "web/log?sinceSeconds=0", 422, "must be greater than 0", ""},
		{"two sinces", "web/log?sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z", 422, "at most one of `sinceTime` or `sinceSeconds` may be specified", ""},
		{"tail of a stream", "web/log?stream=Stdout&tailLines=1", 422, "mutually exclusive", ""},
		{"unknown stream", "web/log?stream=x", 422, "supported values", ""},
		{"no number", "web/log?tailLines=x", 400, "", ""},
		{"no agent", "away/log", 500, `Get "https://node-9:10250/containerLogs/ns/away/c": dial node-9:10250: no agent is connected for node "node-9"`, ""},
		{"another node's certificate", "wrong/log", 500, "x509: certificate is valid for node-1, not node-2", ""},
		{"another node's certificate, not verified", "wrong/log?insecureSkipTLSVerifyBackend=true", 200, "a line\n", "GET /containerLogs/ns/wrong/c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b.kubelet.mu.Lock()
			b.kubelet.paths = nil
			b.kubelet.mu.Unlock()
			code, body, header := b.get(t, http.MethodGet, ns+tc.path)
			if code != tc.code {
				t.Fatalf("code %d, want %d: %s", code, tc.code, body)
			}
			if code < 300 {
				if body != tc.want || body != "" && !strings.HasPrefix(header.Get("Content-Type"), "text/plain") {
					t.Errorf("got %q of type %s, want %q", body, header.Get("Content-Type"), tc.want)
				}
			} else if got := message(t, body); !strings.Contains(got, tc.want) {
				t.Errorf("says %q, want %q", got, tc.want)
			}
			b.kubelet.mu.Lock()
			defer b.kubelet.mu.Unlock()
			if got := strings.Join(b.kubelet.paths, ","); got != tc.asked {
				t.Errorf("the kubelet was asked %q, want %q", got, tc.asked)
			}
		})
	}
	b.kubelet.mu.Lock()
	defer b.kubelet.mu.Unlock()
	if got := slices.Compact(slices.Sorted(slices.Values(b.kubelet.peers))); !slices.Equal(got, []string{"kube-apiserver-kubelet-client"}) {
		t.Errorf("the kubelet was shown %q", got)
	}
}

// TestFollow: each line arrives when it is written, and the kubelet learns when
// the reader goes.
func TestFollow(t *testing.T) {
	b := start(t, nil)
	client, err := kubernetes.NewForConfig(b.config)
	if err != nil {
		t.Fatal(err)
	}
	b.kubelet.more <- "one" // an answer begins with the first line
	stream, err := client.CoreV1().Pods("ns").GetLogs("web", &corev1.PodLogOptions{Follow: true, TailLines: ptr.To[int64](1)}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stream)
	for i, want := range []string{"one", "two", "three"} {
		if i > 0 {
			b.kubelet.more <- want
		}
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q (%v), want %q", lines.Text(), lines.Err(), want)
		}
	}
	stream.Close()
	select {
	case <-b.kubelet.gone:
	case <-time.After(10 * time.Second):
		t.Error("the kubelet's request goes on without a reader")
	}
}

// TestConnectionsAreReused: requests one after the other do not pile up
// connections, and many at once leave few behind.
func TestConnectionsAreReused(t *testing.T) {
	b := start(t, nil)
	for range 20 {
		if code, body, _ := b.get(t, http.MethodGet, "/api/v1/namespaces/ns/pods/web/log"); code != 200 {
			t.Fatalf("%d %s", code, body)
		}
	}
	// The API server answers before its own request is quite over, so a
	// connection may not be back when the next request wants one.
	if n := b.net.dials("node-1:10250"); n > 10 {
		t.Errorf("%d connections for 20 requests", n)
	}
}

// TestDialTimeout: a node that does not answer is given up on in time.
func TestDialTimeout(t *testing.T) {
	b := start(t, func(o *Options) { o.DialTimeout = 100 * time.Millisecond })
	silent := silentListener(t)
	b.net.lead("node-9:10250", silent)
	began := time.Now()
	code, body, _ := b.get(t, http.MethodGet, "/api/v1/namespaces/ns/pods/away/log")
	if code != 500 || !strings.Contains(message(t, body), "timeout") {
		t.Errorf("%d %s", code, body)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}
