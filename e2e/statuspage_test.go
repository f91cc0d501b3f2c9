// The status page beside another API server: who may see it, and how it is opened.

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// statusPageIsForViewers checks that the cluster's administrators and users with the role
// see the hub's page, that nodes do not, and that it shows a node whose tunnel is up.
func (h *besideHub) statusPageIsForViewers(t *testing.T, node string) {
	t.Helper()
	h.mustKubectl(t, "", "create", "serviceaccount", "viewer")
	h.mustKubectl(t, "", "create", "clusterrolebinding", "nodes-see", "--clusterrole=system:status-viewer", "--group=system:nodes")
	pem := filepath.Join(h.dir, "nodes", node, "pki", "kubelet-client-current.pem")
	ca := filepath.Join(h.data, "pki", "ca.crt")
	as := func(c rest.Config) *rest.Config {
		c.Host, c.CAFile, c.CAData = fmt.Sprintf("https://%s:%d/hawser/status/", hubHost, h.health), ca, nil
		return &c
	}
	admin, err := clientcmd.BuildConfigFromFlags("", h.kubeconfig())
	must(t, err)
	viewer := as(rest.Config{BearerToken: strings.TrimSpace(h.mustKubectl(t, "", "create", "token", "viewer"))})
	for _, who := range []struct {
		name string
		conf *rest.Config
		want int
	}{
		{"nobody", as(rest.Config{}), http.StatusForbidden},
		{"a token that is not valid", as(rest.Config{BearerToken: "x"}), http.StatusUnauthorized},
		{"a node", as(rest.Config{TLSClientConfig: rest.TLSClientConfig{CertFile: pem, KeyFile: pem}}), http.StatusForbidden},
		{"an account without the role", viewer, http.StatusForbidden},
		{"an administrator", as(*admin), http.StatusOK},
	} {
		for _, file := range []string{"", "page.js", "fleet"} {
			if resp, err := get(t, who.conf, file); err != nil || resp.StatusCode != who.want {
				t.Errorf("%s gets /hawser/status/%s: %v, %v; want %d", who.name, file, resp, err, who.want)
			}
		}
	}
	h.mustKubectl(t, "", "create", "clusterrolebinding", "viewer-sees", "--clusterrole=system:status-viewer", "--serviceaccount=default:viewer")
	eventually(t, "the role lets its holder see the page", func() error {
		resp, err := get(t, viewer, "fleet")
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		if err == nil && (!strings.Contains(line, fmt.Sprintf(`"node":%q`, node)) || !strings.Contains(line, `"tunnel":{"is":"True"`)) {
			err = fmt.Errorf("the page has no tunnel of %s: %s", node, line)
		}
		return err
	})
	h.opensByProxy(t, as(*admin).Host, ca)
}

// get asks for a file of the page.
func get(t *testing.T, c *rest.Config, file string) (*http.Response, error) {
	t.Helper()
	client, err := rest.HTTPClientFor(c)
	must(t, err)
	t.Cleanup(client.CloseIdleConnections)
	resp, err := client.Get(c.Host + file)
	if err == nil {
		t.Cleanup(func() { _ = resp.Body.Close() })
	}
	return resp, err
}

// opensByProxy opens the page as its help topic says.
func (h *besideHub) opensByProxy(t *testing.T, page, ca string) {
	t.Helper()
	_, client := bin(t)
	server := strings.TrimSuffix(page, "/hawser/status/")
	proxy := exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), "kubectl", "--kubeconfig", h.kubeconfig(), "proxy", "--port", "0",
		"--server", server, "--certificate-authority", ca, "--accept-paths", "^/hawser/status/")
	out, err := proxy.StdoutPipe()
	must(t, err)
	must(t, proxy.Start())
	defer func() {
		_ = proxy.Process.Kill()
		_ = proxy.Wait()
	}()
	said, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	addr, ok := strings.CutPrefix(strings.TrimSpace(said), "Starting to serve on ")
	if !ok {
		t.Fatalf("kubectl proxy says %q", said)
	}
	for path, want := range map[string]int{"/hawser/status/": http.StatusOK, "/metrics": http.StatusForbidden} {
		resp, err := http.Get("http://" + addr + path)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("the proxy answers %s for %s, want %d", resp.Status, path, want)
		}
	}
}
