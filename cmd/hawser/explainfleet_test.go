// Tests of what explain fleet asks of the API.

package main

import (
	"bytes"
	"encoding/json"
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

	"github.com/hawser-project/hawser/cmd/internal/explain"
)

// TestExplainFleet: the lease and the events of a node count for it, and the lists come in
// pieces.
func TestExplainFleet(t *testing.T) {
	now := time.Now()
	node := func(name, ready string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionStatus(ready), LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))},
		}}}
	}
	renewed := metav1.NewMicroTime(now)
	fresh := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "well"}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
	frozen := corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "lost"}, Reason: explain.EvictionFrozen, LastTimestamp: metav1.NewTime(now),
		Message: "No pod is evicted from node lost: Autonomy: an annotation keeps its pods until tomorrow",
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		switch q := r.URL.Query(); r.URL.Path {
		case "/api/v1/nodes":
			list := &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, Items: []corev1.Node{node("lost", "Unknown")}}
			if list.Continue = "more"; q.Get("continue") == "more" {
				list.Continue, list.Items = "", []corev1.Node{node("well", "True")}
			}
			answer = list
		case "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases":
			answer = &coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}, Items: []coordinationv1.Lease{fresh}}
		case "/api/v1/events":
			list := &corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}}
			if selector := q.Get("fieldSelector"); strings.Contains(selector, "involvedObject.kind=Node") && strings.Contains(selector, "reason="+explain.EvictionFrozen) {
				list.Items = []corev1.Event{frozen}
			}
			answer = list
		case "/api/v1/namespaces/hawser-node-identities/configmaps", "/hawser/status/fleet", "/apis/coordination.k8s.io/v1/namespaces/hawser-servers/leases":
			w.WriteHeader(http.StatusForbidden)
			answer = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden}
		default:
			t.Errorf("asks for %s", r.URL.Path)
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer api.Close()
	rc := &rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	var page bytes.Buffer
	if err := explainFleet(t.Context(), &page, rc, explainFlags{grace: 40 * time.Second, notes: io.Discard}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 nodes: 1 broken, 1 not; 0 cordoned\n", ": lost\n", "next:   1 node: evictions are frozen (Autonomy): an annotation keeps its pods until tomorrow\n"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("lacks %q:\n%s", want, page.String())
		}
	}
}
