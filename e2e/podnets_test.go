// The API server for pods with a network of their own, by way of an agent.

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser/e2e/await"
)

// TestAPIInPodsNetwork: a process whose network is a loopback and nothing else gets the API
// server's answer through the agent's tunnel.
func TestAPIInPodsNetwork(t *testing.T) {
	if !netnsHere(t) {
		t.Skip("SKIPPED: network namespaces need root and the packages iproute2 and nftables")
	}
	t.Parallel()
	pod := exec.Command("sh", "-c", "ip link set lo up && exec sleep 1000")
	pod.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	must(t, pod.Start())
	t.Cleanup(func() { _ = pod.Process.Kill(); _ = pod.Wait() })
	pid, dir, at := strconv.Itoa(pod.Process.Pid), t.TempDir(), "127.0.0.1:"+strconv.Itoa(await.FreePort(t))
	must(t, os.Symlink("/proc/"+pid+"/ns/net", filepath.Join(dir, "pod")))
	c := startUp(t, "--nodes=1", "--agent-arg=--apiserver-listen="+at, "--agent-arg=--apiserver-listen-in="+dir)
	ask := func(server string) error {
		args := append([]string{"-t", pid, "-n"}, kubectlCommand(t)...)
		cmd := exec.CommandContext(t.Context(), "nsenter", append(args, "--kubeconfig", c.kubeconfig(), "--server", "https://"+server, "get", "--raw", "/version")...)
		out, err := cmd.CombinedOutput()
		if err == nil && !strings.Contains(string(out), "gitVersion") {
			err = errors.New("no version")
		}
		if err != nil {
			return errors.New(err.Error() + ": " + string(out))
		}
		return nil
	}
	eventually(t, "the API server answers in a pod's network", func() error { return ask(at) })
	if err := ask("127.0.0.1:" + strconv.Itoa(c.port)); err == nil {
		t.Error("the pod has another way to the API server")
	}
}
