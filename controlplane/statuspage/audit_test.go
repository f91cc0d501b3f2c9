package statuspage

// Tests of the audit log's latest lines.

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
)

func event(user, verb string, o *auditinternal.ObjectReference, uri string) *auditinternal.Event {
	return &auditinternal.Event{
		Stage: auditinternal.StageResponseComplete, User: authenticationv1.UserInfo{Username: user}, Verb: verb, ObjectRef: o, RequestURI: uri,
		ResponseStatus: &metav1.Status{Code: 200, Message: "hidden"}, SourceIPs: []string{"192.0.2.1"},
		RequestObject: &runtime.Unknown{Raw: []byte("hidden")}, ResponseObject: &runtime.Unknown{Raw: []byte("hidden")},
		Annotations: map[string]string{"hidden": "hidden"},
	}
}

func TestAuditLinesAreMetadata(t *testing.T) {
	p, _ := newTestPage()
	v := &viewer{page: p}
	secret := &auditinternal.ObjectReference{Resource: "secrets", Namespace: "shop", Name: "key"}
	arrived := event("ann", "create", secret, "")
	arrived.Stage = auditinternal.StageRequestReceived
	as := event("ann", "get", &auditinternal.ObjectReference{Resource: "pods", Subresource: "exec", Namespace: "shop", Name: "web"}, "/api/v1/namespaces/shop/pods/web/exec?command=hidden")
	as.ImpersonatedUser = &authenticationv1.UserInfo{Username: "bob"}
	refused := event("system:anonymous", "list", secret, "")
	refused.ResponseStatus.Code = 403
	p.Audit().ProcessEvents(
		arrived, event("system:anonymous", "get", nil, "/readyz"), refused, event("ann", "create", secret, "/api/v1/namespaces/shop/secrets"), as, event("ann", "get", nil, "/metrics?token=hidden"),
		event("system:node:node-1", "update", secret, ""), event("system:kube-scheduler", "create", secret, ""),
		event("system:serviceaccount:kube-system:hawser-ccm", "update", secret, ""),
		event("system:serviceaccount:shop:web", "list", &auditinternal.ObjectReference{APIGroup: "apps", Resource: "deployments"}, ""),
	)
	_, m := v.told()
	var got []string
	for _, l := range m.Audit {
		got = append(got, fmt.Sprintf("%s %s %s %d", l.User, l.Verb, l.What, l.Code))
	}
	want := "ann create secrets shop key 200; ann as bob get pods/exec shop web 200; ann get /metrics 200; system:serviceaccount:shop:web list deployments.apps 200"
	if s := strings.Join(got, "; "); s != want {
		t.Errorf("%s, want %s", s, want)
	}
	if text, err := json.Marshal(m); err != nil || strings.Contains(string(text), "hidden") {
		t.Errorf("%s, %v", text, err)
	}
	if _, m = v.told(); len(m.Audit) > 0 {
		t.Errorf("they come twice: %+v", m.Audit)
	}
}

// TestStrangersLeaveNoAuditLines: whoever knows no more than the address would leave no place
// for the lines of others.
func TestStrangersLeaveNoAuditLines(t *testing.T) {
	p, _ := newTestPage()
	p.Audit().ProcessEvents(event("ann", "delete", nil, "/x"))
	for i := range maxAudit {
		e := event([]string{"system:anonymous", ""}[i%2], "get", nil, "/")
		e.ResponseStatus.Code = []int32{403, 401}[i%2]
		p.Audit().ProcessEvents(e)
	}
	if _, m := (&viewer{page: p}).told(); len(m.Audit) != 1 || m.Audit[0].User != "ann" {
		t.Errorf("%d lines: %+v", len(m.Audit), m.Audit)
	}
}

// TestAuditLineOfLongRequest: what goes on is shown once, as soon as it is answered.
func TestAuditLineOfLongRequest(t *testing.T) {
	p, _ := newTestPage()
	v := &viewer{page: p}
	begun := event("ann", "create", &auditinternal.ObjectReference{Resource: "pods", Subresource: "exec", Name: "web"}, "")
	begun.Stage, begun.ResponseStatus.Code = auditinternal.StageResponseStarted, 101
	begun.RequestReceivedTimestamp = metav1.NowMicro()
	p.Audit().ProcessEvents(begun)
	if _, m := v.told(); len(m.Audit) != 1 || m.Audit[0].Code != 101 {
		t.Fatalf("while it goes on: %+v", m.Audit)
	}
	other := event("ann", "get", nil, "/version")
	other.RequestReceivedTimestamp = begun.RequestReceivedTimestamp
	ended := begun.DeepCopy()
	ended.Stage = auditinternal.StageResponseComplete
	p.Audit().ProcessEvents(ended, other)
	if _, m := v.told(); len(m.Audit) != 1 || m.Audit[0].What != "/version" {
		t.Errorf("at its end, and another: %+v", m.Audit)
	}
}

// TestAuditIDsAreTheClients: who sends the ID of another request with a deletion does not hide
// that, and the end of a request that goes on hides one line only.
func TestAuditIDsAreTheClients(t *testing.T) {
	p, _ := newTestPage()
	begun, deleted := event("ann", "get", nil, "/version"), event("ann", "delete", &auditinternal.ObjectReference{Resource: "secrets", Name: "s"}, "")
	begun.AuditID, deleted.AuditID = "x", "x"
	begun.Stage, begun.RequestReceivedTimestamp = auditinternal.StageResponseStarted, metav1.NowMicro()
	p.Audit().ProcessEvents(begun, deleted)
	ended := begun.DeepCopy()
	ended.Stage = auditinternal.StageResponseComplete
	p.Audit().ProcessEvents(ended, ended)
	if _, m := (&viewer{page: p}).told(); len(m.Audit) != 3 || m.Audit[1].Verb != "delete" {
		t.Errorf("%+v", m.Audit)
	}
}

func TestAuditLinesAreBounded(t *testing.T) {
	p, _ := newTestPage()
	long := strings.Repeat("<b>", 1<<20)
	for i := range 3*maxAudit + 7 {
		p.Audit().ProcessEvents(event(long, fmt.Sprint(i), &auditinternal.ObjectReference{Resource: long, Name: long}, long))
	}
	_, m := (&viewer{page: p}).told()
	if n := len(m.Audit); n != maxAudit || m.Audit[0].Verb != fmt.Sprint(2*maxAudit+7) || m.Audit[n-1].Verb != fmt.Sprint(3*maxAudit+6) {
		t.Errorf("%d lines from %s", n, m.Audit[0].Verb)
	}
	if text, err := json.Marshal(m.Audit); err != nil || len(text) > maxAudit*4<<10 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
