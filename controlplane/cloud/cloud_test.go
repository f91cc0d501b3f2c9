package cloud

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

const inventory = `
machines:
- {name: n-1, zone: z-1, region: r-1, type: small, addresses: [{type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 198.51.100.1}], labels: {rack: "7"}}
- {name: n-2, id: machine-2, state: shutdown}
loadBalancers:
  addresses: [192.0.2.1, 192.0.2.2]
`

func TestBrokenInventory(t *testing.T) {
	for text, want := range map[string]string{
		"machines: [{name: n-1}, {name: n-1}]":                                    "machines[1].name: n-1 is there twice",
		"machines: [{name: n-1, id: a}, {name: n-2, id: a}]":                      "machines[1].id: a is there twice",
		"\nmachines:\n- {name: N_1}":                                              `line 3: machines[0].name: "N_1" is no name of a node`,
		"machines:\n- name: n-1\n- name: n-2\n  state: gone":                      `line 4: machines[1].state: "gone": want running or shutdown`,
		"machines: [{name: n-1, zone: 'a b'}]":                                    `machines[0].zone: "a b"`,
		"machines: [{name: n-1, labels: {'a b': c}}]":                             "machines[0].labels: a b=c",
		"machines: [{name: n-1, id: 'a b'}]":                                      `machines[0].id: "a b" has blanks`,
		"machines: [{name: n-1, addresses: [{type: InternalIP, address: here}]}]": "machines[0].addresses[0].address",
		"machines: [{name: n-1, addresses: [{type: Phone, address: '1'}]}]":       `machines[0].addresses[0].type: "Phone"`,
		"machines: []":                           "line 1: machines: there are none",
		"":                                       "line 1: it is empty; an inventory that says nothing is {}",
		"# nothing\n---\n":                       "line 1: it is empty",
		"machine: []":                            `unknown field "machine"`,
		"machines:\n- name: n-1\n name: n-2":     "yaml: line 2",
		"loadBalancers:\n  addresses: [0.0.0.0]": "line 2: loadBalancers.addresses[0]: \"0.0.0.0\" is no address of a server",
		"loadBalancers: {addresses: [nowhere]}":  "line 1: loadBalancers.addresses[0]: \"nowhere\" is no address of a server",
		"loadBalancers: {addresses: [" + strings.Repeat("10.0.0.1,", maxAddresses+1) + "]}": "loadBalancers.addresses: 257, which is more than 256",
	} {
		if _, err := ParseInventory([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
}

// TestInventoryOfMany: a file may be larger than what is followed for other purposes.
func TestInventoryOfMany(t *testing.T) {
	var text strings.Builder
	text.WriteString("machines:\n")
	for i := range 6000 {
		fmt.Fprintf(&text, "- {name: n-%d, zone: zone-of-the-north, region: region-of-the-world, type: small, addresses: [{type: InternalIP, address: 10.0.%d.%d}], labels: {rack: rack-%d, row: row-of-the-cold-aisle}}\n", i, i/250, i%250, i)
	}
	if text.Len() < 1<<20 {
		t.Fatalf("it has %d bytes", text.Len())
	}
	c, _ := newCloud(t, text.String())
	if m := c.inventory.Get().machine(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n-5999"}}); m == nil || m.Labels["rack"] != "rack-5999" {
		t.Errorf("the last machine is %v", m)
	}
}

func FuzzInventory(f *testing.F) {
	f.Add([]byte(inventory))
	f.Add([]byte("machines: [{name: n-1}, {name: n-1}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParseInventory(b)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		for _, m := range v.Machines {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
			if got := v.machine(n); got == nil || got.Name != m.Name {
				t.Errorf("node %s is %v", m.Name, got)
			}
		}
	})
}

// clients gives everybody the same client.
type clients struct{ kubernetes.Interface }

func (c clients) Config(string) (*rest.Config, error)         { return nil, errors.New("none") }
func (c clients) ConfigOrDie(string) *rest.Config             { return nil }
func (c clients) Client(string) (kubernetes.Interface, error) { return c.Interface, nil }
func (c clients) ClientOrDie(string) kubernetes.Interface     { return c.Interface }

// newCloud makes a provider with the inventory of a file, which is returned, and objs.
func newCloud(t *testing.T, text string, objs ...runtime.Object) (*Cloud, string) {
	t.Helper()
	c, name, err := open(t, text)
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(objs...)
	c.Initialize(clients{client}, t.Context().Done())
	f := informers.NewSharedInformerFactory(client, 0)
	c.SetInformers(f)
	f.Start(t.Context().Done())
	f.WaitForCacheSync(t.Context().Done())
	t.Cleanup(f.Shutdown)
	return c, name
}

func node(name, id string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: id},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.9.9.9"}}},
	}
}

