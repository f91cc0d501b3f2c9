// Tests of the bundle: what is in it, what is not, and what becomes of a server that tells
// little.

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/tunnel"
)

const diagKey = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIsecret\n-----END EC PRIVATE KEY-----"

// unavailable is the path of what is said of those that are not there.
const unavailable = "unavailable"

// told is in place of a file what is told of the bundle.
const told = "told"

// bundleOf is what is gathered of an API that answers by path, some with an error.
func bundleOf(t *testing.T, nodes []string, answers map[string]string) (files map[string]string, err error) {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		text, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
			text = answers[unavailable]
		}
		_, _ = io.WriteString(w, text) // whoever asks hears of it
	}))
	defer api.Close()
	rc := &rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		t.Fatal(err)
	}
	at := client.Discovery().RESTClient()
	var out, progress bytes.Buffer
	if err := gatherBundle(t.Context(), &out, &progress, map[string]rest.Interface{"server": at, "hub": at}, rc, nodes); err != nil {
		return nil, err
	}
	zip, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{told: progress.String()}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		text, rerr := io.ReadAll(r)
		if err = errors.Join(err, rerr); err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "hawser-diag/")] = string(text)
	}
}

// usualAnswers are those of a server with one node that is broken.
func usualAnswers() map[string]string {
	answers := map[string]string{
		"/api/v1/nodes": `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"lost","annotations":{"a":"token abcdef.0123456789abcdef"}},
			"status":{"conditions":[{"type":"Ready","status":"False","reason":"KubeletNotReady","message":"Bearer abc.def"}]}}]}`,
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases": `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","items":[{"metadata":{"name":"lost"},
			"spec":{"renewTime":"` + time.Now().UTC().Format(metav1.RFC3339Micro) + `"}}]}`,
		"/api/v1/events":                                 `{"kind":"EventList","apiVersion":"v1"}`,
		"/metrics":                                       "up 1\n",
		"/debug/pprof/heap":                              "Bearer of no text",
		"/debug/pprof/trace":                             "Bearer of a trace",
		"/hawser/status/fleet":                           `{"nodes":1,"rows":[{"node":"lost"}],"audit":[{"user":"ann"}]}` + "\n" + `{"nodes":2,"audit":[{"user":"ann"}]}` + "\n" + `{"no`,
		"/api/v1/nodes/lost/proxy/healthz":               "proxy http://joe:pass@10.0.0.1/ " + diagKey,
		"/api/v1/nodes/lost/proxy/metrics":               "node_up 1\n",
		"/api/v1/nodes/lost/proxy/configz":               `{"hawser-agent":{"flags":{"token":"abcdef.0123456789abcdef"}}}`,
		"/api/v1/nodes/lost/proxy/debug/pprof/goroutine": "goroutine profile: total 7",
		"/api/v1/nodes/lost/proxy/stats/summary":         "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl",
	}
	return answers
}

func TestBundle(t *testing.T) {
	files, err := bundleOf(t, nil, usualAnswers())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"server/metrics.txt":        "up 1\n",
		"server/heap.pb.gz":         "Bearer of no text",
		"hub/trace.out":             "Bearer of a trace",
		"hub/metrics.txt":           "up 1\n",
		"server/sessions.ndjson":    `"rows":[{"node":"lost"}]}` + "\n" + `{"nodes":2}` + "\n",
		"nodes/lost/metrics.txt":    "node_up 1\n",
		"nodes/lost/health.txt":     "proxy http://REDACTED@10.0.0.1/ REDACTED",
		"nodes/lost/stats.json":     "REDACTED",
		"nodes/lost/config.json":    `"token":"REDACTED"`,
		"nodes/lost/goroutines.txt": "total 7",
		"fleet/nodes.json":          `"annotations":{"a":"REDACTED"}`,
		"fleet/explain.txt":         "1 node: 1 broken, 0 not; 0 cordoned",
		"fleet/explain.json":        "Bearer REDACTED",
		"summary.txt":               "server/version.json is not here: ",
		told:                        "nodes/lost/heap.pb.gz\n11 of 29 files could not be had: see summary.txt\n",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q: %q", name, want, files[name])
		}
	}
	for name, text := range files {
		for _, secret := range []string{"0123456789abcdef", "abc.def", "joe:pass", "MHcCAQEEIsecret", `"ann"`, "c2lnbmF0dXJl"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q in it", name, secret)
			}
		}
	}
	if files, err = bundleOf(t, []string{"other"}, usualAnswers()); err != nil || files["nodes/lost/metrics.txt"] != "" ||
		!strings.Contains(files["summary.txt"], "nodes/other/metrics.txt is not here: ") {
		t.Errorf("another node: %v, %q", err, files["summary.txt"])
	}
}

// TestBundleOfUnknownNode: a name that no node has is refused, unless the API cannot tell.
func TestBundleOfUnknownNode(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	if err := checkNodes(t.Context(), client, []string{"node-1"}); err != nil {
		t.Error(err)
	}
	err := checkNodes(t.Context(), client, []string{"node-1", "nod-1"})
	if err == nil || !strings.HasPrefix(err.Error(), `--node "nod-1": there is no such node`) {
		t.Errorf("got %v", err)
	}
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTimeoutError("sick", 1)
	})
	if err := checkNodes(t.Context(), client, []string{"nod-1"}); err != nil {
		t.Error(err)
	}
}

