// Services: their addresses and node ports are given out here.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/hawser-project/hawser/controlplane/apiserver/defaults"
)

// Node ports come from here, as in Kubernetes by default.
const firstNodePort, lastNodePort = 30000, 32767

func serviceFields(s *corev1.Service) fields.Set {
	return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
}

// keepAllocated fills in what an update leaves out but the service has: clients
// replace a service by what they wrote, without what they were given.
func keepAllocated(s, old *corev1.Service) {
	if hasClusterIP(s) && hasClusterIP(old) && s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = old.Spec.ClusterIP, old.Spec.ClusterIPs
		if len(s.Spec.IPFamilies) == 0 {
			s.Spec.IPFamilies = old.Spec.IPFamilies
		}
	}
	if hasNodePorts(s) && hasNodePorts(old) {
		for i := range s.Spec.Ports {
			if p := &s.Spec.Ports[i]; p.NodePort == 0 {
				p.NodePort = nodePortOf(old, *p)
			}
		}
	}
	if s.Spec.HealthCheckNodePort == 0 && wantsHealthPort(s) {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
	dropUnused(s, old)
}

// dropUnused takes from s what its new type cannot have, if the client did not
// ask for it but only sent it along.
func dropUnused(s, old *corev1.Service) {
	is, was := &s.Spec, &old.Spec
	if !hasClusterIP(s) && hasClusterIP(old) && is.ClusterIP == was.ClusterIP {
		is.ClusterIP, is.ClusterIPs, is.IPFamilies, is.IPFamilyPolicy = "", nil, nil, nil
	}
	if !hasNodePorts(s) && hasNodePorts(old) {
		for i := range is.Ports {
			if p := &is.Ports[i]; p.NodePort == nodePortOf(old, *p) {
				p.NodePort = 0
			}
		}
	}
	if !wantsHealthPort(s) && is.HealthCheckNodePort == was.HealthCheckNodePort {
		is.HealthCheckNodePort = 0
	}
	if !isExternal(s) && isExternal(old) && is.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		is.ExternalTrafficPolicy = ""
	}
	if is.Type != corev1.ServiceTypeLoadBalancer && was.Type == corev1.ServiceTypeLoadBalancer {
		if equality.Semantic.DeepEqual(is.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts) {
			is.AllocateLoadBalancerNodePorts = nil
		}
		if equality.Semantic.DeepEqual(is.LoadBalancerClass, was.LoadBalancerClass) {
			is.LoadBalancerClass = nil
		}
	}
}

// isExternal tells services that traffic from outside the cluster can reach.
func isExternal(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

// nodePortOf is the node port old gives to the port like p, 0 if none.
func nodePortOf(old *corev1.Service, p corev1.ServicePort) int32 {
	for _, q := range old.Spec.Ports {
		if q.Port == p.Port && q.Protocol == p.Protocol && q.Name == p.Name {
			return q.NodePort
		}
	}
	return 0
}

func hasClusterIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

func hasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort ||
		s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts)
}

func wantsHealthPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// serviceAllocator gives services their cluster addresses and node ports.
//
// What is in use is written in the services themselves; the pools here are only
// an index of that, read from the store before the first use. A number is taken
// from its pool before the service is stored and goes back only after the store
// has let go of it, so no two services get the same one. When in doubt (an
// update that fails in the store itself) a number stays taken until the next
// start. All this holds for one server on one store.
type serviceAllocator struct {
	services *genericregistry.Store
	cidr     netip.Prefix

	mu      sync.Mutex
	loaded  bool
	ips     *pool[netip.Addr]
	ports   *pool[int32]
	leaving map[types.UID]held // what an update about to be stored gives up
}

func newServiceAllocator(services *genericregistry.Store, cidr netip.Prefix) *serviceAllocator {
	a := &serviceAllocator{services: services, cidr: cidr, leaving: make(map[types.UID]held)}
	a.ips = newPool(func(i int) (netip.Addr, bool) { return hostAddr(cidr, i+1) })
	a.ports = newPool(func(i int) (int32, bool) { return firstNodePort + int32(i), i <= lastNodePort-firstNodePort })
	services.BeginCreate = a.beginCreate
	services.BeginUpdate = a.beginUpdate
	services.AfterUpdate = a.afterUpdate
	services.AfterDelete = a.afterDelete
	return a
}

