// Who did what: the audit logs of the API and of the tunnel, with real programs.

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/server/streamlog"
)

// Whoever reaches a node, by whichever way, is in the tunnel's audit log.
func TestTunnelAudit(t *testing.T) {
	bin(t) // before the tests that are timed
	t.Parallel()
	logs := t.TempDir()
	tunnelLog, apiLog := filepath.Join(logs, "tunnel.log"), filepath.Join(logs, "api.log")
	policy := filepath.Join(logs, "policy.yaml")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := startFront(t, "yamux", "--server-arg=--tunnel-audit-log-path="+tunnelLog,
		"--server-arg=--audit-log-path="+apiLog, "--server-arg=--audit-policy-file="+policy)
	const hashPort = 18099
	f.roleInPod(t, "hash", fmt.Sprintf("hash-server 127.0.0.1:%d", hashPort))
	f.pod(t, "talker", "", "sh", "-c", "echo 0123456789; exec sleep 1000")
	// A line is written when a stream has ended, which may be after its answer.
	wait := func(what string, more int, right func(streamlog.Line) bool) {
		t.Helper()
		eventually(t, what+" is in the tunnel's audit log", func() error {
			lines, n := tunnelLines(t, tunnelLog, right)
			if n < more {
				return fmt.Errorf("%d lines of that kind, want %d: %+v", n, more, lines)
			}
			return nil
		})
	}
	admin := func(l streamlog.Line) bool {
		return l.User == "kubernetes-admin" && l.Node == "node-1" && l.Transport == "yamux" && strings.HasPrefix(l.Target, "node-1:") && l.ToNode > 0 && l.FromNode > 0
	}
	for what, act := range map[string]func(){
		"exec": func() { f.mustKubectl(t, "", "exec", "talker", "--", "echo", "hi") },
		"logs": func() { f.mustKubectl(t, "", "logs", "talker") },
	} {
		_, before := tunnelLines(t, tunnelLog, admin)
		act()
		wait(what, before+1, admin)
	}
	const much = 1 << 20
	t.Run("port-forward", func(t *testing.T) { // which ends with the test
		if err := roundTrip(f.forward(t, "hash", hashPort), much); err != nil {
			t.Error(err)
		}
	})
	wait("port-forward", 1, func(l streamlog.Line) bool { return admin(l) && l.ToNode > much })
	if out, err := f.connect(hashPort); err != nil {
		t.Error(err)
	} else if err := out.Close(); err != nil {
		t.Error(err)
	}
	target := fmt.Sprintf("node-1:%d", hashPort)
	wait("CONNECT", 1, func(l streamlog.Line) bool {
		return l.User == "unix socket" && l.Node == "node-1" && l.Target == target
	})
	if _, err := f.connectTo("node-9:1"); err == nil {
		t.Error("reached a node that is not there")
	}
	wait("a failure", 1, func(l streamlog.Line) bool {
		return l.User == "unix socket" && l.Target == "node-9:1" && l.Result != "ok" && l.Error != ""
	})
	text, err := os.ReadFile(apiLog)
	if err != nil || !strings.Contains(string(text), `"requestURI":"/api/v1/namespaces/default/pods/talker/log`) {
		t.Errorf("the API's audit log does not know of kubectl logs: %v", err)
	}
}

// tunnelLines are all lines of a log, and how many of them are right.
func tunnelLines(t *testing.T, file string, right func(streamlog.Line) bool) (all []streamlog.Line, n int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var l streamlog.Line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatalf("%q: %v", s.Text(), err)
		}
		if all = append(all, l); right(l) {
			n++
		}
	}
	return all, n
}
