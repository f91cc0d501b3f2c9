package kubelet

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestSummaries: a node is asked with our certificate, and its answer is bounded.
func TestSummaries(t *testing.T) {
	var o Options
	b := start(t, func(opts *Options) { o = *opts })
	b.serveKubelet(t, "node-2:10250", "node-1") // the certificate of another node
	ask := Summaries(o)
	b.kubelet.stats = func(w http.ResponseWriter) { fmt.Fprint(w, `{"node":{"nodeName":"node-1"}}`) }
	s, err := ask(t.Context(), "node-1")
	if err != nil || s.Node.NodeName != "node-1" {
		t.Errorf("%+v, %v", s, err)
	}
	b.kubelet.mu.Lock()
	paths, peers := fmt.Sprint(b.kubelet.paths), fmt.Sprint(b.kubelet.peers)
	b.kubelet.mu.Unlock()
	if paths != "[GET /stats/summary?only_cpu_and_memory=true]" || peers != "[kube-apiserver-kubelet-client]" {
		t.Errorf("asked %s as %s", paths, peers)
	}
	for _, tc := range []struct {
		name, node, want string
		answer           func(http.ResponseWriter)
	}{
		{"refused", "node-1", "403 Forbidden", func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) }},
		{"elsewhere", "node-1", "302 Found", func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://node-2:10250/")
			w.WriteHeader(http.StatusFound)
		}},
		{"no summary", "node-1", "not a summary", func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") }},
		{"a negative count", "node-1", "not a summary", func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"node":{"cpu":{"usageNanoCores":-1}}}`)
		}},
		{"too much", "node-1", "more than 4194304 bytes", func(w http.ResponseWriter) {
			fmt.Fprintf(w, `{"node":{"nodeName":"%s"}}`, strings.Repeat("x", maxSummary))
		}},
		{"another's certificate", "node-2", "certificate is valid for node-1, not node-2", nil},
		{"no agent", "node-9", "no agent is connected", nil},
		{"no node", "gone", `nodes "gone" not found`, nil},
	} {
		b.kubelet.stats = tc.answer
		if _, err := ask(t.Context(), tc.node); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.name, err, tc.want)
		}
	}
}
