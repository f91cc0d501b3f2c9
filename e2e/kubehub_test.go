// A hub beside a kube-apiserver of Kubernetes itself, whose egress selector goes through it.

package e2e

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/e2e/await"
)

// monitor is a client of the hub's metrics.
func (k *kubeAPI) monitor(t *testing.T) *cluster {
	t.Helper()
	k.mustKubectl(t, "", "create", "clusterrolebinding", "monitor", "--clusterrole=system:monitoring", "--serviceaccount=default:default")
	token := k.mustKubectl(t, "", "create", "token", "default")
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: fmt.Sprintf("https://%s:%d", hubHost, k.health), BearerToken: strings.TrimSpace(token), TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	})
	must(t, err)
	return &cluster{client: client}
}

// dials is how many the hub has made for a front end.
func dials(t *testing.T, metrics *cluster, front string) float64 {
	t.Helper()
	return metrics.metric(t, fmt.Sprintf(`hawser_connect_dials_total{front=%q,result="ok"}`, front))
}

// A kubePod is a pod that listens on a port of its node's loopback.
type kubePod struct {
	name, node string
	port       int
}

// reachesAll has kubectl work on each pod.
func (k *kubeAPI) reachesAll(t *testing.T, pods ...kubePod) {
	t.Helper()
	for _, p := range pods {
		k.execs(t, p.name)
		if logs := k.mustKubectl(t, "", "logs", p.name); !strings.HasPrefix(logs, "listening on ") {
			t.Errorf("logs of %s: %q", p.name, logs)
		}
		must(t, roundTrip(k.forward(t, p.name, p.port), 1<<20))
		k.mustKubectl(t, "", "get", "--raw", metricsOf(p.node))
	}
}

// TestKubernetesAPI: nodes join a cluster of Kubernetes' own API server by its tokens, and are
// reached by its egress selector over each front end; API server and hub may be restarted;
// what the printed roles grant is what the hub needs, and a permission that is missing is
// told.
func TestKubernetesAPI(t *testing.T) {
	k := startKubeAPI(t)
	k.approve(t)
	grpc := []string{"--konnectivity-uds", k.grpcSocket()}
	k.start(t, grpc...)
	metrics := k.monitor(t)
	pods := []kubePod{{"pod-1", "node-1", await.FreePort(t)}, {"pod-2", "node-2", await.FreePort(t)}}
	for i, p := range pods {
		k.adopts(t, p.node, fmt.Sprintf("--node-ip=198.51.100.%d", i+1), "--eviction-hard=")
	}
	for _, p := range pods { // an API server that starts refuses tokens that it has not read yet
		k.waitNode(t, p.node)
	}
	for i, way := range []struct {
		front string
		args  []string
	}{
		{"konnectivity-unix", []string{"--protocol=grpc", "--uds=" + k.grpcSocket()}},
		{"unix", []string{"--uds=" + k.socket}},
		{"tls", []string{"--transport=mtls", "--data-dir=" + k.data, fmt.Sprintf("--url=https://%s:%d", hubHost, k.connectPort)}},
	} {
		k.serveAnew(t, "--egress-selector-config-file="+egressFile(t, filepath.Join(k.dir, way.front+".yaml"), way.args...))
		if i == 0 {
			for _, p := range pods {
				k.roleInPodWith(t, p.name, "", fmt.Sprintf(`,"nodeName":%q`, p.node), fmt.Sprintf("hash-server 127.0.0.1:%d", p.port))
			}
		}
		was := dials(t, metrics, way.front)
		k.reachesAll(t, pods...)
		if now := dials(t, metrics, way.front); now <= was {
			t.Errorf("%s: %v dials before, %v after: the API server reached the nodes some other way", way.front, was, now)
		}
	}
	if log, err := os.ReadFile(k.data + ".log"); err != nil || strings.Count(string(log), `msg="node connected"`) != len(pods) {
		t.Errorf("nodes came more than once while the API server was replaced: %v\n%s", err, log)
	}
	k.killHub(t)
	k.start(t, grpc...)
	k.reachesAll(t, pods...)
	k.mustKubectl(t, "", "delete", "node", pods[1].node)
	eventually(t, "the record of a node that was deleted goes", func() error {
		if k.asked(t)["delete configmaps in hawser-node-identities"] == 0 {
			return errNotYet
		}
		return nil
	})
	k.signalHub(t, syscall.SIGTERM)
	k.usedItsRoles(t, rareBesideOthers)
	k.tellsWhatIsMissing(t, pods[0].node, grpc...)
	k.mustKubectl(t, "", "delete", "pod", pods[0].name, "--now")
}

