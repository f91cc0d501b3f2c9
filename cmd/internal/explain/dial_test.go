package explain

// What the API server's proxy may answer, and which layer that is.

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/tunnel"
)

const dialCause metav1.CauseType = "hawser.dev/DialFailed"

// statusOf is the answer of an API server.
func statusOf(t *testing.T, message string, causes ...metav1.StatusCause) []byte {
	t.Helper()
	s := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Message: message, Details: &metav1.StatusDetails{Causes: causes}}
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestDialLayers(t *testing.T) {
	for code, want := range map[tunnel.Code]Layer{
		tunnel.NoNode: DialSession, tunnel.Parked: DialSession, tunnel.Revoked: DialSession, tunnel.Denied: DialPolicy, tunnel.Refused: DialTarget,
		tunnel.Unresolved: DialTarget, tunnel.Timeout: DialTimeout, tunnel.Busy: DialLimit, tunnel.Internal: DialTunnel,
	} {
		var d Dial
		d.Judge(503, statusOf(t, proxyError+"dial n:80: so", metav1.StatusCause{Type: dialCause, Message: code.String()}), dialCause)
		if d.Verdict.Layer != want || d.Verdict.Text != "dial n:80: so" {
			t.Errorf("%v: %+v, want %s", code, d.Verdict, want)
		}
		err := &apierrors.StatusError{ErrStatus: metav1.Status{Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: dialCause, Message: code.String()}}}}}
		if NoSession(err, dialCause) != (want == DialSession) || NoSession(err, "another") {
			t.Errorf("%v: it says that there is no session: %v", code, NoSession(err, dialCause))
		}
	}
}

func TestDialAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		body   []byte
		want   Verdict
	}{
		"an answer":           {200, []byte("hello"), Verdict{Healthy, "reached: it answered HTTP 200"}},
		"an answer, not good": {404, []byte("nothing here"), Verdict{Healthy, "reached: it answered HTTP 404"}},
		"its JSON":            {500, []byte(`{"kind":"Other"}`), Verdict{Healthy, "reached: it answered HTTP 500"}},
		"no HTTP":             {503, statusOf(t, proxyError+"malformed HTTP response\n\"SSH-2.0\""), Verdict{Healthy, `reached: what is there does not speak HTTP as it was asked to: malformed HTTP response "SSH-2.0"`}},
		"forbidden":           {403, statusOf(t, "no"), Verdict{DialAPI, "the API server refuses: no"}},
		"too many requests":   {429, statusOf(t, "try again"), Verdict{DialLimit, "the API server takes no more requests for now: try again"}},
		"a server that fails": {500, statusOf(t, "etcdserver: request timed out"), Verdict{DialAPI, "the API server fails: etcdserver: request timed out"}},
		"no endpoints":        {503, statusOf(t, "no endpoints"), Verdict{DialObject, "there is nothing to dial: no endpoints"}},
		"another server":      {503, statusOf(t, proxyError+"dial tcp: refused"), Verdict{DialTunnel, "dial tcp: refused"}},
	} {
		var d Dial
		if d.Judge(tt.status, tt.body, dialCause); d.Verdict != tt.want {
			t.Errorf("%s: %+v", name, d.Verdict)
		}
	}
}

func TestDialText(t *testing.T) {
	d := Dial{Target: "node-1:22", Steps: []DialStep{{"Node", 1234567, "node-1"}, {"Dial", 3 * time.Second, "HTTP 500"}}}
	d.Fail(DialPolicy, "no %s", "way")
	var page bytes.Buffer
	if err := d.WriteText(&page); err != nil || page.String() != "Target   node-1:22\nVerdict  policy refuses: no way\nNode     1.23ms: node-1\nDial     3s: HTTP 500\n" {
		t.Errorf("%v\n%s", err, page.String())
	}
}

func TestDialWithoutAnswer(t *testing.T) {
	for connected, want := range map[bool]Layer{true: DialTimeout, false: DialSession} {
		var d Dial
		if d.Silent(time.Second, connected); d.Verdict.Layer != want {
			t.Errorf("connected %v: %+v", connected, d.Verdict)
		}
	}
}
