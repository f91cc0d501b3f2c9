package cloud

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/api"
	nodecontroller "k8s.io/cloud-provider/controllers/node"
	servicecontroller "k8s.io/cloud-provider/controllers/service"
)

// TestShutdown: the node of a machine that is shut down is tainted, and no longer once it is
// ready; about one that is ready nobody is asked.
func TestShutdown(t *testing.T) {
	inLab(t, func(l *lab) {
		c := &thrifty{Interface: l.provider("machines: [{name: n-1, state: shutdown}, {name: n-2}]"), limit: rate.NewLimiter(rate.Inf, 1), calls: map[string]int{}}
		l.lifecycle(c)
		l.later(2 * period)
		if n := c.most(); n == 0 {
			l.Error("the cloud was not asked about nodes that are not ready")
		}
		tainted := func(name string) bool {
			n, err := l.client.CoreV1().Nodes().Get(l.ctx, name, metav1.GetOptions{})
			if err != nil {
				l.Fatal(err)
			}
			return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
				return t.Key == api.TaintNodeShutdown && t.Effect == corev1.TaintEffectNoSchedule
			})
		}
		if !tainted("n-1") || tainted("n-2") {
			l.Errorf("n-1: %v, n-2: %v", tainted("n-1"), tainted("n-2"))
		}
		for _, name := range []string{"n-1", "n-2"} {
			n, err := l.client.CoreV1().Nodes().Get(l.ctx, name, metav1.GetOptions{})
			if err != nil {
				l.Fatal(err)
			}
			n.Status.Conditions[0].Status = corev1.ConditionTrue
			if _, err := l.client.CoreV1().Nodes().UpdateStatus(l.ctx, n, metav1.UpdateOptions{}); err != nil {
				l.Fatal(err)
			}
		}
		l.later(2 * period)
		l.client.ClearActions()
		c.most()
		l.later(3 * period)
		if n := c.most(); n != 0 {
			l.Errorf("the cloud was asked %d times about a node that is ready", n)
		}
		if tainted("n-1") {
			l.Error("it is ready and tainted")
		}
		for _, a := range l.client.Actions() {
			if a.GetResource().Resource == "configmaps" && a.GetVerb() == "get" {
				l.Errorf("nodes are ready, and identities are read: %v", a)
			}
		}
	}, silent("n-1"), silent("n-2"))
}

// TestNodesThatMayNotBeDeleted: without that right the Node stays, and an event says so.
func TestNodesThatMayNotBeDeleted(t *testing.T) {
	inLab(t, func(l *lab) {
		l.client.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "n-2", errors.New("no such right"))
		})
		l.lifecycle(l.provider("machines: [{name: n-1}]"))
		l.later(period)
		if got := l.nodes(); got != "n-1 n-2" {
			l.Errorf("%s are left", got)
		}
		if got := l.events("DeletingNodeFailed"); len(got) == 0 || !strings.HasPrefix(got[0], "n-2: Failed deleting node n-2: ") {
			l.Errorf("%q", got)
		}
	}, silent("n-1"), silent("n-2"))
}

