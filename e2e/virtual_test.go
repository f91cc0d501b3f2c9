// A node by virtual-kubelet, whose kubelet API the tunnel leads to.

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// TestVirtualKubelet: a node by virtual-kubelet's library, in a process of its own, registers,
// keeps its lease and runs pods through the tunnel. kubectl reads its logs, gets in and
// forwards a port, as on any other node.
func TestVirtualKubelet(t *testing.T) {
	_, client := bin(t)
	must(t, build("virtual", "./e2e/virtualkubelet")) // before the tests that are timed
	t.Parallel()
	c := startUp(t, "--nodes", "0")
	port, conf := c.leadsToKubelet(t, "virtual", c.joinCommand(t, filepath.Join(client, "hawser"))[1:]...)
	dir := filepath.Join(c.dir, "virtual")
	must(t, os.Mkdir(dir, 0o700))
	file := func(name string) string { return filepath.Join(dir, name) }
	must(t, clientcmd.WriteToFile(conf, file("kubeconfig")))
	c.usersOfKubelets(t, file("clients.crt"))
	run(t, []string{
		filepath.Join(programs.dir, "virtual", "virtualkubelet"), "--node-name", "virtual", "--kubeconfig", file("kubeconfig"),
		"--listen", fmt.Sprintf("127.0.0.1:%d", port), "--client-ca", file("clients.crt"), "--dir", dir,
	}, file("kubelet"))
	t.Cleanup(func() {
		if b, err := os.ReadFile(file("kubelet.log")); err == nil && t.Failed() {
			t.Logf("--- virtual-kubelet\n%s", b[max(0, len(b)-8000):])
		}
	})
	c.waitNode(t, "virtual")
	since := c.leaseOf(t, "virtual").Spec.RenewTime.Time

	c.podWith(t, "steady", "", "", "sh", "-c", "echo started; exec sleep 1000")
	c.works(t, "steady")
	if _, said, code := c.kubectl(t, "", "exec", "steady", "--", "sh", "-c", "exit 7"); code != 7 {
		t.Errorf("exit code %d, not 7: %s", code, said)
	}
	c.cat(t, "steady")("to a command and back")
	if got := c.mustKubectl(t, "", "get", "pod", "steady", "-o", "wide"); !strings.Contains(got, "virtual") {
		t.Errorf("it runs elsewhere: %s", got)
	}
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer target.Close()
	resp, err := http.Get("http://" + c.forward(t, "steady", target.Listener.Addr().(*net.TCPAddr).Port))
	must(t, err)
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); string(got) != "hello" || err != nil {
		t.Errorf("through a forwarded port: %q %v", got, err)
	}
	eventually(t, "the lease is renewed", func() error {
		if !c.leaseOf(t, "virtual").Spec.RenewTime.After(since) {
			return errors.New("not yet")
		}
		return nil
	})
	eventually(t, "its events are the node's", func() error {
		list, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=steady"})
		if err == nil && !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Source.Host == "virtual" }) {
			err = fmt.Errorf("events: %v", list.Items)
		}
		return err
	})
	c.mustKubectl(t, "", "delete", "pod", "steady")
	if _, err := c.client.CoreV1().Pods("default").Get(t.Context(), "steady", metav1.GetOptions{}); err == nil {
		t.Error("the pod is still there")
	}
}
