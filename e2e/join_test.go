// Joining, and all the ways in which it can go wrong: each gets one line that
// names the thing and the remedy.

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
)

func TestJoin(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "1")
	under, client := bin(t)
	agent := filepath.Join(under, "hawser-agent")
	join := c.joinCommand(t, filepath.Join(client, "hawser"))
	flags := join[1:] // --server URL --token T --discovery-token-ca-cert-hash H
	expired := c.expiredToken(t)

	with := func(flag, value string) []string {
		out := append([]string(nil), flags...)
		for i, f := range out {
			if f == flag {
				out[i+1] = value
			}
		}
		return out
	}
	tests := map[string]struct {
		args []string
		want []string
	}{
		"wrong token":     {with("--token", "abcdef.0123456789abcdef"), []string{"token", "hawser token create"}},
		"expired token":   {with("--token", expired), []string{"token", "hawser token create"}},
		"malformed token": {with("--token", "nonsense"), []string{"--token", "ID.SECRET"}},
		"wrong CA hash":   {with("--discovery-token-ca-cert-hash", "sha256:"+strings.Repeat("00", 32)), []string{"--discovery-token-ca-cert-hash"}},
		"malformed hash":  {with("--discovery-token-ca-cert-hash", "md5:00"), []string{"--discovery-token-ca-cert-hash", "sha256:"}},
		"bad name":        {append(with("", ""), "--node-name", "Node_1"), []string{"--node-name", "Node_1"}},
		"bad address":     {append(with("", ""), "--node-ip", "127.0.0.2"), []string{"--node-ip", "127.0.0.2", "loopback"}},
		"name is taken":   {append(with("", ""), "--node-name", "node-1"), []string{"node-1", "another"}},
		"bad label":       {append(with("", ""), "--node-labels", "kubernetes.io/custom=1"), []string{"--node-labels", "kubernetes.io/custom"}},
		"a cloud of old":  {append(with("", ""), "--cloud-provider", "aws"), []string{"--cloud-provider", "aws"}},
		"bad taint":       {append(with("", ""), "--register-with-taints", "a=b:Never"), []string{"--register-with-taints", "Never"}},
		"bad target":      {append(with("", ""), "--allow-target", "10.0.0.0/99"), []string{"--allow-target", "10.0.0.0/99"}},
		"unknown signal":  {append(with("", ""), "--eviction-hard", "disk.free<10%"), []string{"--eviction-hard", "disk.free", "nodefs.available"}},
		"bad server":      {with("--server", "http://127.0.0.1:1"), []string{"--server", "https://"}},
		"unknown flag":    {append(with("", ""), "--nonsense"), []string{"--nonsense"}},
		"unwritable data": {append(with("", ""), "--data-dir", "/proc/nowhere"), []string{"/proc/nowhere"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			args := tt.args
			if !strings.Contains(strings.Join(args, " "), "--data-dir") {
				args = append(args, "--data-dir", filepath.Join(shortTempDir(t), "data"))
			}
			if !strings.Contains(strings.Join(args, " "), "--node-name") {
				args = append(args, "--node-name", "stranger")
			}
			oneLine(t, exec.CommandContext(t.Context(), agent, args...), tt.want...)
		})
	}
	t.Run("unreachable server is tried again", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := exec.CommandContext(ctx, agent, append(with("--server", "https://127.0.0.1:1"),
			"--data-dir", filepath.Join(shortTempDir(t), "data"), "--node-name", "stranger")...)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := readUntil(stderr, "connection refused"); err != nil {
			t.Error(err)
		}
		cancel()
		_ = cmd.Wait()
	})
	t.Run("a token is deleted", func(t *testing.T) {
		token := c.joinCommand(t, filepath.Join(client, "hawser"))[4]
		id, _, _ := strings.Cut(token, ".")
		bearer := rest.AnonymousClientConfig(c.rest)
		bearer.BearerToken = token
		as, err := kubernetes.NewForConfig(bearer)
		must(t, err)
		whoAmI := func() error {
			_, err := as.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			return err
		}
		eventually(t, "the token is somebody's", whoAmI) // joiners may ask who they are
		if list := c.hawser(t, "token", "list"); !strings.Contains(list, id) || strings.Contains(list, token) {
			t.Errorf("token %s is not listed, or with its secret:\n%s", id, list)
		}
		c.hawser(t, "token", "delete", id)
		eventually(t, "the token is nobody's", func() error {
			if err := whoAmI(); !apierrors.IsUnauthorized(err) {
				return fmt.Errorf("it gets %w", err)
			}
			return nil
		})
	})
	t.Run("short of memory", func(t *testing.T) {
		run(t, append([]string{agent}, append(with("", ""), "--hostname-override", "Short", "--node-ip", "192.0.2.2,fd00::2", "--data-dir", filepath.Join(shortTempDir(t), "data"),
			"--eviction-hard", "memory.available<99.9%", "--node-status-update-frequency", "1s")...), filepath.Join(c.dir, "short"))
		node := c.watch(t).node(t, "short", "says that it is short of memory, and of nothing else, and is tainted for it", func(n *corev1.Node) bool {
			return is(corev1.NodeReady, corev1.ConditionTrue)(n) && is(corev1.NodeMemoryPressure, corev1.ConditionTrue)(n) &&
				is(corev1.NodeDiskPressure, corev1.ConditionFalse)(n) && is(corev1.NodePIDPressure, corev1.ConditionFalse)(n) &&
				taint(n, corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule) != nil
		})
		if got := fmt.Sprint(node.Status.Addresses); got != "[{InternalIP 192.0.2.2} {InternalIP fd00::2} {Hostname short}]" || node.Labels[corev1.LabelHostname] != "short" {
			t.Errorf("addresses %s, labels %v", got, node.Labels)
		}
	})
	t.Run("its node is made by another", func(t *testing.T) { joinUnmade(t, c, agent, flags) })
	t.Run("a good command joins", func(t *testing.T) {
		dir := filepath.Join(shortTempDir(t), "data")
		h := c.watch(t)
		berlin := c.joinCommand(t, filepath.Join(client, "hawser"), "--site", "berlin")[1:]
		run(t, append([]string{agent}, append(berlin, "--node-name", "late", "--data-dir", dir,
			"--node-labels", "disk=ssd", "--register-with-taints", "a=b:NoSchedule,c=d:NoExecute", "--register-schedulable=false",
			"--cloud-provider", "external", "--provider-id", "inventory://late")...), filepath.Join(c.dir, "late"))
		c.waitNode(t, "late")
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), "late", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a, c := taint(node, "a", corev1.TaintEffectNoSchedule), taint(node, "c", corev1.TaintEffectNoExecute)
		if node.Labels["disk"] != "ssd" || a == nil || a.Value != "b" || c == nil || c.Value != "d" || !hasTaint(node, "node.cloudprovider.kubernetes.io/uninitialized") {
			t.Errorf("labels %v, taints %v", node.Labels, node.Spec.Taints)
		}
		if !node.Spec.Unschedulable || node.Spec.ProviderID != "inventory://late" {
			t.Errorf("schedulable, or not as the inventory has it: %+v", node.Spec)
		}
		h.node(t, "late", "is of the site of its token", func(n *corev1.Node) bool { return n.Labels[auth.SiteLabel] == "berlin" })
		keys, _ := filepath.Glob(filepath.Join(dir, "pki", "*"))
		for _, k := range keys {
			if fi, err := os.Stat(k); err == nil && strings.HasSuffix(k, ".pem") && fi.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", k, fi.Mode())
			}
		}
	})
}