// TestInitialize: a node gets its provider ID, labels and addresses, and loses the taint. One
// without a machine keeps it, also if it says that it has another's: it would get the
// addresses of that.
func TestInitialize(t *testing.T) {
	taint := []corev1.Taint{{Key: api.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
	known, unknown, thief := node("n-1", ""), node("n-9", ""), node("thief", "hawser://n-1")
	known.Spec.Taints, unknown.Spec.Taints, thief.Spec.Taints = taint, taint, taint
	known.Status.Addresses = append(known.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "host-1"})
	inLab(t, func(l *lab) {
		c := l.provider(strings.Replace(inventory, `rack: "7"`, `rack: "7", node.kubernetes.io/mine: "yes"`, 1))
		l.run(c, func(f informers.SharedInformerFactory) (func(context.Context), error) {
			ctl, err := nodecontroller.NewCloudNodeController(f.Core().V1().Nodes(), l.client, c, 5*time.Minute, 1, 1)
			return func(ctx context.Context) { ctl.RunWithContext(ctx, counted()) }, err
		})
		l.later(10 * time.Second)
		n, err := l.client.CoreV1().Nodes().Get(l.ctx, "n-1", metav1.GetOptions{})
		if err != nil {
			l.Fatal(err)
		}
		if n.Spec.ProviderID != "hawser://n-1" || len(n.Spec.Taints) != 0 {
			l.Errorf("%+v", n.Spec)
		}
		for key, want := range map[string]string{
			corev1.LabelInstanceTypeStable: "small", corev1.LabelInstanceType: "small", corev1.LabelTopologyZone: "z-1", corev1.LabelFailureDomainBetaZone: "z-1",
			corev1.LabelTopologyRegion: "r-1", corev1.LabelFailureDomainBetaRegion: "r-1", "rack": "7", "node.kubernetes.io/mine": "",
		} {
			if n.Labels[key] != want {
				l.Errorf("label %s is %q, want %q", key, n.Labels[key], want)
			}
		}
		want := []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "198.51.100.1"}, {Type: corev1.NodeHostName, Address: "host-1"},
		}
		if got := n.Status.Addresses; !slices.Equal(got, want) {
			l.Errorf("%v", got)
		}
		if got := l.events("Synced"); !slices.Equal(got, []string{"n-1: Node synced successfully"}) {
			l.Errorf("%q", got)
		}
		for name, id := range map[string]string{"n-9": "", "thief": "hawser://n-1"} {
			n, err = l.client.CoreV1().Nodes().Get(l.ctx, name, metav1.GetOptions{})
			if err != nil || len(n.Spec.Taints) != 1 || n.Spec.ProviderID != id || len(n.Labels) != 0 || n.Status.Addresses[0].Address == "10.0.0.1" {
				l.Errorf("%s: %+v, %v, %v, %v", name, n.Spec, n.Labels, n.Status.Addresses, err)
			}
		}
		for _, a := range l.client.Actions() {
			if a.GetResource().Resource == "nodes" && a.GetVerb() == "create" {
				l.Errorf("it makes a Node: %v", a)
			}
		}
	}, known, unknown, thief)
}

// asked counts how often a provider is asked for a load balancer.
type asked struct {
	*Cloud
	times int
	held  bool     // the Service had a finalizer each time
	nodes []string // of the last time
}

func (a *asked) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	return askedBalancers{(*balancers)(a.Cloud), a}, true
}

type askedBalancers struct {
	*balancers
	asked *asked
}

// EnsureLoadBalancer implements cloudprovider.LoadBalancer.
func (b askedBalancers) EnsureLoadBalancer(ctx context.Context, cluster string, s *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	b.asked.times++
	b.asked.nodes = nil
	for _, n := range nodes {
		b.asked.nodes = append(b.asked.nodes, n.Name)
	}
	slices.Sort(b.asked.nodes)
	now, err := b.client.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	b.asked.held = err == nil && len(now.Finalizers) == 1 && (b.asked.times == 1 || b.asked.held)
	return b.balancers.EnsureLoadBalancer(ctx, cluster, s, nodes)
}

// TestServices: a Service gets a finalizer and then an address; the provider is asked again
// when it changes; the address is given back when it goes. Endpoints are nobody's matter.
func TestServices(t *testing.T) {
	inLab(t, func(l *lab) {
		c := &asked{Cloud: l.provider(inventory)}
		l.run(c, func(f informers.SharedInformerFactory) (func(context.Context), error) {
			ctl, err := servicecontroller.New(c, l.client, f.Core().V1().Services(), f.Core().V1().Nodes(), "kubernetes", utilfeature.DefaultFeatureGate)
			return func(ctx context.Context) { ctl.Run(ctx, 1, counted()) }, err
		})
		services := l.client.CoreV1().Services("ns")
		if _, err := services.Create(l.ctx, service("web", nil, 80), metav1.CreateOptions{}); err != nil {
			l.Fatal(err)
		}
		l.later(10 * time.Second)
		get := func() *corev1.Service {
			s, err := services.Get(l.ctx, "web", metav1.GetOptions{})
			if err != nil {
				l.Fatal(err)
			}
			return s
		}
		if in := get().Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP != "192.0.2.1" || c.times != 1 || !c.held {
			l.Fatalf("%v, asked %d times, held %v", in, c.times, c.held)
		}
		for what, change := range map[string]func(*corev1.Service){
			"address":     func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.2" },
			"sources":     func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"} },
			"ports":       func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 },
			"policy":      func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
			"health port": func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 30001 },
			"affinity":    func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			"annotation":  func(s *corev1.Service) { s.Annotations = map[string]string{"hawser.dev/proxy-protocol": "v2"} },
		} {
			before := c.times
			s := get()
			change(s)
			if _, err := services.Update(l.ctx, s, metav1.UpdateOptions{}); err != nil {
				l.Fatal(err)
			}
			l.later(10 * time.Second)
			if c.times != before+1 {
				l.Errorf("%s: the provider is asked %d times", what, c.times-before)
			}
		}
		if in := get().Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP != "192.0.2.2" || len(in[0].Ports) != 1 || in[0].Ports[0] != (corev1.PortStatus{Port: 81, Protocol: corev1.ProtocolTCP}) {
			l.Errorf("%v", in)
		}
		if err := services.Delete(l.ctx, "web", metav1.DeleteOptions{}); err != nil {
			l.Fatal(err)
		}
		l.later(10 * time.Second)
		if _, err := services.Get(l.ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			l.Errorf("it is not let go: %v", err)
		}
		if _, there := c.pool.given["web"]; there {
			l.Error("its address is not given back")
		}
		for _, a := range l.client.Actions() {
			if strings.HasPrefix(a.GetResource().Resource, "endpoint") {
				l.Errorf("%v", a)
			}
		}
		if len(l.events("EnsuringLoadBalancer")) == 0 || len(l.events("EnsuredLoadBalancer")) == 0 {
			l.Error("no event tells of it")
		}
	})
}

