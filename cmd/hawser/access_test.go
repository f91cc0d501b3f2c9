package main

// Tests of what no certificate for a person may say, and of the service that is asked
// what users may.

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth"
)

func TestCheckPerson(t *testing.T) {
	for _, tt := range []struct {
		user   string
		groups []string
		lasts  time.Duration
		want   string
	}{
		{"ann", []string{"staff", "system:monitoring"}, time.Hour, ""},
		{"", nil, time.Hour, "--user is required"},
		{"system:node:node-1", nil, time.Hour, "--user \"system:node:node-1\""},
		{"ann", []string{"system:masters"}, time.Hour, "cluster-admin"},
		{"ann", []string{"system:nodes"}, time.Hour, "--group \"system:nodes\""},
		{"ann", []string{""}, time.Hour, "--group is empty"},
		{"ann", nil, time.Minute, "--for 1m0s"},
	} {
		err := checkPerson(tt.user, tt.groups, tt.lasts)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// The webhook says yes where nobody else does, its answer is remembered, and while it
// does not answer nobody gains or loses anything by it.
func TestAuthorizationWebhook(t *testing.T) {
	var asked atomic.Int32
	var down atomic.Bool
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var review authorizationv1.SubjectAccessReview
		if down.Load() || json.NewDecoder(r.Body).Decode(&review) != nil {
			http.Error(w, "down", http.StatusBadRequest) // which is not tried again
			return
		}
		review.Status.Allowed = review.Spec.User == "ann"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&review)
	}))
	defer service.Close()
	file := kubeconfigAt(t, service.URL)
	o := accessOptions{modes: []string{modeNode, modeWebhook}, webhookConfig: file, allowedTTL: time.Minute, deniedTTL: time.Minute}
	z, err := o.newAccess(kubeauth.NewObjects(), new(auth.Files))
	if err != nil {
		t.Fatal(err)
	}
	may := func(name string, groups ...string) bool {
		decision, _, _ := z.Authorize(context.Background(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: groups}, Verb: "get", Resource: "pods", ResourceRequest: true,
		})
		return decision == authorizer.DecisionAllow
	}
	for range 3 {
		if !may("ann") || may("bob") {
			t.Error("the service decides otherwise")
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d questions", n)
	}
	down.Store(true)
	if may("eve") || !may("ann") || !may("root", user.SystemPrivilegedGroup) {
		t.Error("a service that is down changes what others may")
	}
	// Another service takes its place without a restart.
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": {"allowed": true}}`)
	}))
	defer other.Close()
	if err := os.Rename(kubeconfigAt(t, other.URL), file); err != nil {
		t.Fatal(err)
	}
	for deadline := time.After(time.Minute); !may("zoe"); {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatal("the other service is not asked")
		}
	}
	o.webhookConfig = filepath.Join(t.TempDir(), "none")
	if _, err := o.newAccess(kubeauth.NewObjects(), new(auth.Files)); err == nil || !strings.Contains(err.Error(), "--authorization-webhook-config-file") || !strings.Contains(err.Error(), o.webhookConfig) {
		t.Errorf("a file that is not there: %v", err)
	}
}