// TestBundleWithoutSession: a node that has no session is asked once.
func TestBundleWithoutSession(t *testing.T) {
	answers := usualAnswers()
	for path := range answers {
		if strings.HasPrefix(path, "/api/v1/nodes/lost/") {
			delete(answers, path)
		}
	}
	answers[unavailable] = `{"kind":"Status","apiVersion":"v1","status":"Failure","code":503,"message":"error trying to reach service: dial lost:10250: no session",
		"details":{"causes":[{"reason":"hawser.dev/DialFailed","message":"` + tunnel.NoNode.String() + `"}]}}`
	files, err := bundleOf(t, nil, answers)
	if err != nil {
		t.Fatal(err)
	}
	summary := files["summary.txt"]
	if strings.Count(summary, "nodes/lost/") != 1 || strings.Count(summary, "nodes/lost has no other files: the node has no session\n") != 1 {
		t.Errorf("the summary says %q", summary)
	}
}

// TestBundleOfTheSick: an API that cannot list its nodes is no reason to have nothing of the
// server.
func TestBundleOfTheSick(t *testing.T) {
	answers := usualAnswers()
	delete(answers, "/api/v1/nodes")
	answers["/version"] = "{}"
	answers["/apis/coordination.k8s.io/v1/namespaces/hawser-servers/leases"] = `{"items":[{"metadata":{"name":"hub-a"}}]}`
	files, err := bundleOf(t, nil, answers)
	if err != nil {
		t.Fatal(err)
	}
	if files["server/metrics.txt"] != "up 1\n" || !strings.Contains(files["summary.txt"], "fleet/explain.json is not here: ") {
		t.Errorf("the bundle has %q, and says %q", slices.Sorted(maps.Keys(files)), files["summary.txt"])
	}
	if !strings.Contains(files["fleet/servers.json"], "hub-a") {
		t.Errorf("of the servers: %q", files["fleet/servers.json"])
	}
}

// TestNoBundle: a server that answers nothing leaves no file, and a file that is there stays.
func TestNoBundle(t *testing.T) {
	if _, err := bundleOf(t, nil, nil); err == nil || !strings.HasPrefix(err.Error(), "the server tells nothing: ") {
		t.Errorf("got %v", err)
	}
	file := filepath.Join(t.TempDir(), "diag.tar.gz")
	broken := errors.New("broken")
	if err := writeBundle(file, func(io.Writer) error { return broken }, io.Discard); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
	var out strings.Builder
	good := func(w io.Writer) error { _, err := fmt.Fprint(w, "good"); return err }
	if err := writeBundle(file, good, &out); err != nil || out.String() != file+"\n" {
		t.Errorf("%v, %q", err, out.String())
	}
	if err := writeBundle(file, func(io.Writer) error { return broken }, io.Discard); !errors.Is(err, os.ErrExist) {
		t.Errorf("over one that is there: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "good" {
		t.Errorf("%q, %v", text, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Secrets in the forms in which they are found in texts, and texts that have none.
func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"https://ghp_alone@git.example/x":                       "https://REDACTED@git.example/x",
		"http://joe:p@ss@host/":                                 "http://REDACTED@host/",
		"redis://:secret@host":                                  "redis://REDACTED@host",
		"GET /x?access_token=opaque&password=other&a=b":         "GET /x?access_token=REDACTED&password=REDACTED&a=b",
		`{"Token":"opaque","n":1}`:                              `{"Token":"REDACTED","n":1}`,
		`"{\"password\": \"opaque\"}"`:                          `"{\"password\": \"REDACTED\"}"`,
		"client-key-data: LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0=": "client-key-data: REDACTED",
		"x LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVkt y":              "x REDACTED y",
		"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t":                  "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t",
		`{"f:token":{},"token-file":"/etc/t"}`:                  `{"f:token":{},"token-file":"/etc/t"}`,
		`x_total{resource="secrets",verb="get"} 1`:              `x_total{resource="secrets",verb="get"} 1`,
		"https://host:6443/api?limit=1":                         "https://host:6443/api?limit=1",
		`"annotations":{"a/b":"opaque","kubectl.kubernetes.io/last-applied-configuration":"{\"x\":\"opaque\"}","volumes.kubernetes.io/x":"true","node.hawser.dev/y":"1"},"z":"a"`: `"annotations":{"a/b":"REDACTED","kubectl.kubernetes.io/last-applied-configuration":"REDACTED","volumes.kubernetes.io/x":"true","node.hawser.dev/y":"1"},"z":"a"`,
		`"annotations":{},"z":"a"`:                        `"annotations":{},"z":"a"`,
		`"annotations":{"notkubernetes.io/x":"opaque"`:    `"annotations":{"notkubernetes.io/x":"REDACTED"`,
		`"f:annotations":{"f:a/b":{}},"labels":{"a":"b"}`: `"f:annotations":{"f:a/b":{}},"labels":{"a":"b"}`,
	} {
		if got := string(redact([]byte(in))); got != want {
			t.Errorf("%s becomes\n%s, want\n%s", in, got, want)
		}
	}
}

// TestBundleInterrupted: an interrupt ends the gathering with an error, and no file is left.
func TestBundleInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	answers := usualAnswers()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == processFiles[1].path {
			interrupt()
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answers[r.URL.Path])
	}))
	defer api.Close()
	rc := &rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bundle")
	err = writeBundle(file, func(w io.Writer) error {
		return gatherBundle(ctx, w, io.Discard, map[string]rest.Interface{"server": client.Discovery().RESTClient()}, rc, nil)
	}, io.Discard)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
}
