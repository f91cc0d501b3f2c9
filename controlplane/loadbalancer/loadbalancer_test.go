package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a controller's, with what it has set.
type world struct {
	*testing.T
	ctx    context.Context
	client *fake.Clientset
	events *record.FakeRecorder

	mu  sync.Mutex // guards the following
	set map[string][]Front
	err error // of Set
}

func run(t *testing.T, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	runWith(t, nil, f, objs...)
}

func runWith(t *testing.T, ports []utilnet.PortRange, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(objs...)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, ctx: t.Context(), client: client, events: record.NewFakeRecorder(100), set: make(map[string][]Front)}
		_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Informers: f, Events: w.events}, Config{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, Ports: ports, Set: w.take})
		})
		f(w)
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (w *world) take(_ context.Context, service string, fronts []Front) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.set[service] = fronts
	}
	return w.err
}

func (w *world) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// fronts are those of ns/web, one after the other.
func (w *world) fronts() string {
	w.Helper()
	<-time.After(time.Second)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, f := range w.set["ns/web"] {
		targets := slices.Sorted(slices.Values(f.Targets()))
		out = append(out, fmt.Sprintf("%v %v sticky=%v proxy=%v to %s", f.Addr, f.Sources, f.Sticky, f.ProxyProtocol, strings.Join(targets, " ")))
	}
	return strings.Join(out, "; ")
}

func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}},
	}
	if change != nil {
		change(s)
	}
	return s
}

func slice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}, {Name: ptr.To("other"), Port: ptr.To[int32](9)}},
	}
}

func endpoint(ip, node string, ready, serving, terminating bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{ip}, NodeName: &node,
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
	}
}

func TestFronts(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Service)
		want   string
	}{
		"plain":          {nil, "192.0.2.1:80 [] sticky=false proxy=false to 10.0.0.1%n:8080"},
		"no address yet": {func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = nil }, ""},
		"another server": {func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[0].IP = "192.0.2.9" }, ""},
		"another type":   {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }, ""},
		"of a class":     {func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/other") }, ""},
		"IPv6":           {func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[0].IP = "2001:db8::1" }, "[2001:db8::1]:80 [] sticky=false proxy=false to 10.0.0.1%n:8080"},
		"all there is": {func(s *corev1.Service) {
			s.Spec.SessionAffinity, s.Annotations = corev1.ServiceAffinityClientIP, map[string]string{ProxyProtocol: "v2"}
			s.Spec.LoadBalancerSourceRanges = []string{"10.1.2.3/8", " 192.0.2.0/24"}
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "none", Port: 81}, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP})
		}, "192.0.2.1:80 [10.0.0.0/8 192.0.2.0/24] sticky=true proxy=true to 10.0.0.1%n:8080; 192.0.2.1:81 [10.0.0.0/8 192.0.2.0/24] sticky=true proxy=true to "},
		"ports that it was not given": {func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress[0].Ports = []corev1.PortStatus{
				{Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 81, Protocol: corev1.ProtocolUDP}, {Port: 82, Protocol: corev1.ProtocolTCP, Error: ptr.To("Taken")},
			}
			for port := range int32(3) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint(port), Port: 81 + port, Protocol: corev1.ProtocolTCP})
			}
		}, "192.0.2.1:80 [] sticky=false proxy=false to 10.0.0.1%n:8080"},
		"sources as an annotation": {func(s *corev1.Service) {
			s.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: " 10.1.2.3/8, 192.0.2.0/24"}
		}, "192.0.2.1:80 [10.0.0.0/8 192.0.2.0/24] sticky=false proxy=false to 10.0.0.1%n:8080"},
		"the field before the annotation": {func(s *corev1.Service) {
			s.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: "10.0.0.0/8"}
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
		}, "192.0.2.1:80 [192.0.2.0/24] sticky=false proxy=false to 10.0.0.1%n:8080"},
		"an empty annotation": {func(s *corev1.Service) {
			s.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: " "}
		}, "192.0.2.1:80 [] sticky=false proxy=false to 10.0.0.1%n:8080"},
		"sources that nobody can read": {func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"everywhere"} }, "192.0.2.1:80 [invalid Prefix] sticky=false proxy=false to 10.0.0.1%n:8080"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				if got := w.fronts(); got != tc.want {
					t.Errorf("%q, want %q", got, tc.want)
				}
			}, service(tc.change), slice("a", endpoint("10.0.0.1", "n", true, true, false)))
		})
	}
}