// TestPoolExhausted: a Service whose ports are free nowhere stays without an address, an event
// says who has them, and it gets them soon after they are given back.
func TestPoolExhausted(t *testing.T) {
	inLab(t, func(l *lab) {
		c := l.provider("loadBalancers: {addresses: [192.0.2.1]}")
		l.run(c, func(f informers.SharedInformerFactory) (func(context.Context), error) {
			ctl, err := servicecontroller.New(c, l.client, f.Core().V1().Services(), f.Core().V1().Nodes(), "kubernetes", utilfeature.DefaultFeatureGate)
			return func(ctx context.Context) { ctl.Run(ctx, 1, counted()) }, err
		})
		services := l.client.CoreV1().Services("ns")
		for _, name := range []string{"first", "second"} {
			if _, err := services.Create(l.ctx, service(name, nil, 80), metav1.CreateOptions{}); err != nil {
				l.Fatal(err)
			}
			l.later(10 * time.Second)
		}
		address := func(name string) string {
			s, err := services.Get(l.ctx, name, metav1.GetOptions{})
			if err != nil {
				l.Fatal(err)
			}
			if len(s.Status.LoadBalancer.Ingress) == 0 {
				return ""
			}
			return s.Status.LoadBalancer.Ingress[0].IP
		}
		if first, second := address("first"), address("second"); first != "192.0.2.1" || second != "" {
			l.Errorf("%q, %q", first, second)
		}
		const want = "second: Error syncing load balancer: failed to ensure load balancer: no address of the pool has the ports free: 192.0.2.1 by ns/first"
		if got := l.events("SyncLoadBalancerFailed"); len(got) == 0 || got[0] != want {
			l.Errorf("%q, want %q", got, want)
		}
		l.later(2 * time.Minute)
		if err := services.Delete(l.ctx, "first", metav1.DeleteOptions{}); err != nil {
			l.Fatal(err)
		}
		l.later(11 * time.Second)
		if got := address("second"); got != "192.0.2.1" {
			l.Errorf("after the first is gone: %q", got)
		}
	})
}

// TestBalancedNodes: a node that is cordoned stays among those that a load balancer leads to,
// also one that is not ready. One that says so does not, nor one that is about to go.
func TestBalancedNodes(t *testing.T) {
	cordoned, excluded, leaving := node("cordoned", "x://1"), node("excluded", "x://2"), node("leaving", "x://3")
	cordoned.Spec.Unschedulable = true
	excluded.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
	leaving.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	lost := silent("lost")
	lost.Spec.ProviderID = "x://4"
	inLab(t, func(l *lab) {
		c := &asked{Cloud: l.provider(inventory)}
		l.run(c, func(f informers.SharedInformerFactory) (func(context.Context), error) {
			ctl, err := servicecontroller.New(c, l.client, f.Core().V1().Services(), f.Core().V1().Nodes(), "kubernetes", utilfeature.DefaultFeatureGate)
			return func(ctx context.Context) { ctl.Run(ctx, 1, counted()) }, err
		})
		if _, err := l.client.CoreV1().Services("ns").Create(l.ctx, service("web", nil, 80), metav1.CreateOptions{}); err != nil {
			l.Fatal(err)
		}
		l.later(10 * time.Second)
		if want := []string{"cordoned", "lost"}; !slices.Equal(c.nodes, want) {
			l.Errorf("it leads to %v, want %v", c.nodes, want)
		}
	}, cordoned, excluded, leaving, lost)
}