// joinUnmade has an agent join that does not make its Node: there is none until an
// administrator makes it. The agent then reports to that one, and gives it no taint.
func joinUnmade(t *testing.T, c *cluster, agent string, join []string) {
	t.Helper()
	h := c.watch(t)
	base := filepath.Join(c.dir, "unmade")
	run(t, append(append([]string{agent}, join...), "--node-name", "unmade", "--data-dir", filepath.Join(shortTempDir(t), "data"), "--eviction-hard", "",
		"--register-node=false", "--register-with-taints", "a=b:NoSchedule", "--node-status-update-frequency", "1s"), base)
	for _, want := range []string{" msg=connected ", "cannot write the node's status"} { // the last, once it would have made it
		eventually(t, "the agent says "+want, func() error {
			log, err := os.ReadFile(base + ".log")
			if err == nil && !strings.Contains(string(log), want) {
				err = fmt.Errorf("it says\n%s", log)
			}
			return err
		})
	}
	nodes := c.client.CoreV1().Nodes()
	if n, err := nodes.Get(t.Context(), "unmade", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("node %v, %v", n, err)
	}
	made, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unmade"}}, metav1.CreateOptions{})
	must(t, err)
	h.node(t, "unmade", "is ready", is(corev1.NodeReady, corev1.ConditionTrue))
	h.node(t, "unmade", "has lost the taint of a new node", func(n *corev1.Node) bool { return len(n.Spec.Taints) == 0 })
	for _, n := range h.versions("unmade") {
		if n.UID != made.UID || hasTaint(n, "a") {
			t.Errorf("node %s with taints %v, want %s", n.UID, n.Spec.Taints, made.UID)
		}
	}
}

