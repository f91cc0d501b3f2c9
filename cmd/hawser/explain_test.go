// Tests of what explain asks, and of the words between the hub and the controllers.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/server"
)

// explained is what explain says of a node of an API whose clock is an hour ahead. The node, whose
// clock is so far behind that, is Ready and renews its Lease as soon as somebody watches.
func explained(t *testing.T, name, output string, behind time.Duration) string {
	t.Helper()
	later := time.Now().Add(time.Hour)
	renewed := metav1.NewMicroTime(later.Add(-behind))
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	answers := map[string]any{
		"/api/v1/nodes/node-1": &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}},
		},
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1": &coordinationv1.Lease{
			TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
			Spec:     coordinationv1.LeaseSpec{RenewTime: &renewed},
		},
		"/api/v1/events": &corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}},
		"/api/v1/pods":   &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}},
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Date", later.UTC().Format(http.TimeFormat))
		if sel := r.URL.Query().Get("fieldSelector"); strings.HasSuffix(r.URL.Path, "s") && !strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/") && !strings.Contains(sel, name) {
			t.Errorf("%s lists %q", r.URL.Path, sel)
		}
		if r.URL.Query().Get("watch") != "" {
			again := metav1.NewMicroTime(renewed.Add(time.Second))
			l := &coordinationv1.Lease{
				TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: coordinationv1.LeaseSpec{RenewTime: &again},
			}
			if err := json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": l}); err != nil {
				t.Error(err)
			}
			return
		}
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer api.Close()
	var out bytes.Buffer
	rc := &rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	err := explainNode(t.Context(), &out, rc, name, explainFlags{grace: 40 * time.Second, output: output, notes: io.Discard})
	if _, there := answers["/api/v1/nodes/"+name]; there != (err == nil) || !there && !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
		t.Errorf("node %s is there: %v; got %v", name, there, err)
	}
	return out.String()
}

// The server's clock is what counts.
func TestExplainNode(t *testing.T) {
	if page := explained(t, "node-1", "", 3*time.Second); !strings.Contains(page, "nothing is broken") || !strings.Contains(page, "fresh: lease renewed ") {
		t.Errorf("the page:\n%s", page)
	}
	if page := explained(t, "node-1", "", 55*time.Second); !strings.Contains(page, "nothing is broken, but its clock is 5") || !strings.Contains(page, "fresh: lease renewed 5") {
		t.Errorf("the page of a node whose clock is behind:\n%s", page)
	}
	if page := explained(t, "node-9", "", 0); !strings.Contains(page, "there is no node of this name") {
		t.Errorf("the page of no node:\n%s", page)
	}
	var report struct {
		Verdict struct{ Layer string }
	}
	if raw := explained(t, "node-9", "json", 0); json.Unmarshal([]byte(raw), &report) != nil || report.Verdict.Layer != "never-joined" {
		t.Errorf("as JSON:\n%s", raw)
	}
}

func TestExplainRefuses(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"node"}, "accepts 1 arg(s), received 0"},
		{[]string{"node", "n", "-o", "yaml"}, "-o yaml: there is json"},
		{[]string{"node", "n", "--node-monitor-grace-period", "0s"}, "is not above zero"},
		{[]string{"node", "n", "--dir", "x", "--kubeconfig", "y"}, "give one"},
		{[]string{"node", "n", "--dir", "/nonexistent"}, "/nonexistent/admin.kubeconfig"},
		{[]string{"pod", "p"}, "unknown command"},
	} {
		cmd := newExplain()
		cmd.SetArgs(tc.args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(context.WithoutCancel(t.Context())); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %q", tc.args, err, tc.want)
		}
	}
}

// Every state and cause of the hub is one of the judge's.
func TestWordsOfTheHub(t *testing.T) {
	states := map[server.State]evidence.State{
		server.Attached: evidence.Attached, server.Parked: evidence.Parked, server.Detached: evidence.Detached,
	}
	causes := map[server.Cause]evidence.Cause{
		server.Unknown: "", server.Silent: evidence.Silent, server.Closed: evidence.Closed, server.Left: evidence.Left,
		server.Replaced: evidence.Replaced, server.Refused: evidence.Refused, server.Drained: evidence.Drained, server.Failed: evidence.Failed,
	}
	at := time.Now()
	for state, wantState := range states {
		for cause, wantCause := range causes {
			c := server.Change{Number: 3, At: at, State: state, Cause: cause, Err: "e", Heard: at, Session: 4, Transport: "quic", Addr: "a"}
			o := server.Observation{Node: "n", Change: c, Changes: []server.Change{c}, RTT: 5, Window: 6}
			s := sessionOf(&o)
			want := evidence.Change{Number: 3, At: at, State: wantState, Cause: wantCause, Err: "e", Heard: at, Session: 4, Transport: "quic", Addr: "a"}
			if s.Change != want || len(s.Changes) != 1 || s.Changes[0] != want || s.Node != "n" || s.RTT != 5 || s.Window != 6 {
				t.Errorf("%v %v: %+v", state, cause, s)
			}
		}
	}
}