// TestTargets: ready ones, or else those that still serve as they end; never an address
// that means the node itself, nor one whose node is not known.
func TestTargets(t *testing.T) {
	ending, dead := endpoint("10.0.0.3", "n", false, true, true), endpoint("10.0.0.4", "n", false, false, true)
	nowhere := discoveryv1.Endpoint{Addresses: []string{"10.0.0.5"}}
	for name, tc := range map[string]struct {
		endpoints []discoveryv1.Endpoint
		want      string
	}{
		"ready before others": {[]discoveryv1.Endpoint{endpoint("10.0.0.1", "n", true, true, false), endpoint("10.0.0.2", "m", true, true, false), ending, dead}, "10.0.0.1%n:8080 10.0.0.2%m:8080"},
		"none but ending":     {[]discoveryv1.Endpoint{ending, dead, nowhere}, "10.0.0.3%n:8080"},
		"not ready":           {[]discoveryv1.Endpoint{endpoint("10.0.0.1", "n", false, false, false)}, ""},
		"what a node is to itself": {[]discoveryv1.Endpoint{
			endpoint("127.0.0.1", "n", true, true, false), endpoint("169.254.169.254", "n", true, true, false), endpoint("::ffff:127.0.0.1", "n", true, true, false),
			endpoint("::1", "n", true, true, false), endpoint("0.0.0.0", "n", true, true, false), endpoint("here", "n", true, true, false),
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				if got, want := w.fronts(), "192.0.2.1:80 [] sticky=false proxy=false to "+tc.want; got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}, service(nil), slice("a", tc.endpoints...))
		})
	}
}

// TestTargetsAreReadOnce: a connection to a Service with 2,000 endpoints does not read them
// all again, and hears of each change.
func TestTargetsAreReadOnce(t *testing.T) {
	objs := []runtime.Object{service(nil)}
	for i := range 20 {
		var all []discoveryv1.Endpoint
		for j := range 100 {
			all = append(all, endpoint(fmt.Sprintf("10.0.%d.%d", i, j), "n", true, true, false))
		}
		objs = append(objs, slice(fmt.Sprintf("s%d", i), all...))
	}
	run(t, func(w *world) {
		w.fronts()
		front, write := w.set["ns/web"][0], w.client.DiscoveryV1().EndpointSlices("ns")
		if n := len(front.Targets()); n != 2000 {
			t.Fatalf("%d targets", n)
		}
		if n := testing.AllocsPerRun(5, func() { front.Targets() }); n > 100 {
			t.Errorf("%v allocations a connection", n)
		}
		if _, err := write.Update(w.ctx, slice("s3", endpoint("10.9.9.9", "n", true, true, false)), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if all := front.Targets(); len(all) != 1901 || !slices.Contains(all, "10.9.9.9%n:8080") {
			t.Errorf("%d targets once a slice has others", len(all))
		}
		if err := write.Delete(w.ctx, "s4", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(front.Targets()); n != 1801 {
			t.Errorf("%d targets once a slice is gone", n)
		}
	}, objs...)
}

func TestServiceGoes(t *testing.T) {
	run(t, func(w *world) {
		if w.fronts() == "" {
			t.Fatal("there is no front")
		}
		// Its finalizer holds it, and nobody connects any more.
		if err := w.client.CoreV1().Services("ns").Delete(w.ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.fronts(); got != "" {
			t.Errorf("%q", got)
		}
	}, service(func(s *corev1.Service) { s.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"} }))
}

// TestPortTaken: the Service hears of it, and the port is tried again.
func TestPortTaken(t *testing.T) {
	run(t, func(w *world) {
		w.fail(errors.New("listen tcp 192.0.2.1:80: bind: address already in use\nand more"))
		if _, err := w.client.CoreV1().Services("ns").Create(w.ctx, service(nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.fronts(); got != "" {
			t.Errorf("%q", got)
		}
		const want = "Warning ListenFailed A server cannot listen for this Service: listen tcp 192.0.2.1:80: bind: address already in use and more"
		if got := apitest.Events(w.events); !slices.Equal(got, []string{want}) {
			t.Errorf("%q", got)
		}
		w.fail(nil)
		<-time.After(again)
		if got := w.fronts(); got == "" {
			t.Error("it is not tried again")
		}
	})
}

// TestPortNotAllowed: the Service hears of it, once, and its other ports are listened at.
func TestPortNotAllowed(t *testing.T) {
	ports, err := ParsePorts([]string{"80", "30000-32767"})
	if err != nil {
		t.Fatal(err)
	}
	runWith(t, ports, func(w *world) {
		if got, want := w.fronts(), "192.0.2.1:80 [] sticky=false proxy=false to ; 192.0.2.1:32767 [] sticky=false proxy=false to "; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		<-time.After(2 * again)
		const want = "Warning ListenFailed A server cannot listen for this Service: its --load-balancer-ports do not have 22, 32768"
		if got := apitest.Events(w.events); !slices.Equal(got, []string{want}) {
			t.Errorf("%q", got)
		}
	}, service(func(s *corev1.Service) {
		for _, n := range []int32{22, 32767, 32768} {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint(n), Port: n})
		}
	}))
}

func TestParsePorts(t *testing.T) {
	for _, s := range []string{"", "http", "0", "0-80", "65536", "90-80", "80-65536", "-1", "80,81"} {
		if got, err := ParsePorts([]string{s}); err == nil || !strings.Contains(err.Error(), "want a port, or a range of ports") {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
}

func TestParseAddresses(t *testing.T) {
	if got, err := ParseAddresses([]string{"192.0.2.1", "::1"}); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "host", "0.0.0.0", "224.0.0.1", "fe80::1%eth0", "10.0.0.0/8"} {
		if _, err := ParseAddresses([]string{s}); err == nil || !strings.Contains(err.Error(), "want an IP address of this server") {
			t.Errorf("%q: %v", s, err)
		}
	}
}
