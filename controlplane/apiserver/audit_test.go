package apiserver_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// auditPolicy keeps the bodies of config maps and never those of secrets.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: "", resources: [secrets]}]
- level: RequestResponse
  resources: [{group: "", resources: [configmaps]}]
  namespaces: [default]
- level: None
`

// A book is an audit log that can be read, and whose disk may be full.
type book struct {
	mu    sync.Mutex
	full  bool
	lines bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full {
		return 0, errors.New("no space left on device")
	}
	return b.lines.Write(p)
}

func (b *book) fill(full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full = full
}

func (b *book) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.String()
}

func policyFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// startAudited runs a server whose audit log is out.
func startAudited(t *testing.T, out io.Writer, mode string) *instance {
	t.Helper()
	file := policyFile(t, auditPolicy)
	in, err := startWith(t.TempDir(), func(c *apiserver.Config) { c.Audit = apiserver.Audit{PolicyFile: file, Out: out, Mode: mode} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// What the policy calls for is in the log: who did what, and what came of it.
func TestAuditLog(t *testing.T) {
	for _, mode := range []string{apiserver.AuditBlocking, apiserver.AuditBatch} {
		t.Run(mode, func(t *testing.T) {
			log := &book{}
			in := startAudited(t, log, mode)
			jane := must(kubernetes.NewForConfig(as(in.config, "jane", "testers")))(t)
			core := jane.CoreV1()
			must(core.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "do-not-tell"}}, metav1.CreateOptions{}))(t)
			must(core.Secrets("default").Get(t.Context(), "s", metav1.GetOptions{}))(t)
			must(core.ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"k": "tell-it"}}, metav1.CreateOptions{}))(t)
			if _, err := core.Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			until(t, "the line of the config map is written", func() bool { return strings.Contains(log.text(), "tell-it") })
			text := log.text()
			if strings.Contains(text, "do-not-tell") || strings.Contains(text, "ZG8tbm90LXRlbGw") {
				t.Error("a secret's body is in the log")
			}
			seen := map[string]auditv1.Event{}
			for line := range strings.Lines(text) {
				var e auditv1.Event
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				if e.User.Username == "jane" {
					seen[e.Verb+" "+e.ObjectRef.Resource] = e
				}
			}
			for what, level := range map[string]auditv1.Level{"create secrets": auditv1.LevelMetadata, "get secrets": auditv1.LevelMetadata, "create configmaps": auditv1.LevelRequestResponse} {
				e := seen[what]
				if e.Level != level || e.ResponseStatus == nil || e.ResponseStatus.Code/100 != 2 || e.ObjectRef.Namespace != "default" || e.SourceIPs[0] != "127.0.0.1" {
					t.Errorf("%s: %+v", what, e)
				}
			}
			if e, ok := seen["list pods"]; ok {
				t.Errorf("the policy leaves out %+v", e)
			}
		})
	}
}

// A disk that is full stops no request, unless that was asked for, and is counted.
func TestAuditLogOnFullDisk(t *testing.T) {
	log := &book{}
	in := startAudited(t, log, apiserver.AuditBlocking)
	log.fill(true)
	before := counted(t, in, `apiserver_audit_error_total{plugin="log"}`)
	must(in.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}))(t)
	until(t, "the lost line is counted", func() bool { return counted(t, in, `apiserver_audit_error_total{plugin="log"}`) > before })
}

func TestBrokenAuditIsRefused(t *testing.T) {
	good := policyFile(t, auditPolicy)
	for _, c := range []struct {
		name  string
		audit apiserver.Audit
		want  []string
	}{
		{"no policy", apiserver.Audit{Out: io.Discard}, []string{"audit-policy-file", "name one"}},
		{"missing", apiserver.Audit{PolicyFile: "/nowhere/policy.yaml", Out: io.Discard}, []string{"/nowhere/policy.yaml", "no such file"}},
		{"not YAML", apiserver.Audit{PolicyFile: policyFile(t, "a: [b"), Out: io.Discard}, []string{"policy.yaml", "line 1"}},
		{"a brace is missing", apiserver.Audit{PolicyFile: policyFile(t, "{\"kind\": \"Policy\",\n\"rules\": []\n"), Out: io.Discard}, []string{"policy.yaml", "line 2", "end of JSON"}},
		{"another kind", apiserver.Audit{PolicyFile: policyFile(t, "apiVersion: v1\nkind: Pod\n"), Out: io.Discard}, []string{"policy.yaml", "Pod"}},
		{"no rules", apiserver.Audit{PolicyFile: policyFile(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\n"), Out: io.Discard}, []string{"policy.yaml", "0 rules"}},
		{"no such level", apiserver.Audit{PolicyFile: policyFile(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]\n"), Out: io.Discard}, []string{"policy.yaml", "line 3", "rules[0].level", "All"}},
		{"no such format", apiserver.Audit{PolicyFile: good, Out: io.Discard, Format: "xml"}, []string{`"xml"`, "legacy, json"}},
		{"no such mode", apiserver.Audit{PolicyFile: good, Out: io.Discard, Mode: "lax"}, []string{`"lax"`, "batch"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := startWith(t.TempDir(), func(cfg *apiserver.Config) { cfg.Audit = c.audit })
			if err == nil {
				t.Fatal("started")
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v: want %q", err, w)
				}
			}
		})
	}
}

// counted is the value of a series that /metrics shows, 0 if there is none.
func counted(t *testing.T, in *instance, series string) float64 {
	t.Helper()
	body := must(in.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return must(strconv.ParseFloat(strings.TrimSpace(value), 64))(t)
		}
	}
	return 0
}
