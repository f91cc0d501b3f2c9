// Where the service default/kubernetes leads: to all servers that share the store.

package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const (
	// serversAlive has a key ADDRESS:PORT for each server that is alive. The store removes
	// those of servers that have not written theirs again, as with kube-apiserver's
	// reconciler of that name.
	serversAlive = keyPrefix + "/masterleases/"
	// aliveFor is how long a server counts after it has written its key, at least.
	aliveFor = 15 * time.Second
	// goodbyeTimeout bounds how long a server that stops takes to remove its key.
	goodbyeTimeout = 2 * time.Second
)

// ensureKubernetes makes the service by which pods find the servers.
func (s *Server) ensureKubernetes(ctx context.Context, client kubernetes.Interface) error {
	if err := ensure(ctx, client.CoreV1().Services(metav1.NamespaceDefault), s.kubernetesService(), nil); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	all, err := s.alive(asking)
	if err != nil {
		return err
	}
	return s.ensureEndpoints(ctx, client, all)
}

// ensureEndpoints has the service lead to all, of which the port and the family of the
// first count. Every server writes the same.
//
//nolint:staticcheck // Endpoints is deprecated, and old clients read it still
func (s *Server) ensureEndpoints(ctx context.Context, client kubernetes.Interface, all []netip.AddrPort) error {
	ns := metav1.NamespaceDefault
	endpoints, slice := s.kubernetesEndpoints(all)
	err := ensure(ctx, client.CoreV1().Endpoints(ns), endpoints, func(have *corev1.Endpoints) bool {
		return same(&have.Subsets, endpoints.Subsets)
	})
	if err != nil {
		return err
	}
	return ensure(ctx, client.DiscoveryV1().EndpointSlices(ns), slice, func(have *discoveryv1.EndpointSlice) bool {
		a, b := same(&have.Endpoints, slice.Endpoints), same(&have.Ports, slice.Ports)
		return a && b
	})
}

// self is where the service leads for this server; invalid if nowhere. The API takes neither a
// loopback nor a link-local address.
func (s *Server) self() netip.AddrPort {
	if a := s.cfg.AdvertiseAddress; a.IsLoopback() || a.IsLinkLocalUnicast() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(s.cfg.AdvertiseAddress, uint16(s.cfg.AdvertisePort)) //nolint:gosec // it is a port
}

// sayAlive writes that this server is alive. The embedded store has no other servers.
func (s *Server) sayAlive(ctx context.Context) error {
	if s.external == nil || !s.self().IsValid() {
		return nil
	}
	life := max(aliveFor, 3*s.cfg.BuiltinPeriod/2)
	lease, err := s.external.Grant(ctx, int64(life/time.Second))
	if err == nil {
		_, err = s.external.Put(ctx, serversAlive+s.self().String(), "", clientv3.WithLease(lease.ID))
	}
	if err != nil {
		return fmt.Errorf("tell the other servers of this one: %w", err)
	}
	return nil
}

// alive are the servers that are alive, sorted.
func (s *Server) alive(ctx context.Context) ([]netip.AddrPort, error) {
	if s.external == nil {
		return []netip.AddrPort{s.self()}, nil
	}
	got, err := s.external.Get(ctx, serversAlive, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("look which servers are alive: %w", err)
	}
	var all []netip.AddrPort
	for _, kv := range got.Kvs {
		if addr, err := netip.ParseAddrPort(strings.TrimPrefix(string(kv.Key), serversAlive)); err == nil {
			all = append(all, addr)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all, nil
}

// sayGoodbye has the service lead to the other servers only, if there are any.
func (s *Server) sayGoodbye(ctx context.Context, client kubernetes.Interface) error {
	if s.external == nil || !s.self().IsValid() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTimeout)
	defer cancel()
	if _, err := s.external.Delete(ctx, serversAlive+s.self().String()); err != nil {
		return fmt.Errorf("tell the other servers that this one stops: %w", err)
	}
	others, err := s.alive(ctx)
	if err != nil || len(others) == 0 {
		return err
	}
	return s.ensureEndpoints(ctx, client, others)
}

func (s *Server) kubernetesService() *corev1.Service {
	ip, _ := hostAddr(s.cfg.ServiceCIDR, 1)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip.String(),
			Ports: []corev1.ServicePort{{
				Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt(s.cfg.AdvertisePort),
			}},
		},
	}
}

// kubernetesEndpoints are the endpoints with those of all that have the port and the
// family of the first.
//
//nolint:staticcheck // Endpoints is deprecated, and old clients read it still
func (s *Server) kubernetesEndpoints(all []netip.AddrPort) (*corev1.Endpoints, *discoveryv1.EndpointSlice) {
	first := netip.AddrPortFrom(s.cfg.AdvertiseAddress, uint16(s.cfg.AdvertisePort)) //nolint:gosec // it is a port
	if len(all) > 0 && all[0].IsValid() {
		first = all[0]
	}
	port := int32(first.Port())
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
	}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: &port, Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	if first.Addr().Is6() {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	var addresses []corev1.EndpointAddress
	for _, a := range all {
		if !a.IsValid() || a.Port() != first.Port() || a.Addr().Is6() != first.Addr().Is6() {
			continue
		}
		addresses = append(addresses, corev1.EndpointAddress{IP: a.Addr().String()})
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	if len(addresses) > 0 {
		endpoints.Subsets = []corev1.EndpointSubset{{
			Addresses: addresses, Ports: []corev1.EndpointPort{{Name: "https", Port: port, Protocol: corev1.ProtocolTCP}},
		}}
	}
	return endpoints, slice
}
