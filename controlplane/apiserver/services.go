// Services: their addresses and node ports are given out here.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"
	netutils "k8s.io/utils/net"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

// Node ports come from here, as in Kubernetes by default.
const firstNodePort, lastNodePort = 30000, 32767

// maxNodePorts bounds the ports of a service that may have node ports: each is claimed by a
// transaction, before the service is validated, and other services wait for that.
const maxNodePorts = 256

// repairEvery is how often claims are compared with services, when numbers are wanted.
const repairEvery = 10 * time.Minute

// serviceAllocator gives services their cluster addresses and node ports.
//
// A number is claimed in the store before its service is stored, and given back only
// after the store has let go of the service, so no two services get the same one, also
// not from two servers on one store. What a server that ended in between leaves behind
// is found by comparing claims with services.
type serviceAllocator struct {
	services *genericregistry.Store
	cidr     netip.Prefix

	turn     chan struct{} // a lock, for which a write waits until its request ends; it guards the following
	repaired time.Time     // zero before the first time
	ips      *numbers[netip.Addr]
	ports    *numbers[int32]
	leaving  map[types.UID]held // what an update about to be stored gives up
}

func newServiceAllocator(services *genericregistry.Store, client *clientv3.Client, cidr netip.Prefix) *serviceAllocator {
	a := &serviceAllocator{services: services, cidr: cidr, leaving: make(map[types.UID]held), turn: make(chan struct{}, 1)}
	a.ips = newNumbers(client, "service-ips", newPool(func(i int) (netip.Addr, bool) { return hostAddr(cidr, i+1) }), netip.ParseAddr)
	a.ports = newNumbers(client, "node-ports", newPool(func(i int) (int32, bool) { return firstNodePort + int32(i), i <= lastNodePort-firstNodePort }),
		func(text string) (int32, error) {
			p, err := strconv.ParseInt(text, 10, 32)
			return int32(p), err
		})
	services.BeginCreate = a.beginCreate
	services.BeginUpdate = a.beginUpdate
	services.AfterUpdate = a.afterUpdate
	services.AfterDelete = a.afterDelete
	return a
}

func (a *serviceAllocator) lock()   { a.turn <- struct{}{} }
func (a *serviceAllocator) unlock() { <-a.turn }

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
	a.lock()
	defer a.unlock()
	a.releaseLocked(a.leaving[s.UID].without(holdings(s)), s.UID)
	delete(a.leaving, s.UID)
}

func (a *serviceAllocator) afterDelete(obj runtime.Object, o *metav1.DeleteOptions) {
	if dryrun.IsDryRun(o.DryRun) {
		return
	}
	s := obj.(*corev1.Service)
	a.lock()
	defer a.unlock()
	a.releaseLocked(holdings(s), s.UID)
	a.releaseLocked(a.leaving[s.UID], s.UID)
	delete(a.leaving, s.UID)
}

// begin takes what s needs and old does not have already. It runs before the
// strategy. The returned func is told whether s passed validation; a create has
// been stored by then, an update is about to be.
func (a *serviceAllocator) begin(ctx context.Context, s, old *corev1.Service, dry bool) (genericregistry.FinishFunc, error) {
	var had held
	if old != nil {
		kinds.KeepAllocated(s, old)
		had = holdings(old)
		if s.UID == "" {
			s.UID = old.UID // as the library has it, later
		}
	}
	if kinds.HasClusterIP(s) {
		if errs := unconfigured(s, old, a.family()); len(errs) > 0 {
			return nil, invalidService(s, errs...)
		}
		kinds.ServiceAddresses(s, a.family())
	}
	if n := len(s.Spec.Ports); kinds.MayHaveNodePorts(s) && n > maxNodePorts && (old == nil || !kinds.MayHaveNodePorts(old) || n > len(old.Spec.Ports)) {
		return nil, invalidService(s, field.TooMany(field.NewPath("spec", "ports"), n, maxNodePorts))
	}
	if errs := unclaimable(s, old); len(errs) > 0 {
		return nil, invalidService(s, errs...)
	}
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, apierrors.NewTimeoutError("other services are being given their addresses", 1)
	}
	defer a.unlock()
	if s.UID == "" {
		return nil, apierrors.NewInternalError(fmt.Errorf("service %s has no uid to claim its addresses by", s.Name))
	}
	if err := a.repairLocked(ctx); err != nil {
		return nil, claimFault(err)
	}
	t := &taking{allocator: a, ctx: ctx, service: s, had: had, dry: dry}
	if err := t.all(); err != nil {
		t.undoLocked()
		return nil, err
	}
	gone := had.without(holdings(s))
	return func(_ context.Context, ok bool) {
		a.lock()
		defer a.unlock()
		switch {
		case !ok || dry:
			t.undoLocked()
		case len(gone.ips)+len(gone.ports) > 0:
			a.leaving[s.UID] = gone
		}
	}, nil
}

