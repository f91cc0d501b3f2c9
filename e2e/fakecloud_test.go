// The cloud controller manager with somebody else's cloud, which is reached by its API alone.

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/cloud/cloudtest"
	"github.com/hawser-project/hawser/e2e/await"
)

// foreignRoute is a range outside the cluster's, which somebody else uses.
const foreignRoute = "10.9.0.0/24"

// fakeCloud is a cluster whose cloud is the fake one.
type fakeCloud struct {
	*cluster
	http *http.Client
}

// startFakeCloud starts a cluster, and a cloud controller manager whose cloud has such a
// state.
func startFakeCloud(t *testing.T, s cloudtest.State) *fakeCloud {
	t.Helper()
	const pods = "--cluster-cidr=10.244.0.0/16"
	c := &fakeCloud{cluster: startUp(t, "--nodes", "1", "--agent-arg=--cloud-provider=external", "--server-arg=--allocate-node-cidrs", "--server-arg="+pods)}
	program, socket := filepath.Join(c.dir, "ccm.test"), filepath.Join(c.dir, "cloud.sock")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-trimpath", "-o", program, "../cmd/hawser-ccm")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // its packages are those of the programs
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.http = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	c.runCCM(t, []string{"env", "HAWSER_TEST_CCM=1", "HAWSER_TEST_CLOUD=" + socket, program}, "ccm", c.account(t), await.FreePort(t),
		"--cloud-provider", cloudtest.Name, pods, "--node-monitor-period", "1s", "--route-reconciliation-period", "1s")
	eventually(t, "the cloud is there", func() error { return c.put(t, s) })
	return c
}

// put gives the cloud another state.
func (c *fakeCloud) put(t *testing.T, s cloudtest.State) error {
	t.Helper()
	b, err := json.Marshal(s)
	must(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://cloud/", bytes.NewReader(b))
	must(t, err)
	resp, err := c.http.Do(req)
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}

// state is what the cloud has.
func (c *fakeCloud) state(t *testing.T) (s cloudtest.State) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://cloud/", http.NoBody)
	must(t, err)
	resp, err := c.http.Do(req)
	must(t, err)
	defer resp.Body.Close()
	must(t, json.NewDecoder(resp.Body).Decode(&s))
	return s
}

// desired is what the cloud has to have by the API: a route for each range of pods, and a load
// balancer for each Service of that type, which leads to all nodes.
func (c *fakeCloud) desired(t *testing.T) cloudtest.State {
	t.Helper()
	s := cloudtest.State{Balancers: map[string]cloudtest.Balancer{}, Routes: map[string]string{foreignRoute: "elsewhere"}}
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var names []string // the API sorts them
	for i := range nodes.Items {
		n := &nodes.Items[i]
		names = append(names, n.Name)
		for _, cidr := range n.Spec.PodCIDRs {
			s.Routes[cidr] = n.Name
		}
	}
	services, err := c.client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range services.Items {
		svc := &services.Items[i]
		if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		b := cloudtest.Balancer{Nodes: names}
		for _, p := range svc.Spec.Ports {
			b.Ports = append(b.Ports, p.Port)
		}
		s.Balancers[svc.Namespace+"/"+svc.Name] = b
	}
	return s
}

// settles waits until the cloud's state is that of the API, and the API has what the cloud
// says: each node has a range of pods and its network, no taint of a network that it lacks,
// and each load balancer its address.
func (c *fakeCloud) settles(t *testing.T, what string, routes, balancers int) {
	t.Helper()
	eventually(t, what, func() error {
		is, want := c.state(t), c.desired(t)
		if is.Balancers == nil {
			is.Balancers = map[string]cloudtest.Balancer{}
		}
		if !reflect.DeepEqual(is, want) || len(is.Routes) != routes || len(is.Balancers) != balancers {
			return fmt.Errorf("the cloud has %+v, want %+v: %d routes, %d balancers", is, want, routes, balancers)
		}
		nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for i := range nodes.Items {
			if err := hasNetwork(&nodes.Items[i]); err != nil {
				return err
			}
		}
		for key := range is.Balancers {
			if at := c.mustKubectl(t, "", "get", "service", strings.TrimPrefix(key, "default/"), "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"); at != cloudtest.Address {
				return fmt.Errorf("%s is at %q", key, at)
			}
		}
		return nil
	})
}

