package main

// Tests of what Node objects route: nothing that is another's.

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

func claimant(addresses, ranges []string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stolen"}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: a})
	}
	n.Spec.PodCIDRs = ranges
	return n
}

// TestRoutesOfManyClaims: a node that claims very many addresses, and others each time, costs
// the hub neither routes nor lines of its log without end.
func TestRoutesOfManyClaims(t *testing.T) {
	var log bytes.Buffer
	p, err := newRoutePolicy(&serverOptions{services: netip.MustParsePrefix("10.96.0.0/12")}, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	claims := func(format string, from int) *corev1.Node {
		var all []string
		for i := range 20_000 {
			all = append(all, fmt.Sprintf(format, i/256, (i+from)%256))
		}
		return claimant(all, nil)
	}
	if got := p.of(claims("192.168.%d.%d", 0)); len(got) != maxAddresses {
		t.Errorf("%d routes of one node", len(got))
	}
	for i := range 15 {
		if got := p.of(claims("10.96.%d.%d", i)); len(got) != 0 {
			t.Fatalf("%d routes to services", len(got))
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines == 0 || lines > 2 || log.Len() > 4<<10 {
		t.Errorf("%d lines with %d bytes in the log", lines, log.Len())
	}
}

// TestRoutesOfClaims: which claims make a route, with and without --cluster-cidr.
func TestRoutesOfClaims(t *testing.T) {
	const clusters = "10.244.0.0/16, fd00:10::/56"
	for _, tc := range []struct {
		cluster, address, pods string
		want                   string // empty: none
	}{
		{"", "192.0.2.7", "", "192.0.2.7/32"},
		{"", "::ffff:192.0.2.7", "", "192.0.2.7/32"},
		{"", "fd00::7", "", "fd00::7/128"},
		{"", "node.example.com", "", ""},
		{"", "127.0.0.1", "", ""},
		{"", "::1", "", ""},
		{"", "169.254.169.254", "", ""},
		{"", "fe80::1%eth0", "", ""},
		{"", "0.0.0.0", "", ""},
		{"", "224.0.0.9", "", ""},
		{"", "198.51.100.1", "", ""},     // the server
		{"", "198.51.100.2", "", ""},     // its other name
		{"", "10.96.0.1", "", ""},        // the service of the API
		{"", "10.97.3.4", "", ""},        // another
		{clusters, "10.244.3.4", "", ""}, // a pod of somebody
		{clusters, "fd00:10::9", "", ""}, // likewise
		{"", "10.244.3.4", "", "10.244.3.4/32"},
		{"", "", "10.244.3.0/24", "10.244.3.0/24"},
		{clusters, "", "10.244.3.0/24", "10.244.3.0/24"},
		{clusters, "", "fd00:10:0:1::/64", "fd00:10:0:1::/64"},
		{clusters, "", "10.245.0.0/24", ""},
		{clusters, "", "10.0.0.0/8", ""}, // around the cluster's
		{clusters, "", "0.0.0.0/0", ""},
		{clusters, "", "::ffff:10.244.3.0/120", ""},
		{"", "", "0.0.0.0/0", ""},
		{"", "", "::/0", ""},
		{"", "", "128.0.0.0/1", ""},
		{"", "", "0.0.0.0/1", ""},
		{"", "", "10.96.0.0/24", ""},
		{"", "", "10.0.0.0/8", ""}, // around services
		{"", "", "198.51.100.0/24", ""},
		{"", "", "169.254.0.0/24", ""},
		{"", "", "10.244.3.0", ""},
	} {
		var log bytes.Buffer
		o := &serverOptions{services: netip.MustParsePrefix("10.96.0.0/12"), advertise: net.ParseIP("198.51.100.1"), tlsSANs: []string{"198.51.100.2"}}
		o.controllers.IPAM.ClusterCIDR = tc.cluster
		p, err := newRoutePolicy(o, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		said := record.NewFakeRecorder(9)
		p.events = said
		var n *corev1.Node
		if tc.address != "" {
			n = claimant([]string{tc.address}, nil)
		} else {
			n = claimant(nil, []string{tc.pods})
		}
		got := ""
		for range 3 {
			got = strings.Trim(fmt.Sprint(p.of(n)), "[]")
		}
		if got != tc.want {
			t.Errorf("%q: address %q, range %q: %q, want %q", tc.cluster, tc.address, tc.pods, got, tc.want)
		}
		refused := tc.want == "" && tc.address != "node.example.com"
		if told := strings.Count(log.String(), "\n"); refused != (told == 1) || told > 1 || refused != (testutil.ToFloat64(p.refused) == 1) {
			t.Errorf("address %q, range %q: told %d times, counted %v", tc.address, tc.pods, told, testutil.ToFloat64(p.refused))
		}
		if tells := refused && tc.pods != ""; tells != (len(said.Events) == 1) || len(said.Events) > 1 {
			t.Errorf("address %q, range %q: %d events", tc.address, tc.pods, len(said.Events))
		} else if tells {
			if e := <-said.Events; !strings.HasPrefix(e, "Warning RouteRefused The hub does not lead to podCIDRs of this node: "+tc.pods) {
				t.Errorf("range %q: %s", tc.pods, e)
			}
		}
		p.forget(n.Name)
		if len(p.told) != 0 {
			t.Errorf("left behind: %v", p.told)
		}
	}
}

// TestNodeMakesNoEvents: a node that says other addresses each time makes no events, whatever
// is wrong with its range.
func TestNodeMakesNoEvents(t *testing.T) {
	p, err := newRoutePolicy(&serverOptions{services: netip.MustParsePrefix("10.96.0.0/12")}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	said := record.NewFakeRecorder(99)
	p.events = said
	for i := range 20 {
		p.of(claimant([]string{fmt.Sprintf("10.96.0.%d", i)}, []string{"10.96.3.0/24"}))
	}
	p.of(claimant(nil, []string{"10.244.3.0/24"}))
	p.of(claimant(nil, []string{"10.96.4.0/24"}))
	if len(said.Events) != 2 {
		t.Errorf("%d events, want one for each range", len(said.Events))
	}
}

// TestRouted: what routes, tunnels, identities and the status page come from stays in a Node,
// and no more.
func TestRouted(t *testing.T) {
	n := claimant([]string{"192.0.2.7"}, []string{"10.244.3.0/24"})
	n.UID, n.Annotations = "u", map[string]string{"a": "b"}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	want := n.DeepCopy()
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	n.Status.Capacity = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}
	if got, err := routed(n); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