// unconfigured refuses families of addresses that s did not want before and that the cluster, which
// has the one family, lacks. The endpoints of a headless service without a selector are its
// user's: they may be of any family.
func unconfigured(s, old *corev1.Service, family corev1.IPFamily) field.ErrorList {
	is, was := &s.Spec, &corev1.ServiceSpec{}
	if old != nil && kinds.HasClusterIP(old) {
		was = &old.Spec
	}
	p := field.NewPath("spec")
	var errs field.ErrorList
	if f := netutils.IPFamilyOfString(is.ClusterIP); f != netutils.IPFamilyUnknown && len(is.IPFamilies) == 0 && is.ClusterIP != was.ClusterIP {
		if other := corev1.IPFamily("IPv" + f); other != family {
			errs = append(errs, field.Invalid(p.Child("clusterIPs").Index(0), []string{is.ClusterIP}, string(other)+" is not configured on this cluster"))
		}
	}
	if is.ClusterIP == corev1.ClusterIPNone && len(is.Selector) == 0 {
		return errs
	}
	const dual = corev1.IPFamilyPolicyRequireDualStack
	if is.IPFamilyPolicy != nil && *is.IPFamilyPolicy == dual && (was.IPFamilyPolicy == nil || *was.IPFamilyPolicy != dual) {
		errs = append(errs, field.Invalid(p.Child("ipFamilyPolicy"), dual, "this cluster is not configured for dual-stack services"))
	}
	for i, f := range is.IPFamilies {
		known := f == corev1.IPv4Protocol || f == corev1.IPv6Protocol // of others validation says so
		if known && f != family && !slices.Equal(is.IPFamilies, was.IPFamilies) {
			errs = append(errs, field.Invalid(p.Child("ipFamilies").Index(i), f, "not configured on this cluster"))
		}
	}
	return errs
}

// unclaimable refuses new addresses that nobody would claim: a second one, for a service is of one
// family here, and one with leading zeros, by which old clients write another's.
func unclaimable(s, old *corev1.Service) field.ErrorList {
	if old != nil && s.Spec.ClusterIP == old.Spec.ClusterIP && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		return nil
	}
	var errs field.ErrorList
	path := field.NewPath("spec", "clusterIPs")
	if len(s.Spec.ClusterIPs) > 1 {
		errs = append(errs, field.Invalid(path, s.Spec.ClusterIPs, "may hold one value: the cluster has one family of addresses"))
	}
	all := s.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{s.Spec.ClusterIP}
	}
	for i, text := range all {
		if _, err := netip.ParseAddr(text); err != nil && netutils.ParseIPSloppy(text) != nil {
			errs = append(errs, field.Invalid(path.Index(i), text, "must not have leading zeros"))
		}
	}
	return errs
}

// A taking is what one write takes for a service, beyond what it had.
type taking struct {
	allocator *serviceAllocator
	ctx       context.Context
	service   *corev1.Service
	had       held
	taken     held
	dry       bool
}

// undoLocked gives back what was taken.
func (t *taking) undoLocked() {
	if !t.dry {
		t.allocator.releaseLocked(t.taken, t.service.UID)
		return
	}
	for _, ip := range t.taken.ips {
		t.allocator.ips.pool.release(ip)
	}
	for _, p := range t.taken.ports {
		t.allocator.ports.pool.release(p)
	}
}

// all takes everything the service needs and writes it into it.
func (t *taking) all() error {
	s := t.service
	if kinds.HasClusterIP(s) && s.Spec.ClusterIP != corev1.ClusterIPNone {
		if err := t.ip(); err != nil {
			return err
		}
		kinds.ServiceAddresses(s, t.allocator.family())
	}
	if kinds.MayHaveNodePorts(s) {
		if err := t.nodePorts(); err != nil {
			return err
		}
	}
	if kinds.WantsHealthPort(s) {
		return t.port(field.NewPath("spec", "healthCheckNodePort"), &s.Spec.HealthCheckNodePort)
	}
	return nil
}

