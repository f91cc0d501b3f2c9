// The cloud controller manager in a process of its own, whose cloud is the hub: machines,
// and load balancers that lead to pods behind NAT.

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/e2e/await"
)

// balancerAddr is where the server listens for Services.
const balancerAddr = "127.0.0.9"

const cloudMachines = `machines:
- {name: node-1, id: m-1, zone: z-1, region: r-1, type: small}
- {name: node-2, id: m-2}
loadBalancers:
  addresses: [` + balancerAddr + `]
`

// cloud is a cluster with a cloud controller manager, of which two run.
type cloud struct {
	*cluster
	health [2]int // ports
	front  *front
}

func startCloud(t *testing.T) *cloud {
	t.Helper()
	const pods = "--cluster-cidr=10.244.0.0/16"
	socket := filepath.Join(shortTempDir(t), "connect")
	c := &cloud{cluster: startUp(t, "--nodes", "2", "--netns", "--agent-arg=--cloud-provider=external", "--server-arg=--load-balancer-addresses="+balancerAddr,
		"--server-arg=--allocate-node-cidrs", "--server-arg="+pods, "--server-arg=--connect-uds="+socket)}
	c.front = &front{c.cluster, socket}
	for _, name := range []string{"node-1", "node-2"} {
		if n := c.node(t, name); !hasTaint(n, "node.cloudprovider.kubernetes.io/uninitialized") {
			t.Errorf("%s: %v", name, n.Spec.Taints)
		}
	}
	under, _ := bin(t)
	conf, config := c.account(t), filepath.Join(c.dir, "cloud-config.yaml")
	must(t, os.WriteFile(config, []byte("configMap: kube-system/hawser-machines\n"), 0o600))
	for i := range c.health {
		c.health[i] = await.FreePort(t)
		c.runCCM(t, []string{filepath.Join(under, "hawser-ccm")}, fmt.Sprintf("ccm-%d", i), conf, c.health[i],
			"--cloud-config", config, "--node-monitor-period", "1s", pods, fmt.Sprintf("--use-service-account-credentials=%v", i == 0))
		eventually(t, fmt.Sprintf("cloud controller manager %d is well", i), func() error { return c.well(t, i) })
		eventually(t, "one leads", func() error {
			if c.leader(t) == "" {
				return errNotYet
			}
			return nil
		})
	}
	return c
}

