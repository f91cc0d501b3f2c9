// Kubelets that are another process than the agent: the agent keeps the tunnel to them,
// and gives them the API server on a loopback port.

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-project/hawser/e2e/await"
)

// The kubelet here is an hawser-agent that knows no tunnel: it serves the kubelet API on
// loopback, and takes the API server for a program on loopback. It goes by the node's
// certificate, which the agent with the tunnel renews.
func TestKubeletRidesTheTunnel(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "0")
	t.Cleanup(func() { // after the kubelets; what a failed test leaves
		for _, pid := range c.shims() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	under, client := bin(t)
	program := filepath.Join(under, "hawser-agent")
	way := &proxy{direct: fmt.Sprintf("127.0.0.1:%d", c.port)}
	way.open(t, "127.0.0.1:0")
	t.Cleanup(way.breakDown)
	port, api := strconv.Itoa(await.FreePort(t)), "127.0.0.1:"+strconv.Itoa(await.FreePort(t))
	dirs := map[string]string{"node-1": "", "kubelet": ""}
	for name := range dirs {
		dirs[name] = filepath.Join(c.dir, "nodes", name)
		if err := os.MkdirAll(dirs[name], 0o700); err != nil {
			t.Fatal(err)
		}
	}

	join := c.joinCommand(t, filepath.Join(client, "hawser"))[1:]
	join[1] = "https://" + way.addr // --server
	run(t, append(append([]string{program}, join...), "--node-name", "node-1", "--data-dir", dirs["node-1"],
		"--kubelet", "https://127.0.0.1:"+port, "--apiserver-listen", api), filepath.Join(dirs["node-1"], "agent"))
	logged := func(text string) func() error {
		return func() error {
			if b, err := os.ReadFile(filepath.Join(dirs["node-1"], "agent.log")); err != nil || strings.Count(string(b), text) != 1 {
				return fmt.Errorf("%q is not in its log once: %w", text, err)
			}
			return nil
		}
	}
	eventually(t, "the agent is connected", logged("msg=connected"))
	eventually(t, "the agent says that the kubelet is down", logged("cannot reach the kubelet"))

	pair := filepath.Join(dirs["node-1"], "pki", "kubelet-client-current.pem")
	run(t, []string{
		program, "--transport", "ssh", "--kubelet-port", port, "--server", "https://" + api, "--node-name", "node-1", "--data-dir", dirs["kubelet"],
		"--client-certificate", pair, "--client-key", pair, "--certificate-authority", filepath.Join(dirs["node-1"], "pki", "ca.crt"),
		"--eviction-hard", "", "--node-status-update-frequency", "1s",
	}, filepath.Join(dirs["kubelet"], "agent"))
	c.waitNode(t, "node-1")
	eventually(t, "the agent says that the kubelet is there", logged("the kubelet is well"))
	c.podWith(t, "steady", "", "", "sh", "-c", "echo started; exec sleep 1000")
	c.works(t, "steady")

	cat := c.cat(t, "steady")
	for i := range 3 {
		cat(fmt.Sprint("before cut ", i))
		way.cut()
		cat(fmt.Sprint("after cut ", i))
	}
	since := c.leaseOf(t, "node-1").Spec.RenewTime.Time
	eventually(t, "the lease is renewed through the loopback port", func() error {
		if !c.leaseOf(t, "node-1").Spec.RenewTime.After(since) {
			return errors.New("not yet")
		}
		return nil
	})
	if n, err := c.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{}); err != nil || !is(corev1.NodeReady, corev1.ConditionTrue)(n) {
		t.Errorf("the node is not Ready after the cuts: %v", err)
	}
	c.works(t, "steady")

	args := c.kill(t, "kubelet")
	await.Until(t, patience, "a kubelet that is down is told within a second", func() error {
		start := time.Now()
		said, err := c.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node-1/proxy/healthz").DoRaw(t.Context())
		took := time.Since(start)
		if err == nil || !strings.Contains(string(said), "connection refused") || took > time.Second {
			return fmt.Errorf("%s: %w after %v", said, err, took)
		}
		return nil
	})
	run(t, args, filepath.Join(dirs["kubelet"], "agent"))
	c.works(t, "steady")
	c.mustKubectl(t, "", "delete", "pod", "steady", "--now")
}

// A node whose certificate another program renews joins by a kubeconfig, as a kubelet's names
// it. All that it does at the API it does as the node.
func TestKubeconfigOfANode(t *testing.T) {
	t.Parallel()
	flags, log := auditFlags(t)
	c := startUp(t, "--nodes", "1", "--server-arg="+flags[0], "--server-arg="+flags[1])
	c.kill(t, "node-1")
	before := len(agentUsers(t, log))
	dir := filepath.Join(c.dir, "nodes", "node-1")
	pair := filepath.Join(dir, "pki", "kubelet-client-current.pem")
	conf, file := kubeconfigOf(clientcmdapi.Cluster{Server: fmt.Sprintf("https://127.0.0.1:%d", c.port), CertificateAuthority: filepath.Join(dir, "pki", "ca.crt")}, pair, pair), filepath.Join(c.dir, "kubelet.conf")
	must(t, clientcmd.WriteToFile(conf, file))
	under, _ := bin(t)
	run(t, []string{
		filepath.Join(under, "hawser-agent"), "--kubeconfig", file, "--node-name", "node-1", "--data-dir", filepath.Join(c.dir, "other"),
		"--eviction-hard", "", "--node-status-update-frequency", "1s",
	}, filepath.Join(dir, "agent"))
	c.podWith(t, "steady", "", "", "sh", "-c", "echo started; exec sleep 1000")
	c.works(t, "steady")
	c.mustKubectl(t, "", "delete", "pod", "steady", "--now")
	users := agentUsers(t, log)[before:]
	if others := slices.DeleteFunc(slices.Clone(users), func(u string) bool { return u == "system:node:node-1" }); len(users) < 10 || len(others) > 0 {
		t.Errorf("of %d requests some are of %v", len(users), others)
	}
}

// agentUsers are the users of agents' requests, by an API server's log.
func agentUsers(t *testing.T, log string) (users []string) {
	t.Helper()
	f, err := os.Open(log)
	must(t, err)
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var e struct {
			UserAgent string
			User      struct{ Username string }
		}
		if err := d.Decode(&e); err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Error(err)
			}
			return users
		}
		if strings.HasPrefix(e.UserAgent, "kubelet/") {
			users = append(users, e.User.Username)
		}
	}
}

// cat runs cat in a pod until the test ends. Each call says a line and waits until it has
// come back.
func (c *cluster) cat(t *testing.T, pod string) func(line string) {
	t.Helper()
	cmd := c.startKubectl(t, "exec", "-i", pod, "--", "cat")
	stderr := &lines{}
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // its context is done by then
	back := bufio.NewReader(out)
	return func(line string) {
		t.Helper()
		limit := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		defer limit.Stop()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err, stderr)
		}
		if got, err := back.ReadString('\n'); got != line+"\n" {
			t.Fatalf("said %q, got back %q, %v %s", line, got, err, stderr)
		}
	}
}
