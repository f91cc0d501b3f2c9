package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/tunnel"
)

// servicesOfTest has web, whose port http is 8080 of three pods, and db, which is headless and has
// two pods with names, one of which is not ready.
func servicesOfTest() *serviceObjects {
	service := func(name, ip string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}
	}
	slice := func(service, host string, ready bool, addresses ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: service + host, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
		}
		for i, a := range addresses {
			e := discoveryv1.Endpoint{Addresses: []string{a}, NodeName: ptr.To(fmt.Sprint("node-", i+1)), Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
			if host != "" {
				e.Hostname = &host
			}
			s.Endpoints = append(s.Endpoints, e)
		}
		return s
	}
	return servicesBeside(fake.NewClientset(
		service("web", "10.96.0.7"), slice("web", "", true, "10.0.0.1", "10.0.0.2", "10.0.0.3"),
		service("db", corev1.ClusterIPNone), slice("db", "db-0", true, "10.0.1.1"), slice("db", "db-1", false, "10.0.1.2"),
		service("bad", "10.96.0.8"), slice("bad", "", true, "127.0.0.1"),
		service("none", "10.96.0.9"),
	))
}

// TestServiceNames: the name of a service is dialed at its endpoints that are ready, and all else is
// left to the hub.
func TestServiceNames(t *testing.T) {
	for addr, want := range map[string]string{
		"web.default.svc:80":                    "10.0.0.1%node-1:8080 10.0.0.2%node-2:8080 10.0.0.3%node-3:8080",
		"web.default.svc.cluster.local:80":      "10.0.0.1%node-1:8080 10.0.0.2%node-2:8080 10.0.0.3%node-3:8080",
		"db.default.svc:5432":                   "10.0.1.1%node-1:5432",
		"db-0.db.default.svc:5432":              "10.0.1.1%node-1:5432",
		"db-0.db.default.svc.cluster.local:80":  "10.0.1.1%node-1:80",
		"web.default.svc:81":                    `dial web.default.svc:81: no service port "81" found for service "web"`,
		"x.web.default.svc:80":                  `dial x.web.default.svc:80: no endpoints available for service "web"`,
		"db-1.db.default.svc:5432":              `dial db-1.db.default.svc:5432: no endpoints available for service "db"`,
		"none.default.svc:80":                   `dial none.default.svc:80: no endpoints available for service "none"`,
		"bad.default.svc:80":                    "dial bad.default.svc:80: address not allowed",
		"web.other.svc:80":                      `dial web.other.svc:80: services "web" not found`,
		"node-1:10250":                          "to the hub",
		"10.0.0.1%node-1:80":                    "to the hub",
		"web.default.svc%node-1:80":             "to the hub",
		"10.0.0.1:80":                           "to the hub",
		"web.default.svc:http":                  "to the hub",
		"web.default.svc:0":                     "to the hub",
		"web.default.svc":                       "to the hub",
		".web.default.svc:80":                   "to the hub",
		"default.svc:80":                        "to the hub",
		"a.b.web.default.svc:80":                "to the hub",
		"web.default.svc.cluster.example.com:1": "to the hub",
	} {
		targets, named, err := servicesOfTest().endpoints(t.Context(), addr)
		slices.Sort(targets)
		got := strings.Join(targets, " ")
		switch {
		case err != nil:
			got = err.Error()
			if !errors.Is(err, tunnel.Unresolved) {
				t.Errorf("%s: %v is not Unresolved", addr, err)
			}
		case !named:
			got = "to the hub"
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}

// TestServicesUnread: a name leads nowhere only if the API has said so.
func TestServicesUnread(t *testing.T) {
	s := &serviceObjects{service: func(context.Context, string) (*corev1.Service, error) { return nil, context.DeadlineExceeded }}
	if _, named, err := s.endpoints(t.Context(), "web.default.svc:80"); !named || tunnel.CodeOf(err) != tunnel.Timeout {
		t.Errorf("named %t, %v", named, err)
	}
}

// TestDialServices: another endpoint is dialed when one fails, and the last failure is told with
// its code.
func TestDialServices(t *testing.T) {
	s, first := servicesOfTest(), map[string]bool{}
	for range 100 {
		var dialed []string
		c, err := s.dial(t.Context(), func(_ context.Context, _, addr string) (net.Conn, error) {
			if dialed = append(dialed, addr); len(dialed) < 3 {
				return nil, &tunnel.DialError{Addr: addr, Code: tunnel.Refused}
			}
			return &net.TCPConn{}, nil
		}, "tcp", "web.default.svc:80")
		if slices.Sort(dialed); err != nil || c == nil || len(slices.Compact(dialed)) != 3 {
			t.Fatalf("%v after %q", err, dialed)
		}
	}
	for len(first) < 3 { // each is the first of some connection
		_, err := s.dial(t.Context(), func(_ context.Context, _, addr string) (net.Conn, error) {
			first[addr] = true
			return &net.TCPConn{}, nil
		}, "tcp", "web.default.svc:80")
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	dials := 0
	refuse := func(_ context.Context, _, addr string) (net.Conn, error) {
		dials++
		return nil, &tunnel.DialError{Addr: addr, Code: tunnel.Denied, Text: "not a declared port"}
	}
	if _, err := s.dial(ctx, refuse, "tcp", "db-0.db.default.svc:22"); err == nil || !errors.Is(err, tunnel.Denied) ||
		err.Error() != "dial db-0.db.default.svc:22: dial 10.0.1.1%node-1:22: not a declared port" {
		t.Errorf("got %v", err)
	}
	if cancel(); dials != 1 {
		t.Errorf("%d dials", dials)
	}
	if _, err := s.dial(ctx, refuse, "tcp", "web.default.svc:80"); err == nil || dials > 2 {
		t.Errorf("%v, %d dials of a client that is gone", err, dials)
	}
	if _, err := s.dial(t.Context(), refuse, "tcp", "node-1:10250"); err == nil || err.Error() != "dial node-1:10250: not a declared port" {
		t.Errorf("got %v", err)
	}
}