// rareBesideOthers are rules whose case is rare with this API server: it begins watches with
// what there is, alike events are counted by a patch from the eleventh on, and the Node of a
// name that another key takes is looked up.
var rareBesideOthers = []string{
	"list nodes in ", "list configmaps in hawser-node-identities", "list configmaps in kube-system", "list leases in hawser-servers",
	"patch events in default", "get nodes in ",
}

// tellsWhatIsMissing takes a permission from the hub, which does not run, and has to say so
// once it does, and how it gets it back; then again while it runs. The node has a tunnel.
func (h *besideHub) tellsWhatIsMissing(t *testing.T, node string, args ...string) {
	t.Helper()
	h.mayNotPatchStatus(t)
	told := func() (lines []string) {
		b, err := os.ReadFile(h.data + ".log")
		must(t, err)
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "the cluster refuses the hub a permission") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	start := func() {
		must(t, os.Remove(h.data+".log"))
		h.start(t, args...)
	}
	start()
	lines := told()
	if len(lines) != 1 {
		t.Fatalf("one permission is missing, and the hub says %q", lines)
	}
	_, remedy, found := strings.Cut(lines[0], ` verb=patch resource=nodes/status without="the conditions of tunnels" grant="hawser manifest rbac | kubectl `)
	remedy, _, ended := strings.Cut(remedy, `"`)
	if !found || !ended {
		t.Fatalf("nodes/status may not be patched, and the hub says %q", lines)
	}
	h.mustKubectl(t, printed(t, "rbac"), strings.Fields(remedy)...)
	h.mayPatchStatus(t, true)
	h.signalHub(t, syscall.SIGTERM)
	start()
	if lines := told(); len(lines) != 0 {
		t.Errorf("nothing is missing, and the hub says %q", lines)
	}
	h.waitNode(t, node)
	h.mayNotPatchStatus(t)
	_, err := h.client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"TunnelConnected","status":"Unknown"}]}}`), metav1.PatchOptions{}, "status")
	must(t, err)
	eventually(t, "what is taken while the hub runs is told", func() error {
		if lines := told(); len(lines) != 1 || !strings.Contains(lines[0], "verb=patch resource=nodes/status") {
			return fmt.Errorf("the hub says %q", lines)
		}
		return nil
	})
	log, err := os.ReadFile(h.data + ".log")
	must(t, err)
	if n := strings.Count(string(log), "will retry"); n != 1 {
		t.Errorf("%d lines say that it will retry:\n%s", n, log)
	}
}

// mayNotPatchStatus takes from the hub that it may write the conditions of tunnels.
func (h *besideHub) mayNotPatchStatus(t *testing.T) {
	t.Helper()
	roles := h.client.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "hawser-hub", metav1.GetOptions{})
	must(t, err)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "nodes/status") })
	_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
	must(t, err)
	h.mayPatchStatus(t, false)
}

// mayPatchStatus waits until the API server says that the hub may, or that it may not.
func (h *besideHub) mayPatchStatus(t *testing.T, want bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("the roles of the hub are read: %v", want), func() error {
		answer, err := h.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:hawser-system:hawser-hub", ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "patch", Resource: "nodes", Subresource: "status"},
		}}, metav1.CreateOptions{})
		if err == nil && answer.Status.Allowed != want {
			err = errNotYet
		}
		return err
	})
}

// TestKubernetesAPIKubelet: a kubelet of Kubernetes beside its API server, which reaches it by the
// tunnel: one that has the agent's identity and reaches the API server by the tunnel as well,
// and one that has joined by itself, whose agent comes by a token, or by a certificate of an
// authority of the hub's own.
func TestKubernetesAPIKubelet(t *testing.T) {
	needKubernetes(t)
	k := startKubeAPI(t)
	m := startMachine(t)
	k.approve(t)
	k.start(t, "--konnectivity-uds", k.grpcSocket())
	k.serveAnew(t, "--egress-selector-config-file="+egressFile(t, filepath.Join(k.dir, "egress.yaml"), "--protocol=grpc", "--uds="+k.grpcSocket()))
	t.Run("rides the tunnel", func(t *testing.T) {
		k.joinKubelet(t, m, "node-1", k.toHub(t)...)
		k.waitNode(t, "node-1")
		k.echoes(t, "node-1")
		k.mustKubectl(t, "", "delete", "node", "node-1") // the next one has its address
	})
	port := await.FreePort(t)
	cert := filepath.Join(k.dir, "pki", "node-2")
	issue(t, filepath.Dir(cert), "node-2", k.ca, pkitest.NodeClient("node-2"))
	k.runKubelet(t, m, "node-2", port, kubeconfigOf(clientcmdapi.Cluster{Server: k.rest.Host, CertificateAuthority: filepath.Join(k.dir, "pki", "ca.crt")}, cert+".crt", cert+".key"))
	kubelet := fmt.Sprintf("https://127.0.0.1:%d", port)
	t.Run("has joined by itself", func(t *testing.T) {
		k.adopts(t, "node-2", "--kubelet", kubelet)
		k.waitNode(t, "node-2")
		k.echoes(t, "node-2")
	})
	t.Run("with an agent that the cluster does not know", func(t *testing.T) {
		agents := pkitest.New(t, "agents")
		file := func(name string) string { return filepath.Join(k.dir, "agents-"+name) }
		must(t, os.WriteFile(file("ca.crt"), agents.PEM(), 0o600))
		issue(t, k.dir, "agents-node-2", agents, pkitest.NodeClient("node-2"))
		k.signalHub(t, syscall.SIGTERM)
		k.start(t, "--konnectivity-uds", k.grpcSocket(), "--agent-ca", file("ca.crt"))
		hub, err := os.ReadFile(filepath.Join(k.data, "pki", "ca.crt"))
		must(t, err)
		must(t, os.WriteFile(file("servers.crt"), append(hub, k.ca.PEM()...), 0o600)) // the API server's as well
		under, _ := bin(t)
		run(t, []string{
			filepath.Join(under, "hawser-agent"), "--node-name", "node-2", "--data-dir", file("data"), "--kubelet", kubelet, "--server", fmt.Sprintf("https://%s:%d", hubHost, k.port),
			"--client-certificate", file("node-2.crt"), "--client-key", file("node-2.key"), "--certificate-authority", file("servers.crt"),
		}, file("log"))
		k.tunnelOf(t, "node-2", "")
		k.echoes(t, "node-2")
	})
}

// echoes has kubectl work on a pod of a node, which is there for that long.
func (k *kubeAPI) echoes(t *testing.T, node string) {
	t.Helper()
	script := fmt.Sprintf("echo listening; exec nc -ll -p %d -e cat", forwardPort)
	k.podWith(t, "echo", `,"imagePullPolicy":"Never"`, fmt.Sprintf(`,"nodeName":%q`, node), "sh", "-c", script)
	k.execs(t, "echo")
	if logs := k.mustKubectl(t, "", "logs", "echo"); logs != "listening\n" {
		t.Errorf("logs: %q", logs)
	}
	c := mustDial(t, k.forward(t, "echo", forwardPort))
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := io.WriteString(c, "ahoy\n")
	must(t, err)
	if _, err := readUntil(c, "ahoy"); err != nil {
		t.Error(err)
	}
	k.mustKubectl(t, "", "delete", "pod", "echo", "--now")
}
