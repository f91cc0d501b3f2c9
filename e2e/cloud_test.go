// The cloud controller manager in a process of its own, whose cloud is the hub: machines,
// and load balancers that lead to pods behind NAT.

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// balancerAddr is where the server listens for Services.
const balancerAddr = "127.0.0.9"

const cloudMachines = `machines:
- {name: node-1, id: m-1, zone: z-1, region: r-1, type: small}
- {name: node-2, id: m-2}
loadBalancers:
  addresses: [` + balancerAddr + `]
`

// cloud is a cluster with a cloud controller manager.
type cloud struct {
	*cluster
	inventory string // a file
}

func startCloud(t *testing.T) *cloud {
	t.Helper()
	c := &cloud{cluster: startUp(t, "--nodes", "2", "--netns", "--agent-arg=--cloud-provider=external", "--server-arg=--load-balancer-addresses="+balancerAddr)}
	c.inventory = filepath.Join(c.dir, "inventory.yaml")
	must(t, os.WriteFile(c.inventory, []byte(cloudMachines), 0o600))
	for _, name := range []string{"node-1", "node-2"} {
		if n := c.node(t, name); !hasTaint(n, "node.cloudprovider.kubernetes.io/uninitialized") {
			t.Errorf("%s: %v", name, n.Spec.Taints)
		}
	}
	under, _ := bin(t)
	conf := c.account(t)
	run(t, []string{
		filepath.Join(under, "hawser-ccm"), "--kubeconfig", conf, "--authentication-kubeconfig", conf, "--authorization-kubeconfig", conf,
		"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(freePort(t)), "--cloud-config", c.inventory, "--node-monitor-period", "1s",
	}, filepath.Join(c.dir, "ccm"))
	t.Cleanup(func() {
		if b, err := os.ReadFile(filepath.Join(c.dir, "ccm.log")); err == nil && (t.Failed() || strings.Contains(string(b), "WARNING: DATA RACE")) {
			t.Errorf("--- cloud controller manager\n%s", b)
		}
	})
	return c
}

// account returns the kubeconfig of the service account of hawser manifest ccm.
func (c *cloud) account(t *testing.T) string {
	t.Helper()
	_, client := bin(t)
	printed, err := exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), "manifest", "ccm").Output()
	must(t, err)
	c.mustKubectl(t, string(printed), "apply", "--server-side", "-f", "-")
	token := strings.TrimSpace(c.mustKubectl(t, "", "create", "token", "hawser-ccm", "-n", "kube-system"))
	conf, err := clientcmd.LoadFromFile(c.kubeconfig())
	must(t, err)
	for _, user := range conf.AuthInfos {
		*user = api.AuthInfo{Token: token}
	}
	file := filepath.Join(c.dir, "ccm.kubeconfig")
	must(t, clientcmd.WriteToFile(*conf, file))
	return file
}

func (c *cloud) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return n
}

func TestCloud(t *testing.T) {
	if !netnsHere(t) {
		t.Skip("a node that is a plain process is reached without the tunnel")
	}
	t.Parallel()
	c := startCloud(t)
	for _, name := range []string{"node-1", "node-2"} {
		eventually(t, name+" is initialized", func() error {
			if n := c.node(t, name); hasTaint(n, "node.cloudprovider.kubernetes.io/uninitialized") {
				return errNotYet
			}
			return nil
		})
	}
	n := c.node(t, "node-1")
	for label, want := range map[string]string{corev1.LabelTopologyZone: "z-1", corev1.LabelTopologyRegion: "r-1", corev1.LabelInstanceTypeStable: "small"} {
		if n.Labels[label] != want {
			t.Errorf("label %s=%q, want %q", label, n.Labels[label], want)
		}
	}
	if n.Spec.ProviderID != "hawser://m-1" || len(n.Status.Addresses) == 0 {
		t.Errorf("provider ID %q, addresses %v", n.Spec.ProviderID, n.Status.Addresses)
	}
	c.balances(t)
	c.machinesGo(t)
	if b, err := os.ReadFile(filepath.Join(c.dir, "ccm.log")); err != nil || strings.Contains(string(b), "forbidden") {
		t.Errorf("something is refused to the account, or there is no log: %v", err)
	}
}

// balances: a Service of type LoadBalancer gets an address at which its pods answer, each
// on a node that nobody reaches but through the tunnel.
func (c *cloud) balances(t *testing.T) {
	port, target := freePort(t), freePort(t)
	for _, name := range []string{"echo-1", "echo-2"} {
		c.roleInPodWith(t, name, fmt.Sprintf(`,"ports":[{"containerPort":%d}]`, target), `,"nodeName":"node-`+name[len(name)-1:]+`"`, fmt.Sprintf("echo-server :%d", target))
		c.mustKubectl(t, "", "label", "pod", name, "app=echo")
	}
	c.mustKubectl(t, "", "create", "service", "loadbalancer", "echo", fmt.Sprintf("--tcp=%d:%d", port, target))
	eventually(t, "the service has an address", func() error {
		out := c.mustKubectl(t, "", "get", "service", "echo", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		if out != balancerAddr {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	at := net.JoinHostPort(balancerAddr, strconv.Itoa(port))
	echoes := func() error { return echoesAt(t, at) }
	eventually(t, "it answers", echoes)
	for range 20 {
		must(t, echoes())
	}
	c.mustKubectl(t, "", "delete", "pod", "echo-1", "--now")
	for range 20 {
		must(t, echoes()) // whichever endpoint is left
	}
	c.mustKubectl(t, "", "delete", "service", "echo")
	if c := dialEcho(t, at); c != nil {
		t.Error("the address of a service that is gone answers")
	}
}

// dialEcho connects, or returns nil if nobody listens.
func dialEcho(t *testing.T, at string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at)
	if err != nil {
		return nil
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func echoesAt(t *testing.T, at string) error {
	t.Helper()
	conn := dialEcho(t, at)
	if conn == nil {
		return errors.New("nobody listens")
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, "ahoy"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || line != "ahoy\n" {
		return fmt.Errorf("%q: %w", line, err)
	}
	return nil
}

// machinesGo: a Node goes with its machine once it is not ready, whether the inventory has
// it no more or an administrator has revoked it.
func (c *cloud) machinesGo(t *testing.T) {
	must(t, os.WriteFile(c.inventory, []byte(strings.Replace(cloudMachines, "- {name: node-2, id: m-2}\n", "", 1)), 0o600))
	c.hawser(t, "node", "revoke", "node-1", "--reason", "stolen")
	c.kill(t, "node-2")
	for _, name := range []string{"node-1", "node-2"} {
		eventually(t, name+" is deleted", func() error {
			_, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(errNotYet, err)
		})
	}
}
