package apiserver_test

// Tests of an audit policy that is replaced while requests come in.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// atLevel is a policy for config maps.
func atLevel(level auditv1.Level) []byte {
	return fmt.Appendf(nil, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: %s\n  resources: [{group: \"\", resources: [configmaps]}]\n  namespaces: [default]\n- level: None\n", level)
}

// Whatever becomes of the policy, each request is in the log once for each stage, at one
// level. A broken policy is told once and changes nothing.
func TestAuditPolicyIsFollowed(t *testing.T) {
	out, told := &book{}, &book{}
	file := policyFile(t, string(atLevel(auditv1.LevelMetadata)))
	in, err := startWith(t.TempDir(), func(c *apiserver.Config) {
		c.Audit = apiserver.Audit{PolicyFile: file, Out: out}
		c.Log = slog.New(slog.NewTextHandler(told, nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	var made atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m-%d", made.Add(1))}, Data: map[string]string{"k": "v"}}
				if _, err := in.client.CoreV1().ConfigMaps("default").Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	write := func(policy []byte) {
		if err := os.WriteFile(file, policy, 0o600); err != nil {
			t.Error(err)
		}
	}
	logged := func(text string) func() bool {
		return func() bool { return strings.Contains(out.text(), text) }
	}
	until(t, "requests are logged", logged(`"level":"Metadata"`))
	write(atLevel(auditv1.LevelRequest))
	until(t, "the new policy counts", logged(`"level":"Request"`))
	write([]byte("a: [b"))
	until(t, "the broken policy is told", func() bool { return strings.Contains(told.text(), "line 1") })
	write(atLevel(auditv1.LevelRequestResponse))
	until(t, "the last policy counts", logged(`"level":"RequestResponse"`))
	close(stop)
	wg.Wait()
	if got := told.text(); strings.Count(got, "line 1") != 1 || strings.Count(got, "has changed") != 2 || !strings.Contains(got, file) {
		t.Errorf("told:\n%s", got)
	}
	checkEvents(t, []byte(out.text()), int(made.Load()))
}

// checkEvents checks that each of n requests has two events at one level.
func checkEvents(t *testing.T, log []byte, n int) {
	t.Helper()
	levels, stages := map[types.UID]auditv1.Level{}, map[types.UID]map[auditv1.Stage]int{}
	for line := range bytes.Lines(log) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if e.Verb != "create" {
			continue
		}
		if stages[e.AuditID] == nil {
			stages[e.AuditID], levels[e.AuditID] = map[auditv1.Stage]int{}, e.Level
		}
		stages[e.AuditID][e.Stage]++
		if levels[e.AuditID] != e.Level {
			t.Errorf("request %s: %s, then %s", e.AuditID, levels[e.AuditID], e.Level)
		}
	}
	if len(stages) != n {
		t.Errorf("%d requests in the log, %d made", len(stages), n)
	}
	for id, s := range stages {
		if s[auditv1.StageRequestReceived] != 1 || s[auditv1.StageResponseComplete] != 1 || len(s) != 2 {
			t.Errorf("request %s: %v", id, s)
		}
	}
}