// nodePorts takes the node ports that are named, and gives others if the service is given
// any. Ports of one number, which differ in their protocol, share one.
func (t *taking) nodePorts() error {
	ports := t.service.Spec.Ports
	shared := make(map[int32]int32)
	for i := len(ports) - 1; i >= 0; i-- {
		if ports[i].NodePort != 0 {
			shared[ports[i].Port] = ports[i].NodePort
		}
	}
	for i := range ports {
		p := &ports[i]
		if p.NodePort == 0 {
			if !kinds.HasNodePorts(t.service) {
				continue
			}
			p.NodePort = shared[p.Port]
		}
		if err := t.port(field.NewPath("spec", "ports").Index(i).Child("nodePort"), &p.NodePort); err != nil {
			return err
		}
		if shared[p.Port] == 0 {
			shared[p.Port] = p.NodePort
		}
	}
	return nil
}

func (t *taking) ip() error {
	a, s := t.allocator, t.service
	path := field.NewPath("spec", "clusterIPs")
	if s.Spec.ClusterIP == "" {
		ip, ok, err := a.ips.any(t.ctx, s.UID, t.dry)
		if err == nil && !ok {
			err = a.full(fmt.Sprintf("failed to allocate a serviceIP: range %s is full", a.cidr))
		}
		if err != nil {
			return claimFault(err)
		}
		s.Spec.ClusterIP, s.Spec.ClusterIPs = ip.String(), []string{ip.String()}
		t.taken.ips = append(t.taken.ips, ip)
		return nil
	}
	ip, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil || t.had.hasIP(ip) {
		return nil // validation says so, in its own words
	}
	refuse := func(why string) error {
		msg := fmt.Sprintf("failed to allocate IP %s: %s", ip, why)
		return invalidService(s, field.Invalid(path, s.Spec.ClusterIPs, msg))
	}
	if !isHost(a.cidr, ip) {
		return refuse("the provided network does not match the current range " + a.cidr.String())
	}
	ok, err := a.ips.take(t.ctx, ip, s.UID, t.dry)
	switch {
	case err != nil:
		return claimFault(err)
	case !ok:
		return refuse("provided IP is already allocated")
	}
	t.taken.ips = append(t.taken.ips, ip)
	return nil
}

func (t *taking) port(path *field.Path, port *int32) error {
	a, s := t.allocator, t.service
	switch p := *port; {
	case p == 0:
		free, ok, err := a.ports.any(t.ctx, s.UID, t.dry)
		if err == nil && !ok {
			err = a.full("failed to allocate a nodePort: range is full")
		}
		if err != nil {
			return claimFault(err)
		}
		*port = free
	case t.had.hasPort(p) || t.taken.hasPort(p):
		return nil // the same number for another protocol of the same service
	case p < firstNodePort || p > lastNodePort:
		return portError(s, path, p, fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d", firstNodePort, lastNodePort))
	default:
		ok, err := a.ports.take(t.ctx, p, s.UID, t.dry)
		if err != nil {
			return claimFault(err)
		}
		if !ok {
			return portError(s, path, p, "provided port is already allocated")
		}
	}
	t.taken.ports = append(t.taken.ports, *port)
	return nil
}

func portError(s *corev1.Service, path *field.Path, port int32, why string) error {
	return invalidService(s, field.Invalid(path, port, why))
}

func invalidService(s *corev1.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
}

func (a *serviceAllocator) releaseLocked(h held, owner types.UID) {
	for _, ip := range h.ips {
		a.ips.release(ip, owner)
	}
	for _, p := range h.ports {
		a.ports.release(p, owner)
	}
}

// full is the answer when a range seems to be. Another server may have given numbers
// back, so the next write looks.
func (a *serviceAllocator) full(text string) error {
	a.repaired = time.Time{}
	return errors.New(text)
}

// repairLocked compares claims with services, now and then.
func (a *serviceAllocator) repairLocked(ctx context.Context) error {
	if !a.repaired.IsZero() && time.Since(a.repaired) < repairEvery {
		return nil
	}
	ips, err := a.ips.claims(ctx)
	if err != nil {
		return err
	}
	ports, err := a.ports.claims(ctx)
	if err != nil {
		return err
	}
	obj, err := a.services.ListPredicate(apirequest.WithNamespace(ctx, metav1.NamespaceAll), storage.Everything, &metainternalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("read the addresses in use: %w", err)
	}
	ipsOf, portsOf := make(map[netip.Addr]types.UID), make(map[int32]types.UID)
	list := obj.(*corev1.ServiceList)
	for i := range list.Items {
		h := holdings(&list.Items[i])
		for _, ip := range h.ips {
			ipsOf[ip] = list.Items[i].UID
		}
		for _, p := range h.ports {
			portsOf[p] = list.Items[i].UID
		}
	}
	if err := errors.Join(a.ips.repair(ctx, ips, ipsOf), a.ports.repair(ctx, ports, portsOf)); err != nil {
		return err
	}
	a.repaired = time.Now()
	return nil
}