func hasNetwork(n *corev1.Node) error {
	is := condition(n, corev1.NodeNetworkUnavailable)
	if len(n.Spec.PodCIDRs) != 1 || is.Status != corev1.ConditionFalse || is.Reason != "RouteCreated" || hasTaint(n, corev1.TaintNodeNetworkUnavailable) {
		return fmt.Errorf("%s: %v, %+v, %v", n.Name, n.Spec.PodCIDRs, is, n.Spec.Taints)
	}
	return nil
}

// TestFakeCloud: what the API says about routes and load balancers is so in the cloud,
// whatever was there before, and what was made by somebody else stays. What the cloud refuses
// is told, and done once it refuses no more: until then a node without its route has the
// condition and the taint of that.
func TestFakeCloud(t *testing.T) {
	t.Parallel()
	c := startFakeCloud(t, cloudtest.State{Refuses: true, Routes: map[string]string{
		foreignRoute: "elsewhere", "10.244.200.0/24": "gone", "10.244.201.0/24": "",
	}})
	c.mustKubectl(t, "", "create", "service", "loadbalancer", "web", "--tcp=80:80")
	c.mustKubectl(t, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"spare-1"}}`, "create", "-f", "-")
	c.isRefused(t)
	before := c.state(t)
	before.Refuses = false
	must(t, c.put(t, before))
	c.settles(t, "the cloud takes what it had refused", 3, 1)

	c.mustKubectl(t, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"spare-2"}}`, "create", "-f", "-")
	c.mustKubectl(t, "", "create", "service", "loadbalancer", "mail", "--tcp=25:25", "--tcp=465:465")
	c.mustKubectl(t, "", "patch", "service", "web", "--type=json", "-p", `[{"op":"replace","path":"/spec/ports/0/port","value":81}]`)
	c.settles(t, "a node, a service and a port come", 4, 2)

	c.mustKubectl(t, "", "delete", "node", "spare-1")
	c.mustKubectl(t, "", "patch", "service", "web", "-p", `{"spec":{"type":"ClusterIP"}}`)
	c.mustKubectl(t, "", "delete", "service", "mail")
	c.settles(t, "they go", 3, 0)
	eventually(t, "the service knows that it has no load balancer any more", func() error {
		if out := c.mustKubectl(t, "", "get", "service", "web", "-o", "jsonpath={.metadata.finalizers}{.status.loadBalancer}"); out != "{}" {
			return errors.New(out)
		}
		return nil
	})

	lost := c.state(t)
	maps.DeleteFunc(lost.Routes, func(cidr, _ string) bool { return cidr != foreignRoute })
	must(t, c.put(t, lost))
	c.settles(t, "routes that somebody deleted are there again", 3, 0)
}

// isRefused: the cloud makes no route and no load balancer, and the API says so.
func (c *fakeCloud) isRefused(t *testing.T) {
	t.Helper()
	for _, name := range []string{"node-1", "spare-1"} {
		eventually(t, name+" has no network", func() error {
			n, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			must(t, err)
			if is := condition(n, corev1.NodeNetworkUnavailable); is.Status != corev1.ConditionTrue || is.Reason != "NoRouteCreated" || !hasTaint(n, corev1.TaintNodeNetworkUnavailable) {
				return fmt.Errorf("%+v, %v", is, n.Spec.Taints)
			}
			return nil
		})
	}
	for reason, object := range map[string]string{"SyncLoadBalancerFailed": "web", "FailedToCreateRoute": "spare-1"} {
		eventually(t, "an event says that the cloud refuses", func() error {
			said := c.mustKubectl(t, "", "get", "events", "-A", "-o", `jsonpath={range .items[?(@.reason=="`+reason+`")]}{.involvedObject.name}: {.message}{"\n"}{end}`)
			if !strings.Contains(said, object+": ") || !strings.Contains(said, "the fake cloud refuses") {
				return fmt.Errorf("%s: %q", reason, said)
			}
			return nil
		})
	}
	if s := c.state(t); len(s.Balancers) != 0 || len(s.Routes) != 3 {
		t.Errorf("the cloud has %+v", s)
	}
}