func TestServerRefusesBadInput(t *testing.T) {
	c := startUp(t, "--nodes", "0")
	under, _ := bin(t)
	server := filepath.Join(under, "hawser")
	tests := map[string]struct {
		args []string
		want []string
	}{
		"port in use":    {[]string{"server", "--data-dir", shortTempDir(t), "--bind-address", "127.0.0.1", "--connect-port", "0", "--secure-port", portOf(c)}, []string{portOf(c), "in use"}},
		"data in use":    {[]string{"server", "--data-dir", c.dir, "--bind-address", "127.0.0.1", "--connect-port", "0", "--secure-port", "1"}, []string{c.dir, "in use"}},
		"unwritable":     {[]string{"server", "--data-dir", "/proc/nowhere"}, []string{"/proc/nowhere"}},
		"bad address":    {[]string{"server", "--bind-address", "nonsense"}, []string{"--bind-address", "nonsense"}},
		"bad port":       {[]string{"server", "--secure-port", "70000"}, []string{"--secure-port", "70000"}},
		"bad range":      {[]string{"server", "--service-cluster-ip-range", "10.0.0.0/99"}, []string{"--service-cluster-ip-range", "10.0.0.0/99"}},
		"bad controller": {[]string{"server", "--controllers", "nonsense"}, []string{"--controllers", "nonsense"}},
		"unknown flag":   {[]string{"server", "--nonsense"}, []string{"--nonsense"}},
		"bad duration":   {[]string{"token", "create", "--ttl", "soon"}, []string{"--ttl", "soon"}},
		"no kubeconfig":  {[]string{"token", "create", "--kubeconfig", "/nowhere"}, []string{"/nowhere"}},
		"nobody there":   {[]string{"nonsense"}, []string{"nonsense"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			oneLine(t, exec.CommandContext(t.Context(), server, tt.args...), tt.want...)
		})
	}
}

// oneLine runs a command that has to end with 1 and, last of all that it says,
// one line with all of want and no stack trace.
func oneLine(t *testing.T, cmd *exec.Cmd, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit code 1", err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	for _, w := range want {
		if !strings.Contains(last, w) {
			t.Errorf("the last line does not name %q:\n%s", w, &out)
		}
	}
	if strings.Contains(out.String(), "goroutine ") {
		t.Errorf("a stack trace:\n%s", &out)
	}
}

// joinCommand returns the words that hawser token create prints.
func (c *cluster) joinCommand(t *testing.T, hawser string, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), hawser, append([]string{"token", "create", "--print-join-command"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(out))
	if len(words) != 7 || words[0] != "hawser-agent" {
		t.Fatalf("not a command line: %q", out)
	}
	return words
}

func (c *cluster) expiredToken(t *testing.T) string {
	t.Helper()
	_, err := c.client.CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-old000"},
		Type:       "bootstrap.kubernetes.io/token",
		StringData: map[string]string{
			"token-id": "old000", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"expiration": time.Now().Add(-time.Minute).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return "old000.0123456789abcdef"
}