// identity is what is written down of a node.
func identity(name, record string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: nodekeys.Namespace, Name: name, Labels: map[string]string{nodekeys.Label: "true"}, ResourceVersion: "1"},
		Data:       map[string]string{"record": record},
	}
}

func TestMachines(t *testing.T) {
	c, _ := newCloud(t, inventory, identity("n-1", `{"keys":[]}`), identity("n-4", `{"revoked":{"by":"admin","at":"2026-01-01T00:00:00Z"}}`))
	all, ok := c.InstancesV2()
	if !ok {
		t.Fatal("there are no instances")
	}
	for _, tc := range []struct {
		node             *corev1.Node
		exists, shutdown bool
	}{
		{node("n-1", ""), true, false},
		{node("n-1", "hawser://n-1"), true, false},
		{node("n-2", ""), true, true},
		{node("n-2", "hawser://machine-2"), true, true},
		{node("n-1", "elsewhere://machine-2"), true, false},
		{node("thief", "hawser://machine-2"), false, false}, // a node writes its provider ID itself
		{node("n-1", "hawser://machine-2"), false, false},
		{node("n-2", "hawser://machine-9"), false, false}, // another machine of that name
		{node("n-3", ""), false, false},
	} {
		exists, err := all.InstanceExists(t.Context(), tc.node)
		if err != nil || exists != tc.exists {
			t.Errorf("%s %s: exists %v, %v", tc.node.Name, tc.node.Spec.ProviderID, exists, err)
		}
		if shutdown, err := all.InstanceShutdown(t.Context(), tc.node); err != nil || shutdown != tc.shutdown {
			t.Errorf("%s %s: shutdown %v, %v", tc.node.Name, tc.node.Spec.ProviderID, shutdown, err)
		}
	}
	m, err := all.InstanceMetadata(t.Context(), node("n-1", ""))
	if err != nil || m.ProviderID != "hawser://n-1" || m.Zone != "z-1" || m.Region != "r-1" || m.InstanceType != "small" || m.AdditionalLabels["rack"] != "7" || m.NodeAddresses[0].Address != "10.0.0.1" {
		t.Errorf("%+v, %v", m, err)
	}
	m, err = all.InstanceMetadata(t.Context(), node("n-2", ""))
	if err != nil || m.ProviderID != "hawser://machine-2" || m.NodeAddresses[0].Address != "10.9.9.9" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err = all.InstanceMetadata(t.Context(), node("n-3", "")); !errors.Is(err, cloudprovider.InstanceNotFound) {
		t.Errorf("a machine that is not there: %v", err)
	}
}

// TestRevoked: the machine of a node that was revoked is gone, with an inventory as without.
func TestRevoked(t *testing.T) {
	revoked := identity("n-1", `{"revoked":{"by":"admin","at":"2026-01-01T00:00:00Z"}}`)
	for _, text := range []string{inventory, "loadBalancers: {addresses: [192.0.2.1]}"} {
		c, _ := newCloud(t, text, revoked)
		if there, err := (*instances)(c).InstanceExists(t.Context(), node("n-1", "")); err != nil || there {
			t.Errorf("%v, %v", there, err)
		}
	}
}

// TestUnknownIdentity: what cannot be read says nothing, and nobody is deleted for it.
func TestUnknownIdentity(t *testing.T) {
	c, _ := newCloud(t, "{}", identity("n-1", "no record"))
	if _, err := (*instances)(c).InstanceExists(t.Context(), node("n-1", "")); err == nil {
		t.Error("no error")
	}
	if there, err := (*instances)(c).InstanceExists(t.Context(), node("n-2", "")); err != nil || !there {
		t.Errorf("without an inventory: %v, %v", there, err)
	}
	if there, err := (*instances)(&Cloud{}).InstanceExists(t.Context(), node("n-2", "")); err == nil {
		t.Errorf("without a client: %v", there)
	}
}

func service(name string, change func(*corev1.Service), ports ...int32) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: p, Protocol: corev1.ProtocolTCP})
	}
	if change != nil {
		change(s)
	}
	return s
}

func had(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}} }
}

