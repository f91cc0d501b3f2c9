// Scripts in testdata: what a user types, and what must come out. All run
// against one cluster, each in a namespace of its own.

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "2")
	under, client := bin(t)
	whoami := asksWhoami(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			name := "script-" + strings.ReplaceAll(filepath.Base(env.WorkDir), "script-", "")
			env.Setenv("KUBECONFIG", c.kubeconfig())
			env.Setenv("KUBECACHEDIR", filepath.Join(env.WorkDir, ".cache"))
			env.Setenv("HAWSER", filepath.Join(client, "hawser"))
			env.Setenv("KUBECTL", strings.Join(kubectlCommand(t), " "))
			env.Setenv("AGENT", filepath.Join(under, "hawser-agent"))
			env.Setenv("SERVER", fmt.Sprintf("https://127.0.0.1:%d", c.port))
			env.Setenv("NS", name)
			if _, err := scriptKubectl(env.Getenv, nil, "create", "namespace", name); err != nil {
				return err
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond != "whoami" {
				return false, fmt.Errorf("there is no condition %q", cond)
			}
			return whoami, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"kubectl": cmdKubectl,
			"until":   cmdUntil,
		},
	})
}

// scriptKubectl runs kubectl in the script's namespace.
func scriptKubectl(getenv func(string) string, stdin []byte, args ...string) (*exec.Cmd, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	full := append(strings.Fields(getenv("KUBECTL")), "--namespace", getenv("NS"))
	full = append(full, args...)
	cmd := exec.CommandContext(ctx, full[0], full[1:]...)
	cmd.Env = []string{"KUBECONFIG=" + getenv("KUBECONFIG"), "KUBECACHEDIR=" + getenv("KUBECACHEDIR"), "HOME=" + getenv("WORK"), "PATH=" + getenv("PATH")}
	cmd.Dir = getenv("WORK")
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return cmd, fmt.Errorf("kubectl %s: %w\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return cmd, nil
}

// cmdKubectl is the script command kubectl: like exec, in the script's namespace.
func cmdKubectl(ts *testscript.TestScript, neg bool, args []string) {
	full := append(strings.Fields(ts.Getenv("KUBECTL")), "--namespace", ts.Getenv("NS"))
	full = append(full, args...)
	err := ts.Exec(full[0], full[1:]...)
	if (err != nil) != neg {
		ts.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
}

// cmdUntil is the script command until: until REGEXP ARGS… repeats kubectl ARGS
// until its output matches.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP KUBECTL-ARGS…")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		cmd, err := scriptKubectl(ts.Getenv, nil, args[1:]...)
		if out := cmd.Stdout.(*bytes.Buffer).String(); err == nil && re.MatchString(out) {
			return
		} else if time.Now().After(deadline) {
			ts.Fatalf("never matched %q: %v\n%s", args[0], err, out)
		}
		<-tick.C
	}
}
