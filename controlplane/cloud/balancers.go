package cloud

// Load balancers: which Service has which address of the pool.

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/api"
	"k8s.io/utils/ptr"
)

type balancers Cloud

var _ cloudprovider.LoadBalancer = (*balancers)(nil)

// GetLoadBalancer implements cloudprovider.LoadBalancer.
func (b *balancers) GetLoadBalancer(_ context.Context, _ string, s *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.learnLocked(); err != nil {
		return nil, false, err
	}
	l, ok := b.pool.given[s.UID]
	if !ok {
		return nil, false, nil
	}
	return l.status(), true, nil
}

// GetLoadBalancerName implements cloudprovider.LoadBalancer.
func (*balancers) GetLoadBalancerName(_ context.Context, _ string, s *corev1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(s)
}

// maxPorts bounds the ports of one Service: each is a listener at every server, and is nobody
// else's at its address.
const maxPorts = 100

// EnsureLoadBalancer implements cloudprovider.LoadBalancer. A Service keeps the address
// that it has for as long as its ports are free there. Services whose ports differ share
// an address. Nodes do not matter: servers reach all. If the pool has no address for it, the
// error is an api.RetryError: other Services and the inventory change, and tell nobody.
func (b *balancers) EnsureLoadBalancer(_ context.Context, _ string, s *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.learnLocked(); err != nil {
		return nil, err
	}
	if n := len(s.Spec.Ports); n > maxPorts {
		return nil, fmt.Errorf("the service has %d ports, and a load balancer at most %d: divide it into several", n, maxPorts)
	}
	for i := range s.Spec.Ports {
		if port := &s.Spec.Ports[i]; port.Protocol != corev1.ProtocolTCP {
			return nil, fmt.Errorf("port %d is %s: the tunnel has TCP alone", port.Port, port.Protocol)
		}
	}
	said, err := (*Cloud)(b).said()
	if err != nil {
		return nil, api.NewRetryError(err.Error(), poolPeriod)
	}
	l, err := b.pool.give(s, said.pool)
	if err != nil {
		return nil, api.NewRetryError(err.Error(), poolPeriod)
	}
	return l.status(), nil
}

// UpdateLoadBalancer implements cloudprovider.LoadBalancer. Nodes do not matter.
func (*balancers) UpdateLoadBalancer(context.Context, string, *corev1.Service, []*corev1.Node) error {
	return nil
}

// EnsureLoadBalancerDeleted implements cloudprovider.LoadBalancer.
func (b *balancers) EnsureLoadBalancerDeleted(_ context.Context, _ string, s *corev1.Service) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pool.take(s.UID)
	return nil
}

// learnLocked has the pool know, at its first use, the addresses that Services have got from an
// earlier process.
func (b *balancers) learnLocked() error {
	if b.pool.learned {
		return nil
	}
	if b.services == nil {
		return errors.New("the services are not known yet")
	}
	all, err := b.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("the addresses of services: %w", err)
	}
	for _, s := range all {
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.LoadBalancerClass != nil {
			continue
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			if addr, err := netip.ParseAddr(in.IP); err == nil {
				b.pool.given[s.UID] = lease{s.Namespace + "/" + s.Name, addr, portsGiven(s, &in)}
			}
		}
	}
	b.pool.learned = true
	return nil
}

// A pool knows which ports of which addresses are given.
type pool struct {
	learned bool
	given   map[types.UID]lease // by Service
}

// A lease is what a Service has.
type lease struct {
	service string // namespace/name
	addr    netip.Addr
	ports   []int32
}

// status says that a server listens at l's ports. What goes there goes through it. Servers
// listen at no others, so a Service that asks for what another has gets it nowhere.
func (l *lease) status() *corev1.LoadBalancerStatus {
	in := corev1.LoadBalancerIngress{IP: l.addr.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeProxy)}
	for _, port := range l.ports {
		in.Ports = append(in.Ports, corev1.PortStatus{Port: port, Protocol: corev1.ProtocolTCP})
	}
	return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{in}}
}

func newPool() *pool { return &pool{given: make(map[types.UID]lease)} }

func (p *pool) take(service types.UID) { delete(p.given, service) }

// give finds an address of all for s: the one that it asks for, that it has, or the first
// at which its ports are free.
func (p *pool) give(s *corev1.Service, all []netip.Addr) (lease, error) {
	if len(all) == 0 {
		return lease{}, errors.New("the inventory has no loadBalancers.addresses")
	}
	tried := all
	if ip := s.Spec.LoadBalancerIP; ip != "" {
		addr, err := netip.ParseAddr(ip)
		if err != nil || !slices.Contains(all, addr) {
			return lease{}, fmt.Errorf("loadBalancerIP %s is none of the inventory's loadBalancers.addresses", ip)
		}
		tried = []netip.Addr{addr}
	} else if had, ok := p.given[s.UID]; ok && slices.Contains(all, had.addr) {
		tried = append([]netip.Addr{had.addr}, slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return a == had.addr })...)
	}
	var taken []string
	for _, addr := range tried {
		if by := p.taken(s, addr); by != "" {
			taken = append(taken, fmt.Sprintf("%s by %s", addr, by))
			continue
		}
		p.given[s.UID] = lease{s.Namespace + "/" + s.Name, addr, portsOf(s)}
		return p.given[s.UID], nil
	}
	return lease{}, fmt.Errorf("no address of the pool has the ports free: %s", strings.Join(taken[:min(len(taken), 3)], ", "))
}

// taken is the Service that has a port of s at addr; empty if there is none.
func (p *pool) taken(s *corev1.Service, addr netip.Addr) string {
	ports := portsOf(s)
	for uid, l := range p.given {
		if uid == s.UID || l.addr != addr {
			continue
		}
		if slices.ContainsFunc(l.ports, func(port int32) bool { return slices.Contains(ports, port) }) {
			return l.service
		}
	}
	return ""
}

func portsOf(s *corev1.Service) []int32 {
	var out []int32
	for i := range s.Spec.Ports {
		out = append(out, s.Spec.Ports[i].Port)
	}
	return out
}

// portsGiven are the ports that s has at in by its status, which in an older one are not said.
func portsGiven(s *corev1.Service, in *corev1.LoadBalancerIngress) []int32 {
	if len(in.Ports) == 0 {
		return portsOf(s)
	}
	var out []int32
	for i := range in.Ports {
		out = append(out, in.Ports[i].Port)
	}
	return out
}
