package endpointslice

// Endpoints are the slices of a Service in one object, as clients read it before there
// were slices.

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/loop"
)

const (
	// maxAddresses is how many addresses an Endpoints object has at most, as in
	// Kubernetes: it is one object, which every watcher gets at each change.
	maxAddresses = 1000
	// labelManaged marks the Endpoints that the controller writes, as in Kubernetes.
	labelManaged, endpointsController = "endpoints.kubernetes.io/managed-by", "endpoint-controller"
)

// EndpointsConfig configures an Endpoints controller. The zero value is good.
type EndpointsConfig struct {
	Workers int // Services worked on at once; zero means DefaultWorkers
}

// AddFlags adds the flags that set c.
func (c *EndpointsConfig) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-endpoint-syncs", DefaultWorkers, "Services whose Endpoints are worked on at once")
}

// Endpoints is Kubernetes' endpoints-controller.
type Endpoints struct {
	workers   int
	client    kubernetes.Interface
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slicesOf  func(namespace, service string) ([]*discoveryv1.EndpointSlice, error)
	watched   []cache.SharedIndexInformer // by the name of the Service
	slices    cache.SharedIndexInformer
	log       *slog.Logger
}

// NewEndpoints returns a controller that watches through d.Informers. It makes Endpoints of what a
// Controller, here or in another process, has written. It is an error if f has
// been shut down.
func NewEndpoints(d loop.Deps, c EndpointsConfig) (*Endpoints, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	services, endpoints, all := d.Informers.Core().V1().Services(), d.Informers.Core().V1().Endpoints(), d.Informers.Discovery().V1().EndpointSlices().Informer()
	of, err := loop.SlicesByService(all, ManagedBy)
	if err != nil {
		return nil, err
	}
	e := &Endpoints{
		workers: c.Workers, client: d.Client, services: services.Lister(), endpoints: endpoints.Lister(),
		slicesOf: of, watched: []cache.SharedIndexInformer{services.Informer(), endpoints.Informer()}, slices: all,
	}
	e.log = loop.Logger(d.Log, e.Name())
	return e, nil
}

// Name is the controller's name in Kubernetes.
func (*Endpoints) Name() string { return "endpoints-controller" }

// Run keeps Endpoints until ctx is done. The informers must be running.
func (e *Endpoints) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: e.Name(), Do: e.sync, Workers: e.workers, Log: e.log})
	stop, err := watchServices(e.watched, e.slices, ManagedBy, q.Add)
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

func (e *Endpoints) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	have, err := e.endpoints.Endpoints(ns).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	svc, err := e.services.Services(ns).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return 0, e.remove(ctx, have)
	case err != nil:
		return 0, err
	case svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.Selector == nil:
		return 0, nil // whoever makes the Service says where it leads
	}
	all, err := e.slicesOf(ns, name)
	if err != nil {
		return 0, err
	}
	if err := e.write(ctx, have, wanted(svc, living(all))); err != nil {
		return 0, fmt.Errorf("endpoints of service %s: %w", key, err)
	}
	return 0, nil
}

// remove deletes Endpoints whose Service is gone.
func (e *Endpoints) remove(ctx context.Context, have *corev1.Endpoints) error { //nolint:staticcheck // old clients read it still
	if have == nil || have.Labels[labelManaged] != endpointsController {
		return nil
	}
	err := e.client.CoreV1().Endpoints(have.Namespace).Delete(ctx, have.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or somebody else's by now, of which there is another event
	}
	return err
}

// write creates or updates Endpoints, unless all is as wanted.
//
//nolint:staticcheck // old clients read it still
func (e *Endpoints) write(ctx context.Context, have, want *corev1.Endpoints) error {
	api := e.client.CoreV1().Endpoints(want.Namespace)
	if have == nil {
		_, err := api.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return err
	}
	changed := have.DeepCopy()
	changed.Labels, changed.Subsets = want.Labels, want.Subsets
	delete(changed.Annotations, corev1.EndpointsOverCapacity)
	if len(want.Annotations) > 0 {
		if changed.Annotations == nil {
			changed.Annotations = make(map[string]string)
		}
		maps.Copy(changed.Annotations, want.Annotations)
	}
	if apiequality.Semantic.DeepEqual(have, changed) {
		return nil
	}
	_, err := api.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// wanted is what the Endpoints of svc have to be by its slices.
//
//nolint:staticcheck // old clients read it still
func wanted(svc *corev1.Service, all []*discoveryv1.EndpointSlice) *corev1.Endpoints {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name, Labels: maps.Clone(svc.Labels)}}
	if e.Labels == nil {
		e.Labels = make(map[string]string)
	}
	e.Labels[labelManaged] = endpointsController
	delete(e.Labels, corev1.IsHeadlessService)
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		e.Labels[corev1.IsHeadlessService] = ""
	}
	targets := targetsOf(svc, all)
	if len(targets) > maxAddresses {
		e.Annotations = map[string]string{corev1.EndpointsOverCapacity: "truncated"}
		targets = truncate(targets)
	}
	e.Subsets = subsets(targets)
	return e
}

