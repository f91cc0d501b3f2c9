// The node commands: what they say, and what they refuse.

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/cmd/internal/clitest"
)

func TestNodeCommandsRefuse(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, tt := range map[string]struct {
		args []string
		want string // in the error; empty means none
	}{
		"alone":              {nil, ""},
		"no such subcommand": {[]string{"delete", "x"}, `unknown command "delete" for "hawser node"`},
		"nobody":             {[]string{"revoke"}, "accepts 1 arg(s), received 0"},
		"two":                {[]string{"allow", "a", "b"}, "accepts 1 arg(s), received 2"},
		"upper case":         {[]string{"revoke", "Node-1"}, `node name "Node-1" must consist of lower case`},
		"a space":            {[]string{"revoke", "node-1 "}, `node name "node-1 " must consist of lower case`},
		"another's path":     {[]string{"allow", "../x"}, "must consist of lower case"},
		"no time":            {[]string{"allow", "a", "--for", "0s"}, "--for 0s: want more than zero"},
		"for ever":           {[]string{"allow", "a", "--for", "9999h"}, "--for 9999h0m0s: want more than zero, and 168h0m0s at most"},
		"no kubeconfig":      {[]string{"revoke", "a", "--kubeconfig", missing}, missing},
	} {
		t.Run(name, func(t *testing.T) {
			clitest.Refused(t, clitest.Run(t, newRoot(), "", append([]string{"node"}, tt.args...)...), tt.want)
		})
	}
}

// What the commands say, twice each, as they may be given again.
func TestNodeCommands(t *testing.T) {
	b := nodekeys.NewBook(fake.NewClientset())
	ctx := t.Context()
	var out bytes.Buffer
	says := func(want string, err error) {
		t.Helper()
		if err != nil || !strings.Contains(out.String(), want) || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("said %q (%v), want one line with %q", out.String(), err, want)
		}
		out.Reset()
	}
	if err := revokeNode(ctx, &out, b, "a", "root", ""); err == nil || !strings.Contains(err.Error(), `node "a" has no identity that could be revoked`) || out.Len() > 0 {
		t.Errorf("a node that is not there: %v", err)
	}
	says("the name a is free", allowNode(ctx, &out, b, "a", caller{"root", time.Now()}, time.Hour))
	if err := b.Claim(ctx, "a", nodekeys.Key{1}, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		says("node a is revoked (since ", revokeNode(ctx, &out, b, "a", "root", "stolen"))
	}
	for range 2 {
		says("the next machine that joins as a within 1h0m0s takes the name", allowNode(ctx, &out, b, "a", caller{"root", time.Now()}, time.Hour))
	}
	if err := revokeNode(ctx, &out, b, "a", "root", "two\nlines"); err == nil || !strings.Contains(err.Error(), "one line") {
		t.Errorf("a reason of two lines: %v", err)
	}
}

// Who may not is told so in one line; whoever is asked about is said who asks.
func TestNodeCommandsThroughTheAPI(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(&metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: 403, Message: "no: " + r.Method}) // the client's affair
	}))
	defer api.Close()
	file := kubeconfigAt(t, api.URL)
	root := newRoot()
	root.SetArgs([]string{"node", "revoke", "a", "--kubeconfig", file})
	root.SetOut(io.Discard)
	err := root.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "this takes an administrator's kubeconfig") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

// An allowance is for its time by the API server's clock, whatever this machine's is.
func TestAllowedByTheServersClock(t *testing.T) {
	for _, there := range []time.Time{time.Now().Add(-50 * time.Hour), time.Now().Add(50 * time.Hour)} {
		m := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
		m.Name, m.UID, m.Labels, m.Data = "a", "u", map[string]string{nodekeys.Label: "key"}, map[string]string{"record": "{}"}
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") {
				review := &authenticationv1.SelfSubjectReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}}
				review.CreationTimestamp, review.Status.UserInfo.Username = metav1.NewTime(there), "root"
				_ = json.NewEncoder(w).Encode(review) // the client's affair
				return
			}
			if r.Method == http.MethodPut {
				body, _ := io.ReadAll(r.Body) // as above
				if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, m); err != nil {
					t.Errorf("what is written: %v", err)
				}
				m.APIVersion, m.Kind = "v1", "ConfigMap"
			}
			_ = json.NewEncoder(w).Encode(m) // as above
		}))
		if err := clitest.Run(t, newRoot(), "", "node", "allow", "a", "--for", "2h", "--kubeconfig", kubeconfigAt(t, api.URL)); err != nil {
			t.Error(err)
		}
		api.Close()
		want := there.Add(2 * time.Hour).UTC().Format(time.RFC3339)
		if !strings.Contains(m.Data["record"], `"until": "`+want+`"`) || !strings.Contains(m.Data["record"], `"by": "root"`) {
			t.Errorf("wrote %v, want until %s", m.Data, want)
		}
	}
}

// explain says that a node is revoked, and since when and by whom.
func TestExplainRevoked(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	b := nodekeys.NewBook(client)
	if err := b.Claim(t.Context(), "a", nodekeys.Key{1}, ""); err != nil {
		t.Fatal(err)
	}
	o, err := gather(t.Context(), client, &serverClock{}, "a")
	if err != nil || o.Revoked != "" || !o.Held || !strings.Contains(o.Identity, "held by key sha256:0100") {
		t.Errorf("held: %+v, %v", o, err)
	}
	if _, err := b.Revoke(t.Context(), "a", "root", "stolen"); err != nil {
		t.Fatal(err)
	}
	o, err = gather(t.Context(), client, &serverClock{}, "a")
	if err != nil || o.Held || !o.Allowed.IsZero() || !strings.Contains(o.Revoked, "by root: stolen") || o.Identity != o.Revoked {
		t.Errorf("revoked: %+v, %v", o, err)
	}
	if err = b.Allow(t.Context(), "a", "root", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if o, err = gather(t.Context(), client, &serverClock{}, "a"); err != nil || o.Revoked == "" || time.Until(o.Allowed) < 50*time.Minute {
		t.Errorf("allowed: %+v, %v", o, err)
	}
	if all, err := readRevoked(t.Context(), client); err != nil || len(all) != 1 || all["a"] == nil {
		t.Errorf("of the fleet: %v, %v", all, err)
	}
}
