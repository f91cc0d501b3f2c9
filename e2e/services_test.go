// Services of a cluster whose API server reaches them through the hub: a webhook, and an
// aggregated API.

package e2e

import (
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ownNetwork is set in the process of a test that has a network namespace of its own.
const ownNetwork = "HAWSER_E2E_OWN_NETWORK"

// inOwnNetwork runs the test in another process, in a network that leads nowhere, where all
// addresses of the range are local. It returns true in that process.
func inOwnNetwork(t *testing.T, cidr string) bool {
	t.Helper()
	if os.Getenv(ownNetwork) != "" {
		for _, args := range []string{
			"link set lo up", "route add local " + cidr + " dev lo", "link add eth0 type veth peer name eth1", "link set eth1 up", "link set eth0 up",
			"addr add 198.51.100.1/24 dev eth0", "route add default dev eth0", // kube-apiserver looks for these
		} {
			if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %v: %s", args, err, out)
			}
		}
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-e2e.kubernetes", *kubernetesDir)
	cmd.Env = append(os.Environ(), ownNetwork+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// aggregated is an API that a service serves, with its authority.
const aggregated = `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.test.hawser.dev}, spec: {
  group: test.hawser.dev, version: v1, groupPriorityMinimum: 1000, versionPriority: 10, caBundle: %s, service: {namespace: default, name: hook}}}`

// TestKubernetesAPIServices: kube-apiserver reaches a webhook and an aggregated API at a cluster
// IP, which no node has, by its egress selector, through a node that --route-through names. On
// that node all cluster IPs lead to one pod, in place of kube-proxy.
func TestKubernetesAPIServices(t *testing.T) {
	const services = "10.96.0.0/12"
	needKubernetes(t)
	if !inOwnNetwork(t, services) {
		return
	}
	k := startKubeAPI(t)
	k.approve(t)
	k.start(t, "--konnectivity-uds", k.grpcSocket(), "--route-through", services+"=node-restriction.kubernetes.io/gateway")
	metrics := k.monitor(t)
	k.adopts(t, "node-1", "--node-ip=198.51.100.1", "--eviction-hard=", "--allow-target", services)
	t.Cleanup(func() {
		if b, err := os.ReadFile(filepath.Join(k.dir, "nodes", "node-1", "agent.log")); err == nil && t.Failed() {
			t.Logf("--- agent\n%s", b[max(0, len(b)-3000):])
		}
	})
	k.waitNode(t, "node-1") // an API server that starts refuses tokens that it has not read yet
	k.serveAnew(t, "--egress-selector-config-file="+egressFile(t, filepath.Join(k.dir, "egress.yaml"), "--protocol=grpc", "--uds="+k.grpcSocket()))
	k.roleInPodWith(t, "hook", "", `,"nodeName":"node-1"`, "admission-webhook :443")
	block, _ := pem.Decode([]byte(k.mustKubectl(t, "", "logs", "hook")))
	ca := pem.EncodeToMemory(block)
	pod, err := k.client.CoreV1().Pods("default").Get(t.Context(), "hook", metav1.GetOptions{})
	must(t, err)
	k.serveHook(t, pod, ca)
	makes := func(name, want string) {
		t.Helper()
		eventually(t, "the answer to "+name+" is "+want, func() error {
			_, err := k.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			switch {
			case err == nil && want != "":
				must(t, k.client.CoreV1().ConfigMaps("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
				return errors.New("it was admitted")
			case err != nil && (want == "" || !strings.Contains(err.Error(), want)):
				return err
			}
			return nil
		})
	}
	makes("bad-1", "no node has address 10.")
	k.mustKubectl(t, "", "label", "node", "node-1", "node-restriction.kubernetes.io/gateway=")
	was := dials(t, metrics, "konnectivity-unix")
	makes("bad-1", `admission webhook "hook.hawser.dev" denied the request: the name is bad`)
	makes("good-1", "")
	if now := dials(t, metrics, "konnectivity-unix"); now <= was {
		t.Errorf("%v dials before, %v after: the API server reached the service some other way", was, now)
	}
	k.mustKubectl(t, fmt.Sprintf(aggregated, base64.StdEncoding.EncodeToString(ca)), "apply", "-f", "-")
	k.mustKubectl(t, "", "wait", "--for=condition=Available", "--timeout=60s", "apiservice/v1.test.hawser.dev")
	if got := k.mustKubectl(t, "", "get", "--raw", "/apis/test.hawser.dev/v1"); !strings.Contains(got, `"resources":[]`) {
		t.Errorf("the aggregated API says %q", got)
	}
	k.mustKubectl(t, "", "delete", "apiservice/v1.test.hawser.dev", "validatingwebhookconfiguration/hook")
	k.mustKubectl(t, "", "delete", "pod", "hook", "--now")
}