// A target is an address and its ports.
type target struct {
	ports   []corev1.EndpointPort
	key     string // of ports
	address corev1.EndpointAddress
	ready   bool
}

// targetsOf are the targets of svc in the first of its families. One that ends is none,
// unless the Service wants those that are not ready as well.
func targetsOf(svc *corev1.Service, all []*discoveryv1.EndpointSlice) []target {
	var out []target
	for _, s := range all {
		if s.AddressType != familyOf(svc) {
			continue
		}
		ports, key := portsOf(s)
		for i := range s.Endpoints {
			ep := &s.Endpoints[i]
			if len(ep.Addresses) == 0 || ptr.Deref(ep.Conditions.Terminating, false) && !svc.Spec.PublishNotReadyAddresses {
				continue
			}
			out = append(out, target{ports, key, corev1.EndpointAddress{
				IP: ep.Addresses[0], Hostname: ptr.Deref(ep.Hostname, ""), NodeName: ep.NodeName, TargetRef: ep.TargetRef,
			}, ptr.Deref(ep.Conditions.Ready, true)})
		}
	}
	return out
}

// truncate leaves maxAddresses of targets, those that are ready before others.
func truncate(targets []target) []target {
	var out []target
	slices.SortFunc(targets, func(a, b target) int { return cmp.Compare(a.address.IP, b.address.IP) })
	for _, ready := range []bool{true, false} {
		for _, t := range targets {
			if t.ready == ready && len(out) < maxAddresses {
				out = append(out, t)
			}
		}
	}
	return out
}

// familyOf is the first family of svc's addresses.
func familyOf(svc *corev1.Service) discoveryv1.AddressType {
	if len(svc.Spec.IPFamilies) > 0 {
		return discoveryv1.AddressType(svc.Spec.IPFamilies[0])
	}
	if ip, err := netip.ParseAddr(svc.Spec.ClusterIP); err == nil && ip.Is6() {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// portsOf are the ports of a slice, sorted, and what tells them from others.
func portsOf(s *discoveryv1.EndpointSlice) ([]corev1.EndpointPort, string) {
	var out []corev1.EndpointPort
	for _, p := range s.Ports {
		if p.Port != nil {
			out = append(out, corev1.EndpointPort{
				Name: ptr.Deref(p.Name, ""), Port: *p.Port, Protocol: ptr.Deref(p.Protocol, corev1.ProtocolTCP), AppProtocol: p.AppProtocol,
			})
		}
	}
	slices.SortFunc(out, comparePorts)
	return out, keyOfPorts(out)
}

func comparePorts(a, b corev1.EndpointPort) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// keyOfPorts tells sorted ports from others.
func keyOfPorts(ports []corev1.EndpointPort) string {
	var key strings.Builder
	for i := range ports {
		fmt.Fprintf(&key, "%s ", ports[i].String())
	}
	return key.String()
}

// subsets puts targets with the same ports together. The same targets make the same
// subsets, in whatever order they come.
func subsets(targets []target) []corev1.EndpointSubset { //nolint:staticcheck // old clients read it still
	slices.SortFunc(targets, func(a, b target) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.address.IP, b.address.IP))
	})
	var out []corev1.EndpointSubset //nolint:staticcheck // as above
	for i, t := range targets {
		if i == 0 || t.key != targets[i-1].key {
			out = append(out, corev1.EndpointSubset{Ports: t.ports}) //nolint:staticcheck // as above
		}
		s := &out[len(out)-1]
		if t.ready {
			s.Addresses = append(s.Addresses, t.address)
		} else {
			s.NotReadyAddresses = append(s.NotReadyAddresses, t.address)
		}
	}
	return out
}
