// Command lines that are nearly right, and what the programs say of themselves.

package e2e

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestNearMisses(t *testing.T) {
	_, programs := bin(t)
	nowhere := "no cluster is named: hawser up starts one in this directory, and KUBECONFIG or --kubeconfig names another"
	for line, want := range map[string]string{
		"hawser nod":                                `did you mean hawser node?`,
		"hawser token creat":                        `did you mean hawser token create?`,
		"hawser get pods":                           `did you mean "hawser kubectl get"?`,
		"hawser server --cluster-cidrs x":           `did you mean --cluster-cidr?`,
		"hawser-agent --sever x":                    `did you mean --server?`,
		"hawser kubectl get nodes":                  nowhere,
		"hawser kubectl logs x":                     nowhere,
		"hawser kubectl apply -f /dev/null":         nowhere,
		"KUBECONFIG=/none hawser kubectl get nodes": "KUBECONFIG /none: there is no cluster or no current-context in it, or no such file",
	} {
		t.Run(line, func(t *testing.T) {
			words, env := strings.Fields(line), []string{"HOME=" + t.TempDir()}
			if strings.Contains(words[0], "=") {
				words, env = words[1:], append(env, words[0])
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(programs, words[0]), words[1:]...)
			cmd.Dir, cmd.Env = t.TempDir(), env
			out, err := cmd.CombinedOutput()
			if err == nil || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), want) {
				t.Errorf("%v:\n%swant an error, and one line with %q", err, out, want)
			}
		})
	}
}

// TestClusterThatHasEnded: one line says what starts the cluster of this directory.
func TestClusterThatHasEnded(t *testing.T) {
	_, programs := bin(t)
	dir := t.TempDir()
	const conf = `{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"current-context":"c"}`
	must(t, os.Mkdir(filepath.Join(dir, ".hawser"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, ".hawser", "admin.kubeconfig"), []byte(conf), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "pod.json"), []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"}}`), 0o600))
	for line, want := range map[string]string{
		"kubectl get nodes":         "the cluster of .hawser/admin.kubeconfig does not run: hawser up starts it",
		"top nodes":                 "the cluster of .hawser/admin.kubeconfig does not run: hawser up starts it",
		"kubectl logs x":            "the cluster of .hawser/admin.kubeconfig does not run: hawser up starts it",
		"kubectl apply -f pod.json": "the cluster of .hawser/admin.kubeconfig does not run: hawser up starts it",
		"kubectl get nodes --server https://127.0.0.1:2": "The connection to the server 127.0.0.1:2 was refused",
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "hawser"), strings.Fields(line)...)
		cmd.Dir, cmd.Env = dir, []string{"HOME=" + t.TempDir()}
		out, err := cmd.CombinedOutput()
		if err == nil || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v:\n%swant an error, and one line with %q", line, err, out, want)
		}
	}
}

func TestVersions(t *testing.T) {
	_, programs := bin(t)
	for line, want := range map[string]string{
		"hawser --version":       `^hawser \S+\nKubernetes API v1\.\d+\.\d+\+hawser\n$`,
		"hawser version":         `^hawser \S+\nKubernetes API v1\.\d+\.\d+\+hawser\n$`,
		"hawser-agent --version": `^hawser-agent \S+\nkubelet v1\.\d+\.\d+\+hawser\n$`,
	} {
		words := strings.Fields(line)
		out, err := exec.CommandContext(t.Context(), filepath.Join(programs, words[0]), words[1:]...).CombinedOutput()
		if err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}

// TestKubectlEnds: kubectl takes no notice of a context that is cancelled, so the signals
// that end it elsewhere have to end it here.
func TestKubectlEnds(t *testing.T) {
	_, programs := bin(t)
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(`{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"current-context":"c"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(programs, "hawser"), "kubectl", "proxy", "--kubeconfig", config, "--port", "0")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "Starting to serve") {
			t.Errorf("kubectl proxy says %q, %v", line, err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil || ctx.Err() != nil {
			t.Errorf("after %v kubectl proxy ends with %v, %v", sig, err, ctx.Err())
		}
	}
}