// runCCM starts a cloud controller manager, whose log is NAME.log, with a kubeconfig.
func (c *cluster) runCCM(t *testing.T, program []string, name, conf string, port int, flags ...string) {
	t.Helper()
	base := filepath.Join(c.dir, name)
	program = append(slices.Clone(program), "--kubeconfig", conf, "--authentication-kubeconfig", conf, "--authorization-kubeconfig", conf,
		"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port))
	run(t, append(program, flags...), base)
	t.Cleanup(func() {
		if b, err := os.ReadFile(base + ".log"); err == nil && (t.Failed() || hasRace(string(b))) {
			t.Errorf("--- %s\n%s", name, b)
		}
	})
}

// accounts: the manager that leads has made an account for each controller, and for the
// provider, and uses them.
func (c *cloud) accounts(t *testing.T) {
	for _, name := range []string{"node-controller", "service-controller", "route-controller", "hawser-cloud-provider"} {
		_, err := c.client.CoreV1().ServiceAccounts("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
	}
	c.mustKubectl(t, "", "delete", "clusterrolebinding", "hawser-ccm:service-controller")
	c.mustKubectl(t, "", "create", "service", "loadbalancer", "unheard", "--tcp=80:80")
	eventually(t, "the account of the service controller is refused", func() error {
		b, err := os.ReadFile(filepath.Join(c.dir, "ccm-0.log"))
		if err == nil && !strings.Contains(string(b), `system:serviceaccount:kube-system:service-controller\" cannot patch resource \"services/status\"`) {
			err = errNotYet
		}
		return err
	})
}

// unrefused: so far nothing was refused to a manager.
func (c *cloud) unrefused(t *testing.T, i int) {
	t.Helper()
	if b, err := os.ReadFile(filepath.Join(c.dir, fmt.Sprintf("ccm-%d.log", i))); err != nil || strings.Contains(string(b), "forbidden") {
		t.Errorf("something is refused to the account, or there is no log: %v", err)
	}
}

// well asks one for its health.
func (c *cloud) well(t *testing.T, i int) error {
	t.Helper()
	status, _, err := c.ask(t, i, "/healthz", "")
	if err == nil && status != http.StatusOK {
		err = errors.New(http.StatusText(status))
	}
	return err
}

// ask asks one for a page, with a token unless that is empty.
func (c *cloud) ask(t *testing.T, i int, path, token string) (status int, page string, err error) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: stranger(), DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", c.health[i], path), http.NoBody)
	must(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// measured: metrics of the one that leads have Kubernetes' names, for those who may read them.
func (c *cloud) measured(t *testing.T) {
	c.mustKubectl(t, "", "create", "clusterrolebinding", "monitor", "--clusterrole=system:monitoring", "--serviceaccount=default:default")
	token := strings.TrimSpace(c.mustKubectl(t, "", "create", "token", "default"))
	var page string
	eventually(t, "the account may read metrics", func() error {
		var status int
		var err error
		if status, page, err = c.ask(t, 0, "/metrics", token); err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d: %s", status, page)
		}
		return err
	})
	for _, name := range []string{
		"node_controller_initial_node_sync_delay_seconds_count", "node_controller_cloud_provider_taint_removal_delay_seconds_count",
		"cloud_node_lifecycle_controller_monitor_nodes_duration_seconds_count", "route_controller_route_sync_total",
		"service_controller_loadbalancer_sync_total", "service_controller_nodesync_latency_seconds_count",
		`workqueue_adds_total{name="service"}`, `workqueue_adds_total{name="Nodes"}`,
		`leader_election_master_status{name="cloud-controller-manager"} 1`, "rest_client_requests_total", `running_managed_controllers{`,
	} {
		if !strings.Contains(page, "\n"+name) {
			t.Errorf("the metrics have no %s", name)
		}
	}
	for _, token := range []string{"", "nonsense"} {
		if status, page, err := c.ask(t, 0, "/metrics", token); err != nil || status != http.StatusForbidden && status != http.StatusUnauthorized {
			t.Errorf("with token %q: %d %s, %v", token, status, page, err)
		}
	}
}

// leader is who holds the Lease; empty if nobody does.
func (c *cloud) leader(t *testing.T) string {
	t.Helper()
	if l := c.lease(t); l != nil {
		return ptr.Deref(l.Spec.HolderIdentity, "")
	}
	return ""
}

// lease is the one by which the managers elect, or nil.
func (c *cloud) lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l, err := c.client.CoordinationV1().Leases("kube-system").Get(t.Context(), "cloud-controller-manager", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(t, err)
	return l
}

// inventory makes the ConfigMap with the machines, or changes it.
func (c *cloud) inventory(t *testing.T, text string) {
	t.Helper()
	c.mustKubectl(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hawser-machines, namespace: kube-system}\ndata:\n  inventory.yaml: |\n    "+
		strings.ReplaceAll(text, "\n", "\n    "), "apply", "-f", "-")
}

// account returns the kubeconfig of the service account of hawser manifest ccm, whose
// DaemonSet has no machine here to run on.
func (c *cluster) account(t *testing.T) string {
	t.Helper()
	c.mustKubectl(t, printed(t, "ccm --use-service-account-credentials --daemonset --image=none"), "apply", "--server-side", "-f", "-")
	token := strings.TrimSpace(c.mustKubectl(t, "", "create", "token", "hawser-ccm", "-n", "kube-system"))
	conf, err := clientcmd.LoadFromFile(c.kubeconfig())
	must(t, err)
	for _, user := range conf.AuthInfos {
		*user = api.AuthInfo{Token: token}
	}
	file := filepath.Join(c.dir, "ccm.kubeconfig")
	must(t, clientcmd.WriteToFile(*conf, file))
	rest, err := clientcmd.BuildConfigFromFlags("", file)
	must(t, err)
	client, err := kubernetes.NewForConfig(rest)
	must(t, err)
	if _, err := client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the account reads a ConfigMap that is not its own: %v", err)
	}
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
	bin(t) // before the tests that are timed
	t.Parallel()
	c := startCloud(t)
	c.inventory(t, cloudMachines)
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
	eventually(t, "the hub leads to the node's pods", func() error {
		n = c.node(t, "node-1")
		if is := condition(n, corev1.NodeNetworkUnavailable); is.Status != corev1.ConditionFalse || is.Reason != "RouteCreated" {
			return fmt.Errorf("%v: %v", n.Spec.PodCIDRs, n.Status.Conditions)
		}
		return nil
	})
	c.balances(t)
	c.unrefused(t, 0)
	c.measured(t)
	c.accounts(t)
	c.takesOver(t)
	c.machinesGo(t)
	c.unrefused(t, 1)
}