func TestPool(t *testing.T) {
	old := service("old", had("192.0.2.2"), 80)
	c, _ := newCloud(t, inventory, old)
	lb, ok := c.LoadBalancer()
	if !ok {
		t.Fatal("there are no load balancers")
	}
	ensure := func(s *corev1.Service) string {
		t.Helper()
		st, err := lb.EnsureLoadBalancer(t.Context(), "kubernetes", s, nil)
		if err != nil {
			return err.Error()
		}
		if *st.Ingress[0].IPMode != corev1.LoadBalancerIPModeProxy {
			t.Errorf("%s: %v", s.Name, st)
		}
		return st.Ingress[0].IP
	}
	for _, tc := range []struct {
		service *corev1.Service
		want    string
	}{
		{service("a", nil, 80, 443), "192.0.2.1"},
		{service("a", nil, 80, 443), "192.0.2.1"}, // again
		{service("b", nil, 8080), "192.0.2.1"},    // shares the address
		{service("c", nil, 80), "no address of the pool has the ports free: 192.0.2.1 by ns/a, 192.0.2.2 by ns/old"},
		{old, "192.0.2.2"}, // keeps what it had from an earlier process
		{service("d", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.2" }, 443), "192.0.2.2"},
		{service("e", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.9" }, 443), "loadBalancerIP 192.0.2.9 is none of the inventory's loadBalancers.addresses"},
		{service("u", func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }, 53), "port 53 is UDP: the tunnel has TCP alone"},
		{service("many", nil, slices.Repeat([]int32{81}, 101)...), "the service has 101 ports, and a load balancer at most 100: divide it into several"},
		{service("b", nil, 443), "no address of the pool has the ports free: 192.0.2.1 by ns/a, 192.0.2.2 by ns/d"},
		{service("b", nil, 9090), "192.0.2.1"},
		{service("f", nil, 8080), "192.0.2.1"}, // which b has left
	} {
		if got := ensure(tc.service); got != tc.want {
			t.Errorf("%s %v: %q, want %q", tc.service.Name, portsOf(tc.service), got, tc.want)
		}
	}
	if err := lb.EnsureLoadBalancerDeleted(t.Context(), "kubernetes", old); err != nil {
		t.Error(err)
	}
	if got := ensure(service("c", nil, 80)); got != "192.0.2.2" {
		t.Errorf("after one has gone: %s", got)
	}
	if st, there, err := lb.GetLoadBalancer(t.Context(), "kubernetes", old); there || err != nil {
		t.Errorf("%v, %v", st, err)
	}
	if st, there, err := lb.GetLoadBalancer(t.Context(), "kubernetes", service("c", nil, 80)); !there || err != nil || st.Ingress[0].IP != "192.0.2.2" {
		t.Errorf("%v, %v", st, err)
	}
}

// TestPortsNotGiven: a Service that asks for another's port does not have it after a restart
// either.
func TestPortsNotGiven(t *testing.T) {
	given := func(port int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			had("192.0.2.1")(s)
			s.Status.LoadBalancer.Ingress[0].Ports = []corev1.PortStatus{{Port: port, Protocol: corev1.ProtocolTCP}}
		}
	}
	owner, other := service("owner", given(443), 443), service("other", given(80), 443)
	c, _ := newCloud(t, inventory, owner, other)
	lb, _ := c.LoadBalancer()
	for _, s := range []*corev1.Service{owner, other} {
		st, there, err := lb.GetLoadBalancer(t.Context(), "kubernetes", s)
		if err != nil || !there || !equality.Semantic.DeepEqual(st.Ingress[0].Ports, s.Status.LoadBalancer.Ingress[0].Ports) {
			t.Errorf("%s has %v, %v", s.Name, st, err)
		}
	}
	if st, err := lb.EnsureLoadBalancer(t.Context(), "kubernetes", owner, nil); err != nil || st.Ingress[0].IP != "192.0.2.1" {
		t.Errorf("%v, %v", st, err)
	}
	if st, err := lb.EnsureLoadBalancer(t.Context(), "kubernetes", other, nil); err != nil || st.Ingress[0].IP != "192.0.2.2" {
		t.Errorf("%v, %v", st, err)
	}
}

// TestReload: the inventory is followed, and what is broken changes nothing.
func TestReload(t *testing.T) {
	c, name := newCloud(t, inventory)
	taken := make(chan struct{}, 1)
	defer c.inventory.Changed(func() { taken <- struct{}{} })()
	said := func() []netip.Addr {
		v, err := c.said()
		if err != nil {
			t.Fatal(err)
		}
		return v.pool
	}
	for _, text := range []string{"machines: []", "loadBalancers: {addresses: [192.0.2.7]}"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(text, "machines") {
			for c.inventory.Err() == nil {
				said()
			}
			if got := said(); len(got) != 2 {
				t.Errorf("after a broken one: %v", got)
			}
		}
	}
	for done := false; !done; {
		select {
		case <-taken:
			done = true
		default:
			said()
		}
	}
	if got := said(); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("192.0.2.7")}) {
		t.Errorf("%v", got)
	}
}
