// Nodes that an administrator takes the identity from, on every transport.

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// hawser runs a command of the operator's and returns what it says.
func (c *cluster) hawser(t *testing.T, args ...string) string {
	t.Helper()
	_, client := bin(t)
	out, err := exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), append(args, "--kubeconfig", c.kubeconfig())...).CombinedOutput()
	if err != nil {
		t.Fatalf("hawser %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// asNode is a client with a node's certificate, which does not take the tunnel.
func (c *cluster) asNode(t testing.TB, name string) kubernetes.Interface {
	t.Helper()
	pair := filepath.Join(c.dir, "nodes", name, "pki", "kubelet-client-current.pem")
	conf := rest.CopyConfig(c.rest)
	conf.CertData, conf.KeyData, conf.CertFile, conf.KeyFile = nil, nil, pair, pair
	must(t, rest.LoadTLSFiles(conf))
	conf.CertFile, conf.KeyFile = "", ""
	client, err := kubernetes.NewForConfig(conf)
	must(t, err)
	return client
}

// shutOut waits until a node's certificate is nobody's, and its session is over.
func (c *cluster) shutOut(t *testing.T, name string, client kubernetes.Interface, mark *logMark) {
	t.Helper()
	eventually(t, name+" is nobody to the API", func() error {
		_, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("it gets %w", err)
		}
		return nil
	})
	mark.until(t, patience, "does not admit this node any more", "hawser node allow "+name)
	if _, _, code := c.kubectl(t, "", "get", "--raw", "/api/v1/nodes/"+name+"/proxy/healthz"); code == 0 {
		t.Errorf("%s can still be reached", name)
	}
}

func TestNodeRevoked(t *testing.T) {
	t.Parallel()
	c := startOver(t, everyTransport)
	names, clients := make([]string, len(everyTransport)), make([]kubernetes.Interface, len(everyTransport))
	for i := range everyTransport {
		names[i] = nodeAt(i)
		clients[i] = c.asNode(t, names[i])
	}
	for i, name := range names {
		mark := c.mark(t, name)
		for range 2 { // it may be said again
			if said := c.hawser(t, "node", "revoke", name, "--reason", "stolen"); !strings.Contains(said, name+" is revoked") {
				t.Errorf("said %q", said)
			}
		}
		c.shutOut(t, name, clients[i], mark)
	}
	if said := c.hawser(t, "explain", "node", names[len(names)-1]); !strings.Contains(said, "revoked at") || !strings.Contains(said, "stolen") {
		t.Errorf("explain says %s", said)
	}

	var marks []*logMark
	for _, name := range names {
		marks = append(marks, c.mark(t, name))
	}
	run(t, c.kill(t, "server"), filepath.Join(c.dir, "server"))
	eventually(t, "the API answers again", func() error {
		_, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	})
	for i, name := range names {
		c.shutOut(t, name, clients[i], marks[i])
	}

	// A machine that was allowed comes back with a join token, and gets another key.
	c.hawser(t, "node", "allow", names[0])
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(c.hawser(t, "token", "create")), 0o600))
	c.restartNode(t, names[0], "--token-file="+file)
	eventually(t, names[0]+" is back", func() error {
		_, err := c.asNode(t, names[0]).CoreV1().Nodes().Get(t.Context(), names[0], metav1.GetOptions{})
		return err
	})
	eventually(t, names[0]+" can be reached", func() error {
		if _, stderr, code := c.kubectl(t, "", "get", "--raw", "/api/v1/nodes/"+names[0]+"/proxy/healthz"); code != 0 {
			return errors.New(stderr)
		}
		return nil
	})
	if _, err := clients[0].CoreV1().Nodes().Get(t.Context(), names[0], metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("its former key gets %v", err)
	}
}

// A Node that is deleted takes the agent's access with it. The agent that runs stands
// back; it joins anew when it is started again with a join token.
func TestDeletedNodeStandsBack(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "1")
	old, mark := c.asNode(t, "node-1"), c.mark(t, "node-1")
	c.mustKubectl(t, "", "delete", "node", "node-1")
	mark.until(t, patience, "its Node has been deleted", "hawser token create --print-join-command")
	eventually(t, "it is nobody to the API", func() error {
		if _, err := old.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("it gets %w", err)
		}
		return nil
	})
	c.restartNode(t, "node-1")
	c.waitNode(t, "node-1")
	if _, err := old.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("its former key gets %v", err)
	}
}
