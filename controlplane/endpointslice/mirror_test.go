package endpointslice

// Tests of Endpoints that are written by hand, in fake time.

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func byHand(addresses ...string) *corev1.Endpoints {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "web", UID: "u", Labels: map[string]string{"team": "a", discoveryv1.LabelServiceName: "another"},
		Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "x", "note": "y"},
	}, Subsets: []corev1.EndpointSubset{{Ports: []corev1.EndpointPort{{Name: "sql", Port: 5432, Protocol: corev1.ProtocolTCP}}}}} //nolint:staticcheck // people write it still
	for _, a := range addresses {
		e.Subsets[0].Addresses = append(e.Subsets[0].Addresses, corev1.EndpointAddress{IP: a})
	}
	return e
}

func unselecting() *corev1.Service {
	return service(func(s *corev1.Service) { s.Spec.Selector = nil })
}

// mirrors waits until the slices are these.
func (w *world) mirrors(want string) {
	w.Helper()
	w.settle()
	if got := w.slices(); got != want {
		w.Errorf("slices: %q, want %q", got, want)
	}
}

func TestMirror(t *testing.T) {
	run(t, Config{}, func(w *world) {
		api, services := w.client.CoreV1().Endpoints("ns"), w.client.CoreV1().Services("ns")
		update := func(e *corev1.Endpoints) {
			_, err := api.Update(w.ctx, e, metav1.UpdateOptions{})
			w.must(err)
		}
		w.mirrors("web sql:5432 [192.0.2.1 R-, 192.0.2.2 R-]")
		list, err := w.client.DiscoveryV1().EndpointSlices("ns").List(w.ctx, metav1.ListOptions{})
		w.must(err)
		s := list.Items[0]
		if s.Labels[discoveryv1.LabelManagedBy] != MirroredBy || s.Labels["team"] != "a" || len(s.Annotations) != 1 || s.Annotations["note"] != "y" ||
			len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Kind != "Endpoints" || s.OwnerReferences[0].UID != "u" || s.AddressType != discoveryv1.AddressTypeIPv4 {
			t.Errorf("%+v", s.ObjectMeta)
		}
		e := byHand("192.0.2.1", "2001:db8::1")
		e.Subsets[0].NotReadyAddresses = []corev1.EndpointAddress{{IP: "192.0.2.3"}}
		e.Subsets = append(e.Subsets, corev1.EndpointSubset{ //nolint:staticcheck // as above
			Ports: []corev1.EndpointPort{{Name: "admin", Port: 1}}, Addresses: []corev1.EndpointAddress{{IP: "192.0.2.4"}},
		})
		update(e)
		w.mirrors("web admin:1 [192.0.2.4 R-]; web sql:5432 [192.0.2.1 R-, 192.0.2.3 --]; web sql:5432 [2001:db8::1 R-]")
		for _, gone := range []func(*corev1.Endpoints){
			func(e *corev1.Endpoints) { e.Labels[discoveryv1.LabelSkipMirror] = "true" },
			func(e *corev1.Endpoints) { e.Annotations[annotationLeader] = "{}" },
			func(e *corev1.Endpoints) { e.Subsets = nil },
		} {
			not := byHand("192.0.2.1")
			gone(not)
			update(not)
			w.mirrors("")
			update(byHand("192.0.2.1"))
			w.mirrors("web sql:5432 [192.0.2.1 R-]")
		}
		// Somebody else's hand is put right.
		list, err = w.client.DiscoveryV1().EndpointSlices("ns").List(w.ctx, metav1.ListOptions{})
		w.must(err)
		other := list.Items[0].DeepCopy()
		other.Endpoints = nil
		_, err = w.client.DiscoveryV1().EndpointSlices("ns").Update(w.ctx, other, metav1.UpdateOptions{})
		w.must(err)
		w.mirrors("web sql:5432 [192.0.2.1 R-]")
		_, err = services.Update(w.ctx, service(nil), metav1.UpdateOptions{})
		w.must(err)
		w.mirrors("web []")
	}, unselecting(), byHand("192.0.2.1", "192.0.2.2"))
}

// TestMirrorOfOldAddresses: addresses that were stored before they were refused are written as
// slices may have them.
func TestMirrorOfOldAddresses(t *testing.T) {
	run(t, Config{}, func(w *world) {
		w.mirrors("web sql:5432 [192.0.2.1 R-, 192.0.2.8 R-, 192.0.2.9 R-]; web sql:5432 [2001:db8::1 R-]")
	}, unselecting(), byHand("192.0.2.1", "192.000.02.08", "::ffff:192.0.2.9", "2001:DB8:0::1"))
}

// TestMirrorOfNothing: Endpoints without a Service lead nowhere.
func TestMirrorOfNothing(t *testing.T) {
	run(t, Config{}, func(w *world) {
		w.mirrors("")
		_, err := w.client.CoreV1().Services("ns").Create(w.ctx, unselecting(), metav1.CreateOptions{})
		w.must(err)
		w.mirrors("web sql:5432 [192.0.2.1 R-]")
		w.must(w.client.CoreV1().Endpoints("ns").Delete(w.ctx, "web", metav1.DeleteOptions{}))
		w.mirrors("")
	}, byHand("192.0.2.1"))
}

func TestMirrorIsBounded(t *testing.T) {
	var many []string
	for i := range MaxEndpoints + 5 {
		many = append(many, fmt.Sprintf("192.0.%d.%d", i/250, i%250+1))
	}
	run(t, Config{}, func(w *world) {
		w.settle()
		if n := strings.Count(w.slices(), "R-"); n != MaxEndpoints {
			t.Errorf("%d addresses", n)
		}
		if e := <-w.events.Events; !strings.Contains(e, "TooManyAddressesToMirror") || !strings.Contains(e, " 5 addresses") {
			t.Errorf("event %s", e)
		}
		select {
		case e := <-w.events.Events:
			t.Errorf("another event: %s", e)
		default:
		}
	}, unselecting(), byHand(many...))
}

// TestMirrorsAreBounded: an object with thousands of lists of ports does not become
// thousands of objects.
func TestMirrorsAreBounded(t *testing.T) {
	e := byHand()
	e.Subsets = nil
	for i := range 3000 {
		e.Subsets = append(e.Subsets, corev1.EndpointSubset{ //nolint:staticcheck // people write it still
			Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []corev1.EndpointPort{{Port: int32(i + 1)}},
		})
	}
	out, left := mirrored(e, MaxEndpoints)
	if len(out) != maxMirrors || left != 3000-maxMirrors {
		t.Errorf("%d slices, %d addresses left", len(out), left)
	}
}
