package endpointslice

// Tests of the controllers in fake time.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// controllers are those of one process.
type controllers struct {
	slices    *Controller
	endpoints *Endpoints
	mirror    *Mirror
}

func (c controllers) Run(ctx context.Context) error {
	return loop.Together(ctx, c.slices.Run, c.endpoints.Run, c.mirror.Run)
}

// A world is what they talk to, and what they said.
type world struct {
	*testing.T
	ctx    context.Context
	client *fake.Clientset
	events *record.FakeRecorder
	made   *Controller
}

func run(t *testing.T, c Config, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(append(objs, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})...)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, ctx: t.Context(), client: client, events: record.NewFakeRecorder(100)}
		_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (controllers, error) {
			d := loop.Deps{Client: client, Informers: f, Events: w.events}
			slices, err := New(d, c)
			w.made = slices
			endpoints, more := NewEndpoints(d, EndpointsConfig{})
			mirror, most := NewMirror(d, MirrorConfig{})
			return controllers{slices, endpoints, mirror}, errors.Join(err, more, most)
		})
		w.settle()
		f(w)
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// A countingLister is a lister that counts how often somebody lists all nodes.
type countingLister struct {
	corelisters.NodeLister
	lists atomic.Int64
}

func (c *countingLister) List(by labels.Selector) ([]*corev1.Node, error) {
	c.lists.Add(1)
	return c.NodeLister.List(by)
}