// takesOver: when the one that leads is killed, the other does what there is to do.
func (c *cloud) takesOver(t *testing.T) {
	was := c.lease(t)
	if d := ptr.Deref(was.Spec.LeaseDurationSeconds, 0); d != 10 {
		t.Errorf("the other waits for %d s, by default", d)
	}
	b, err := os.ReadFile(filepath.Join(c.dir, "ccm-0.pid")) // it came first
	must(t, err)
	pid, err := strconv.Atoi(string(b))
	must(t, err)
	killed := time.Now()
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	var is *coordinationv1.Lease
	eventually(t, "the other one leads", func() error {
		is = c.lease(t)
		if ptr.Deref(is.Spec.HolderIdentity, "") == ptr.Deref(was.Spec.HolderIdentity, "") {
			return errNotYet
		}
		return nil
	})
	if got, want := ptr.Deref(is.Spec.LeaseTransitions, 0), ptr.Deref(was.Spec.LeaseTransitions, 0)+1; got != want {
		t.Errorf("the lease has changed hands %d times, want %d", got, want)
	}
	took := is.Spec.AcquireTime.Sub(killed)
	t.Logf("the other leads %v after the first was killed", took)
	if took > 15*time.Second+late { // TestTakeover of hawser-ccm has the exact bound
		t.Errorf("the other leads %v after the first was killed", took)
	}
}

// balances: a Service of type LoadBalancer gets an address at which its pods answer, each
// on a node that nobody reaches but through the tunnel.
func (c *cloud) balances(t *testing.T) {
	port, target := await.FreePort(t), await.FreePort(t)
	for _, name := range []string{"echo-1", "echo-2"} {
		c.roleInPodWith(t, name, fmt.Sprintf(`,"ports":[{"containerPort":%d}],"lifecycle":{"preStop":{"exec":{"command":["sleep","5"]}}}`, target), `,"hostname":"`+name+`","subdomain":"peers","nodeName":"node-`+name[len(name)-1:]+`"`, fmt.Sprintf("echo-server :%d", target))
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
	answers := func() error { return echoesAt(t, at) }
	eventually(t, "it answers", answers)
	for range 20 {
		must(t, answers())
	}
	c.named(t, port, target)
	c.clients(t, at)
	c.encrypts(t)
	c.drains(t, at)
	c.mustKubectl(t, "", "delete", "service", "echo")
	eventually(t, "nobody listens for a service that is gone", func() error {
		c := dialEcho(t, at)
		if c == nil {
			return nil
		}
		return errors.Join(errNotYet, c.Close())
	})
}

// named: a client of the front end dials a Service by its name, and a pod by that of a headless one.
func (c *cloud) named(t *testing.T, port, target int) {
	c.mustKubectl(t, `{apiVersion: v1, kind: Service, metadata: {name: peers}, spec: {clusterIP: None, selector: {app: echo}}}`, "apply", "-f", "-")
	for _, at := range []string{
		fmt.Sprintf("echo.default.svc:%d", port), fmt.Sprintf("echo.default.svc.cluster.local:%d", port),
		fmt.Sprintf("peers.default.svc:%d", target), fmt.Sprintf("echo-1.peers.default.svc:%d", target), fmt.Sprintf("echo-2.peers.default.svc.cluster.local:%d", target),
	} {
		eventually(t, at+" answers", func() error {
			conn, err := c.front.connectTo(at)
			if err != nil {
				return err
			}
			defer conn.Close()
			return echoes(conn)
		})
	}
	for at, want := range map[string]string{
		"echo.default.svc:1": `no service port "1" found for service "echo"`, "echo-3.peers.default.svc:80": `no endpoints available for service "peers"`,
		"other.default.svc:80": `services "other" not found`, "peers.default.svc:1": "nor a port that a running pod of node",
	} {
		if _, err := c.front.connectTo(at); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", at, err, want)
		}
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
	return echoes(conn)
}

func echoes(conn net.Conn) error {
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
	c.hawser(t, "node", "revoke", "node-1", "--reason", "stolen")
	c.kill(t, "node-2")
	c.inventory(t, "machines: []\n") // which says nothing, and whoever wrote it reads so
	eventually(t, "an event names the line", func() error {
		if out := c.mustKubectl(t, "", "get", "events", "-n", "kube-system", "-o", "jsonpath={.items[?(@.reason=='InventoryBroken')].message}"); !strings.Contains(out, "key inventory.yaml: line 1: machines: there are none") {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	c.inventory(t, strings.Replace(cloudMachines, "- {name: node-2, id: m-2}\n", "", 1))
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