func (a *serviceAllocator) family() corev1.IPFamily {
	if a.cidr.Addr().Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func (a *serviceAllocator) beginCreate(ctx context.Context, obj runtime.Object, o *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
	return a.begin(ctx, obj.(*corev1.Service), nil, dryrun.IsDryRun(o.DryRun))
}

func (a *serviceAllocator) beginUpdate(ctx context.Context, obj, old runtime.Object, o *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
	return a.begin(ctx, obj.(*corev1.Service), old.(*corev1.Service), dryrun.IsDryRun(o.DryRun))
}

func (a *serviceAllocator) afterUpdate(obj runtime.Object, o *metav1.UpdateOptions) {
	if dryrun.IsDryRun(o.DryRun) {
		return
	}
	s := obj.(*corev1.Service)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.releaseLocked(a.leaving[s.UID].without(holdings(s)))
	delete(a.leaving, s.UID)
}

func (a *serviceAllocator) afterDelete(obj runtime.Object, o *metav1.DeleteOptions) {
	if dryrun.IsDryRun(o.DryRun) {
		return
	}
	s := obj.(*corev1.Service)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.releaseLocked(holdings(s))
	a.releaseLocked(a.leaving[s.UID])
	delete(a.leaving, s.UID)
}

// begin takes what s needs and old does not have already. It runs before the
// strategy. The returned func is told whether s passed validation; a create has
// been stored by then, an update is about to be.
func (a *serviceAllocator) begin(ctx context.Context, s, old *corev1.Service, dry bool) (genericregistry.FinishFunc, error) {
	var had held
	if old != nil {
		keepAllocated(s, old)
		had = holdings(old)
	}
	if hasClusterIP(s) {
		defaults.ServiceAddresses(s, a.family())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.loadLocked(ctx); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	taken, err := a.takeLocked(s, had)
	if err != nil {
		a.releaseLocked(taken)
		return nil, err
	}
	gone := had.without(holdings(s))
	return func(_ context.Context, ok bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch {
		case !ok || dry:
			a.releaseLocked(taken)
		case len(gone.ips)+len(gone.ports) > 0:
			a.leaving[s.UID] = gone
		}
	}, nil
}

// takeLocked takes everything s needs beyond had and writes it into s. On an
// error it returns what it had taken by then.
func (a *serviceAllocator) takeLocked(s *corev1.Service, had held) (held, error) {
	var taken held
	if hasClusterIP(s) && s.Spec.ClusterIP != corev1.ClusterIPNone {
		ip, err := a.takeIPLocked(s, had)
		if err != nil {
			return taken, err
		}
		if ip.IsValid() {
			taken.ips = append(taken.ips, ip)
		}
		defaults.ServiceAddresses(s, a.family())
	}
	if hasNodePorts(s) {
		for i := range s.Spec.Ports {
			path := field.NewPath("spec", "ports").Index(i).Child("nodePort")
			if err := a.takePortLocked(s, path, &s.Spec.Ports[i].NodePort, had, &taken); err != nil {
				return taken, err
			}
		}
	}
	if wantsHealthPort(s) {
		path := field.NewPath("spec", "healthCheckNodePort")
		if err := a.takePortLocked(s, path, &s.Spec.HealthCheckNodePort, had, &taken); err != nil {
			return taken, err
		}
	}
	return taken, nil
}

func (a *serviceAllocator) takeIPLocked(s *corev1.Service, had held) (netip.Addr, error) {
	path := field.NewPath("spec", "clusterIPs")
	if s.Spec.ClusterIP == "" {
		ip, ok := a.ips.any()
		if !ok {
			return ip, apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP: range %s is full", a.cidr))
		}
		s.Spec.ClusterIP, s.Spec.ClusterIPs = ip.String(), []string{ip.String()}
		return ip, nil
	}
	ip, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil {
		return ip, nil // validation says so, in its own words
	}
	if had.hasIP(ip) {
		return netip.Addr{}, nil
	}
	refuse := func(why string) error {
		msg := fmt.Sprintf("failed to allocate IP %s: %s", ip, why)
		errs := field.ErrorList{field.Invalid(path, s.Spec.ClusterIPs, msg)}
		return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
	}
	if !a.cidr.Contains(ip) {
		return netip.Addr{}, refuse("the provided network does not match the current range " + a.cidr.String())
	}
	if !a.ips.take(ip) {
		return netip.Addr{}, refuse("provided IP is already allocated")
	}
	return ip, nil
}

func (a *serviceAllocator) takePortLocked(s *corev1.Service, path *field.Path, port *int32, had held, taken *held) error {
	if *port == 0 {
		p, ok := a.ports.any()
		if !ok {
			return apierrors.NewInternalError(errors.New("failed to allocate a nodePort: range is full"))
		}
		*port = p
	} else if had.hasPort(*port) || taken.hasPort(*port) {
		return nil // the same number for another protocol of the same service
	} else if *port < firstNodePort || *port > lastNodePort {
		return portError(s, path, *port, fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d", firstNodePort, lastNodePort))
	} else if !a.ports.take(*port) {
		return portError(s, path, *port, "provided port is already allocated")
	}
	taken.ports = append(taken.ports, *port)
	return nil
}

func portError(s *corev1.Service, path *field.Path, port int32, why string) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name,
		field.ErrorList{field.Invalid(path, port, why)})
}

func (a *serviceAllocator) releaseLocked(h held) {
	for _, ip := range h.ips {
		a.ips.release(ip)
	}
	for _, p := range h.ports {
		a.ports.release(p)
	}
}

// loadLocked reads what is in use, once.
func (a *serviceAllocator) loadLocked(ctx context.Context) error {
	if a.loaded {
		return nil
	}
	obj, err := a.services.ListPredicate(apirequest.WithNamespace(ctx, metav1.NamespaceAll), storage.Everything, &metainternalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("read the addresses in use: %w", err)
	}
	list := obj.(*corev1.ServiceList)
	for i := range list.Items {
		h := holdings(&list.Items[i])
		for _, ip := range h.ips {
			a.ips.take(ip)
		}
		for _, p := range h.ports {
			a.ports.take(p)
		}
	}
	a.loaded = true
	return nil
}