// Nodes that come one after the other are not all listed for each of them.
func TestManyNodesJoin(t *testing.T) {
	const nodes, atATime = 500, 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New()
		if err != nil {
			t.Fatal(err)
		}
		var c countingLister
		_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
			ctl, err := New(loop.Deps{Client: client, Informers: f}, Config{})
			if err == nil {
				c.NodeLister, ctl.nodes = ctl.nodes, &c
			}
			return ctl, err
		})
		for i := range nodes {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
			if _, err := client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			<-time.After(atATime)
		}
		<-time.After(2 * nodesDelay)
		if n, most := c.lists.Load(), int64(nodes*atATime/nodesDelay)+1; n == 0 || n > most {
			t.Errorf("all nodes were listed %d times, want 1 to %d", n, most)
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (w *world) settle() {
	w.Helper()
	<-time.After(5 * time.Second)
	synctest.Wait()
}

func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Labels: map[string]string{"team": "a"}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, ClusterIP: "10.96.0.7", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("www"), Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func pod(name, ip string, ready bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{
			Name: "c", Ports: []corev1.ContainerPort{{Name: "www", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

// slices are the slices of ns, each with its ports and what is said of each address.
func (w *world) slices() string {
	w.Helper()
	list, err := w.client.DiscoveryV1().EndpointSlices("ns").List(w.ctx, metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var out []string
	for _, s := range list.Items {
		var of []string
		for _, e := range s.Endpoints {
			of = append(of, fmt.Sprintf("%s %s%s", e.Addresses[0], mark(e.Conditions.Ready, "R"), mark(e.Conditions.Terminating, "T")))
		}
		slices.Sort(of)
		port := ""
		for _, p := range s.Ports {
			port += fmt.Sprintf("%s:%d ", *p.Name, *p.Port)
		}
		out = append(out, fmt.Sprintf("%s %s[%s]", s.Labels[discoveryv1.LabelServiceName], port, strings.Join(of, ", ")))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func mark(b *bool, s string) string {
	if ptr.Deref(b, false) {
		return s
	}
	return "-"
}

// endpoints is what the Endpoints of a Service say.
func (w *world) endpoints(name string) string {
	w.Helper()
	e, err := w.client.CoreV1().Endpoints("ns").Get(w.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "none"
	}
	if err != nil {
		w.Fatal(err)
	}
	return said(e)
}

func said(e *corev1.Endpoints) string {
	var out []string
	for _, s := range e.Subsets {
		of := ""
		for _, p := range s.Ports {
			of += fmt.Sprintf("%s:%d", p.Name, p.Port)
		}
		for _, a := range s.Addresses {
			of += " " + a.IP
		}
		for _, a := range s.NotReadyAddresses {
			of += " (" + a.IP + ")"
		}
		out = append(out, of)
	}
	return strings.Join(out, "; ")
}

func (w *world) expect(slices, endpoints string) {
	w.Helper()
	w.settle()
	if got := w.slices(); got != slices {
		w.Errorf("slices: %q, want %q", got, slices)
	}
	if got := w.endpoints("web"); got != endpoints {
		w.Errorf("endpoints: %q, want %q", got, endpoints)
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func TestPodsOfAService(t *testing.T) {
	run(t, Config{}, func(w *world) {
		w.expect("web http:8080 [10.0.0.1 R-, 10.0.0.2 --]", "http:8080 10.0.0.1 (10.0.0.2)")
		pods := w.client.CoreV1().Pods("ns")
		b, err := pods.Get(w.ctx, "b", metav1.GetOptions{})
		w.must(err)
		b.Status = pod("b", "10.0.0.2", true).Status
		b, err = pods.UpdateStatus(w.ctx, b, metav1.UpdateOptions{})
		w.must(err)
		w.expect("web http:8080 [10.0.0.1 R-, 10.0.0.2 R-]", "http:8080 10.0.0.1 10.0.0.2")
		b.Status.Phase, b.Status.Conditions = corev1.PodFailed, nil
		_, err = pods.UpdateStatus(w.ctx, b, metav1.UpdateOptions{})
		w.must(err)
		w.expect("web http:8080 [10.0.0.1 R-]", "http:8080 10.0.0.1")
		_, err = pods.Patch(w.ctx, "a", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"app":"other"}}}`), metav1.PatchOptions{})
		w.must(err)
		w.expect("web []", "")
		e, err := w.client.CoreV1().Endpoints("ns").Get(w.ctx, "web", metav1.GetOptions{})
		w.must(err)
		if want := map[string]string{"team": "a", labelManaged: endpointsController}; !maps.Equal(e.Labels, want) {
			w.Errorf("labels %v, want %v", e.Labels, want)
		}
		w.must(w.client.CoreV1().Services("ns").Delete(w.ctx, "web", metav1.DeleteOptions{}))
		w.settle()
		if got := w.endpoints("web"); got != "none" {
			w.Errorf("of a service that is gone: %q", got)
		}
	}, service(nil), pod("a", "10.0.0.1", true), pod("b", "10.0.0.2", false))
}

// TestOthersWrites: what somebody else makes of a slice or of Endpoints does not last.
func TestOthersWrites(t *testing.T) {
	run(t, Config{}, func(w *world) {
		const slice, endpoints = "web http:8080 [10.0.0.1 R-]", "http:8080 10.0.0.1"
		w.expect(slice, endpoints)
		list, err := w.client.DiscoveryV1().EndpointSlices("ns").List(w.ctx, metav1.ListOptions{})
		w.must(err)
		s := &list.Items[0]
		s.Endpoints[0].Addresses = []string{"10.9.9.9"}
		_, err = w.client.DiscoveryV1().EndpointSlices("ns").Update(w.ctx, s, metav1.UpdateOptions{})
		w.must(err)
		e, err := w.client.CoreV1().Endpoints("ns").Get(w.ctx, "web", metav1.GetOptions{})
		w.must(err)
		e.Subsets = nil
		_, err = w.client.CoreV1().Endpoints("ns").Update(w.ctx, e, metav1.UpdateOptions{})
		w.must(err)
		w.expect(slice, endpoints)
		w.must(w.client.DiscoveryV1().EndpointSlices("ns").Delete(w.ctx, s.Name, metav1.DeleteOptions{}))
		w.must(w.client.CoreV1().Endpoints("ns").Delete(w.ctx, "web", metav1.DeleteOptions{}))
		w.expect(slice, endpoints)
	}, service(nil), pod("a", "10.0.0.1", true))
}

// TestTakenAway: a slice that somebody takes away from its Service is replaced.
func TestTakenAway(t *testing.T) {
	for name, labels := range map[string]string{
		"of nobody":       `{"kubernetes.io/service-name":null}`,
		"of another":      `{"kubernetes.io/service-name":"other"}`,
		"not ours":        `{"endpointslice.kubernetes.io/managed-by":"me"}`,
		"without a label": "null",
	} {
		t.Run(name, func(t *testing.T) {
			run(t, Config{}, func(w *world) {
				of := func() []discoveryv1.EndpointSlice {
					list, err := w.client.DiscoveryV1().EndpointSlices("ns").List(w.ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web," + discoveryv1.LabelManagedBy + "=" + ManagedBy})
					w.must(err)
					return list.Items
				}
				w.settle()
				was := of()
				if len(was) != 1 {
					w.Fatalf("there are %d", len(was))
				}
				_, err := w.client.DiscoveryV1().EndpointSlices("ns").Patch(w.ctx, was[0].Name, "application/merge-patch+json", []byte(`{"metadata":{"labels":`+labels+`}}`), metav1.PatchOptions{})
				w.must(err)
				w.settle()
				if is := of(); len(is) != 1 || is[0].Name == was[0].Name || len(is[0].Endpoints) != 1 {
					w.Errorf("%s was taken away, there are %+v", was[0].Name, is)
				}
			}, service(nil), pod("a", "10.0.0.1", true))
		})
	}
}

// TestTakenAwayAtOnce: a slice that somebody takes away before the library has noted that it was made
// is waited for, and not for ever.
func TestTakenAwayAtOnce(t *testing.T) {
	run(t, Config{}, func(w *world) {
		w.settle()
		w.made.tracker.Update(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "taken", UID: "taken", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		}})
		_, err := w.client.CoreV1().Pods("ns").Create(w.ctx, pod("b", "10.0.0.2", true), metav1.CreateOptions{})
		w.must(err)
		endpoints := func() (n int) {
			list, err := w.client.DiscoveryV1().EndpointSlices("ns").List(w.ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
			w.must(err)
			for i := range list.Items {
				n += len(list.Items[i].Endpoints)
			}
			return n
		}
		time.Sleep(staleFor / 2) // the bubble's clock
		if n := endpoints(); n != 1 {
			w.Errorf("%d endpoints before the wait is over", n)
		}
		time.Sleep(2 * time.Minute) // the bubble's clock
		if n := endpoints(); n != 2 {
			w.Errorf("%d endpoints after it", n)
		}
	}, service(nil), pod("a", "10.0.0.1", true))
}

// TestHandMade: of a Service without a selector, and of one that is a name elsewhere,
// somebody else says where it leads. Endpoints of the former are mirrored.
func TestHandMade(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Service)
		slices string
	}{
		"no selector":   {func(s *corev1.Service) { s.Spec.Selector = nil }, "web [192.0.2.1 R-]"},
		"external name": {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			byHand := &corev1.Endpoints{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
				Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}}}, //nolint:staticcheck // as above
			}
			run(t, Config{}, func(w *world) {
				w.expect(tc.slices, " 192.0.2.1")
				w.must(w.client.CoreV1().Services("ns").Delete(w.ctx, "web", metav1.DeleteOptions{}))
				w.expect("", " 192.0.2.1")
			}, service(tc.change), byHand, pod("a", "10.0.0.1", true))
		})
	}
}

// TestTerminating: a pod that ends is told apart in slices, and is none in Endpoints,
// unless the Service wants such pods.
func TestTerminating(t *testing.T) {
	for _, tc := range []struct {
		publish           bool
		slices, endpoints string
	}{
		{false, "web http:8080 [10.0.0.1 -T]", ""},
		{true, "web http:8080 [10.0.0.1 RT]", "http:8080 10.0.0.1"},
	} {
		t.Run(fmt.Sprint(tc.publish), func(t *testing.T) {
			p := pod("a", "10.0.0.1", true)
			p.Finalizers = []string{"a/b"}
			s := service(func(s *corev1.Service) {
				s.Spec.ClusterIP, s.Spec.PublishNotReadyAddresses = corev1.ClusterIPNone, tc.publish
			})
			run(t, Config{}, func(w *world) {
				w.must(w.client.CoreV1().Pods("ns").Delete(w.ctx, "a", metav1.DeleteOptions{}))
				w.expect(tc.slices, tc.endpoints)
				e, err := w.client.CoreV1().Endpoints("ns").Get(w.ctx, "web", metav1.GetOptions{})
				w.must(err)
				if _, ok := e.Labels[corev1.IsHeadlessService]; !ok {
					w.Errorf("labels %v", e.Labels)
				}
			}, s, p)
		})
	}
}

func TestManyPods(t *testing.T) {
	objs := []runtime.Object{service(nil)}
	for i := range 5 {
		objs = append(objs, pod(fmt.Sprint("p", i), fmt.Sprint("10.0.0.", i+1), true))
	}
	run(t, Config{MaxEndpoints: 2}, func(w *world) {
		list, err := w.client.DiscoveryV1().EndpointSlices("ns").List(w.ctx, metav1.ListOptions{})
		w.must(err)
		if len(list.Items) != 3 {
			w.Errorf("%d slices: %s", len(list.Items), w.slices())
		}
		if got, want := w.endpoints("web"), "http:8080 10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5"; got != want {
			w.Errorf("%q, want %q", got, want)
		}
	}, objs...)
}

// TestRefused: a write that fails is told as an event and tried again.
func TestRefused(t *testing.T) {
	run(t, Config{}, func(w *world) {
		left := 3
		w.client.PrependReactor("create", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
			left--
			return left >= 0, nil, apierrors.NewInternalError(fmt.Errorf("no"))
		})
		_, err := w.client.CoreV1().Services("ns").Create(w.ctx, service(nil), metav1.CreateOptions{})
		w.must(err)
		w.expect("web http:8080 [10.0.0.1 R-]", "http:8080 10.0.0.1")
		if e := apitest.Events(w.events); len(e) != 3 || !strings.HasPrefix(e[0], "Warning FailedToUpdateEndpointSlices Error updating Endpoint Slices for Service ns/web: ") {
			w.Errorf("%q", e)
		}
	}, pod("a", "10.0.0.1", true))
}

// TestTruncated: Endpoints have at most maxAddresses, those that are ready before others,
// and say that there are more.
func TestTruncated(t *testing.T) {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	for i := range maxAddresses + 1 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250)}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(i > 1)},
		})
	}
	other := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv6, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"::1"}}}}
	e := wanted(service(nil), []*discoveryv1.EndpointSlice{other, s})
	if len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != maxAddresses-1 || len(e.Subsets[0].NotReadyAddresses) != 1 {
		t.Errorf("%d subsets", len(e.Subsets))
	}
	if e.Annotations[corev1.EndpointsOverCapacity] != "truncated" {
		t.Errorf("%v", e.Annotations)
	}
	s.Endpoints = s.Endpoints[:3]
	if e := wanted(service(nil), []*discoveryv1.EndpointSlice{s}); len(e.Annotations) > 0 || said(e) != " 10.0.0.2 (10.0.0.0) (10.0.0.1)" {
		t.Errorf("%v %q", e.Annotations, said(e))
	}
}
