package kubelet

// Services: which endpoints a port of one, or a name, leads to.

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A ServiceName is what the DNS of a cluster calls a service, or one endpoint of it.
type ServiceName struct {
	Host            string // of the endpoint; empty means any
	Name, Namespace string
}

// ParseServiceName reads [HOST.]NAME.NAMESPACE.svc[.cluster.local].
func ParseServiceName(host string) (n ServiceName, ok bool) {
	labels := strings.Split(strings.TrimSuffix(host, ".cluster.local"), ".")
	if len(labels) == 4 {
		n.Host, labels = labels[0], labels[1:]
		ok = n.Host != ""
	} else {
		ok = len(labels) == 3
	}
	if !ok || labels[0] == "" || labels[1] == "" || labels[2] != "svc" {
		return ServiceName{}, false
	}
	n.Name, n.Namespace = labels[0], labels[1]
	return n, true
}

// Endpoint picks an endpoint that is ready to serve a port of svc, as an address to dial:
// IP%NODE:PORT, or IP:PORT if its node is not known.
func Endpoint(svc *corev1.Service, slices []*discoveryv1.EndpointSlice, port int32) (string, error) {
	name, err := servicePort(svc, strconv.Itoa(int(port)))
	if err != nil {
		return "", err
	}
	e, ok := pick(endpoints(slices, name))
	if !ok {
		return "", noEndpoints(svc.Name)
	}
	return (&backend{}).target(e.ip, e.node, strconv.Itoa(int(e.port)))
}

// Endpoints are those that host:port leads to, where host is a name of svc, in random
// order and as Endpoint has them. A headless service has no ports of its own: its name is
// its endpoints', and port is theirs.
func Endpoints(svc *corev1.Service, slices []*discoveryv1.EndpointSlice, host string, port uint16) ([]string, error) {
	var all []endpoint
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		for _, s := range slices {
			for e := range ready(s) {
				all = append(all, endpointOf(e, int32(port)))
			}
		}
	} else {
		name, err := servicePort(svc, strconv.Itoa(int(port)))
		if err != nil {
			return nil, err
		}
		all = endpoints(slices, name)
	}
	var (
		out []string
		err = noEndpoints(svc.Name)
	)
	for _, i := range rand.Perm(len(all)) {
		e := all[i]
		if host != "" && host != e.host {
			continue
		}
		target, bad := (&backend{}).target(e.ip, e.node, strconv.Itoa(int(e.port)))
		if bad != nil {
			err = bad
			continue
		}
		out = append(out, target)
	}
	if len(out) == 0 {
		return nil, err
	}
	return out, nil
}

func noEndpoints(service string) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service))
}

// servicePort returns the name of the service's port that is asked for by name
// or number. A service with one port needs no telling.
func servicePort(svc *corev1.Service, port string) (string, error) {
	if port == "" && len(svc.Spec.Ports) == 1 {
		return svc.Spec.Ports[0].Name, nil
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.Name == port || strconv.Itoa(int(p.Port)) == port {
			return p.Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", port, svc.Name))
}

// An endpoint is one address behind a service. node is empty if not known, and host if it
// has no name.
type endpoint struct {
	ip, node, host string
	port           int32
}

func endpointOf(e *discoveryv1.Endpoint, port int32) endpoint {
	return endpoint{ip: e.Addresses[0], node: deref(e.NodeName), host: deref(e.Hostname), port: port}
}

// endpoints returns what is ready to serve the named port.
func endpoints(slices []*discoveryv1.EndpointSlice, portName string) []endpoint {
	var out []endpoint
	for _, s := range slices {
		for _, p := range s.Ports {
			if p.Port == nil || p.Name == nil && portName != "" || p.Name != nil && *p.Name != portName {
				continue
			}
			for e := range ready(s) {
				out = append(out, endpointOf(e, *p.Port))
			}
		}
	}
	return out
}

// ready yields the endpoints of a slice that have an address and are ready.
func ready(s *discoveryv1.EndpointSlice) iter.Seq[*discoveryv1.Endpoint] {
	return func(yield func(*discoveryv1.Endpoint) bool) {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			is := e.Conditions.Ready == nil || *e.Conditions.Ready
			if s.AddressType != discoveryv1.AddressTypeFQDN && len(e.Addresses) > 0 && is && !yield(e) {
				return
			}
		}
	}
}

func pick(es []endpoint) (endpoint, bool) {
	if len(es) == 0 {
		return endpoint{}, false
	}
	return es[rand.IntN(len(es))], true
}
