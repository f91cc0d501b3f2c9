// Tests of who tells that nodes have no session.

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/cmd/internal/explain"
	"github.com/hawser-project/hawser/controlplane/evidence"
)

// absencesOf is what an API tells that answers by path.
func absencesOf(t *testing.T, answers map[string]string) *absences {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, text) // whoever asks hears of it
		if r.URL.Path == "/hawser/status/fleet" && ok {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done() // the stream goes on
		}
	}))
	defer api.Close()
	client, _, err := clocked(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := readAbsences(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// attachedNode has a tunnel since a time, by a condition with a message.
func attachedNode(name, message string, at time.Time) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
		Type: evidence.TunnelConnected, Status: corev1.ConditionTrue, Message: message, LastHeartbeatTime: metav1.NewTime(at),
	}}}}
}

func TestThePageTellsWhoIsAway(t *testing.T) {
	a := absencesOf(t, map[string]string{"/hawser/status/fleet": `{"started":1000,"nodes":3,"rows":[{"node":"a","away":true},{"node":"b"}]}
{"nodes":3,"rows":[{"node":"c","away":true}]}
`})
	for name, want := range map[string]bool{"a": true, "b": false, "c": true, "d": false} {
		got := a.of(attachedNode(name, "session 1", time.Now()))
		if (got != nil) != want || want && *got != (explain.Away{Started: time.Unix(1000, 0), Certain: true}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestLeasesTellWhoIsAway(t *testing.T) {
	started := time.Date(2026, 11, 22, 14, 0, 0, 500, time.UTC)
	a := absencesOf(t, map[string]string{"/apis/coordination.k8s.io/v1/namespaces/hawser-servers/leases": `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","items":[
		{"metadata":{"name":"hub-a","annotations":{"hawser.dev/server-started":"` + started.Format(time.RFC3339Nano) + `"}}},{"metadata":{"name":"older"}}]}`})
	before, after := started.Add(-time.Hour), started.Add(2*time.Second)
	for what, tt := range map[string]struct {
		node *corev1.Node
		want *explain.Away
	}{
		"of before":           {attachedNode("n", "session 1, at server hub-a, round trip about 1ms", before), &explain.Away{Started: started}},
		"since":               {attachedNode("n", "session 1, at server hub-a", after), nil},
		"in that second":      {attachedNode("n", "session 1, at server hub-a", started.Truncate(time.Second)), nil},
		"of a hub that ended": {attachedNode("n", "session 1, at server hub-b", after), &explain.Away{}},
		"of an older hub":     {attachedNode("n", "session 1, at server older", before), nil},
		"with another too":    {attachedNode("n", "session 1, at server hub-a, also at hub-b", before), nil},
		"of one server alone": {attachedNode("n", "session 1", before), nil},
		"without a tunnel":    {&corev1.Node{}, nil},
	} {
		if got := a.of(tt.node); (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%s: %+v, want %+v", what, got, tt.want)
		}
	}
	if got := absencesOf(t, nil).of(attachedNode("n", "session 1, at server hub-a", before)); got != nil {
		t.Errorf("where nobody tells: %+v", got)
	}
}
