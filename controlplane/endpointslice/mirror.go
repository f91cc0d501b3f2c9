package endpointslice

// A mirror writes the Endpoints that somebody made by hand, for a Service without a
// selector, into slices: what leads to Services reads only those.

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
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
	"k8s.io/client-go/tools/record"
	netutils "k8s.io/utils/net"

	"github.com/hawser-project/hawser/controlplane/loop"
)

const (
	// MirroredBy is the value of the label discoveryv1.LabelManagedBy of the slices that a
	// Mirror writes, as in Kubernetes.
	MirroredBy = "endpointslicemirroring-controller.k8s.io"
	// DefaultMirrored is how many addresses with the same ports are mirrored if not told
	// otherwise. It is what a slice may hold.
	DefaultMirrored = MaxEndpoints
	// maxMirrors is how many slices one Endpoints object is mirrored into. It has thousands of
	// lists of ports if somebody wants that, and each slice has its labels and annotations.
	maxMirrors = 100
	// annotationLeader marks Endpoints by which old programs elect a leader.
	annotationLeader = "control-plane.alpha.kubernetes.io/leader"
	// maxBase is how much of the name of a Service the names of its slices begin with.
	maxBase = 200
)

// MirrorConfig configures a Mirror. The zero value is good.
type MirrorConfig struct {
	Workers      int // Endpoints worked on at once; zero means DefaultWorkers
	MaxEndpoints int // with the same ports; zero means DefaultMirrored, and more than that is that
}

// AddFlags adds the flags that set c.
func (c *MirrorConfig) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "mirroring-concurrent-service-endpoint-syncs", DefaultWorkers, "Endpoints of Services without a selector that are mirrored at once")
	f.IntVar(&c.MaxEndpoints, "mirroring-max-endpoints-per-subset", DefaultMirrored, fmt.Sprintf("addresses of Endpoints with the same ports that are mirrored, at most %d", MaxEndpoints))
}

// A Mirror is Kubernetes' endpointslice-mirroring-controller.
type Mirror struct {
	cfg       MirrorConfig
	client    kubernetes.Interface
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slicesOf  func(namespace, service string) ([]*discoveryv1.EndpointSlice, error)
	watched   []cache.SharedIndexInformer // by the name of the Service
	written   cache.SharedIndexInformer
	events    record.EventRecorder
	log       *slog.Logger
}

// NewMirror returns a controller that watches through d.Informers. It is an error if d.Informers has been shut down.
func NewMirror(d loop.Deps, c MirrorConfig) (*Mirror, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.MaxEndpoints, DefaultMirrored)
	c.MaxEndpoints = min(c.MaxEndpoints, MaxEndpoints)
	services, endpoints, all := d.Informers.Core().V1().Services(), d.Informers.Core().V1().Endpoints(), d.Informers.Discovery().V1().EndpointSlices().Informer()
	of, err := loop.SlicesByService(all, MirroredBy)
	if err != nil {
		return nil, err
	}
	m := &Mirror{
		cfg: c, client: d.Client, services: services.Lister(), endpoints: endpoints.Lister(), slicesOf: of,
		watched: []cache.SharedIndexInformer{services.Informer(), endpoints.Informer()}, written: all, events: loop.Recorder(d.Events),
	}
	m.log = loop.Logger(d.Log, m.Name())
	return m, nil
}

// Name is the controller's name in Kubernetes.
func (*Mirror) Name() string { return "endpointslice-mirroring-controller" }

// Run mirrors until ctx is done. The informers must be running.
func (m *Mirror) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: m.Name(), Do: m.sync, Workers: m.cfg.Workers, Log: m.log})
	stop, err := watchServices(m.watched, m.written, MirroredBy, q.Add)
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

func (m *Mirror) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	have, err := m.slicesOf(ns, name)
	if err != nil {
		return 0, err
	}
	from, err := m.source(ns, name)
	if err != nil {
		return 0, err
	}
	var want []*discoveryv1.EndpointSlice
	left := 0
	if from != nil {
		want, left = mirrored(from, m.cfg.MaxEndpoints)
	}
	wrote, err := m.write(ctx, ns, have, want)
	if err == nil && wrote && left > 0 {
		m.events.Eventf(from, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", m.cfg.MaxEndpoints, left)
	}
	if err != nil {
		return 0, fmt.Errorf("mirror endpoints %s: %w", key, err)
	}
	return 0, nil
}

// source returns the Endpoints of that name if they are to be mirrored, or nil.
func (m *Mirror) source(ns, name string) (*corev1.Endpoints, error) { //nolint:staticcheck // people write it still
	from, err := m.endpoints.Endpoints(ns).Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_, elects := from.Annotations[annotationLeader]
	if elects || from.Labels[discoveryv1.LabelSkipMirror] == "true" || from.DeletionTimestamp != nil {
		return nil, nil
	}
	svc, err := m.services.Services(ns).Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil || svc.Spec.Selector != nil {
		return nil, err // the slices of a Service with a selector are made of its pods
	}
	return from, nil
}

// write makes of have, the slices that there are, want. wrote says whether it changed any.
func (m *Mirror) write(ctx context.Context, ns string, have, want []*discoveryv1.EndpointSlice) (wrote bool, err error) {
	api, old := m.client.DiscoveryV1().EndpointSlices(ns), make(map[string]*discoveryv1.EndpointSlice)
	for _, s := range have {
		old[s.Name] = s
	}
	for _, s := range want {
		was := old[s.Name]
		delete(old, s.Name)
		switch {
		case was == nil:
			wrote = true
			_, err = api.Create(ctx, s, metav1.CreateOptions{})
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return wrote, nil
			}
		case same(was, s):
			continue
		default:
			wrote = true
			s.ResourceVersion, s.UID = was.ResourceVersion, was.UID
			_, err = api.Update(ctx, s, metav1.UpdateOptions{})
		}
		if err != nil {
			return wrote, err
		}
	}
	for _, s := range old {
		wrote = true
		err := api.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return wrote, err
		}
	}
	return wrote, nil
}

// same says whether what was written is as wanted, but for what the server adds.
func same(was, want *discoveryv1.EndpointSlice) bool {
	return apiequality.Semantic.DeepEqual(was.Endpoints, want.Endpoints) && apiequality.Semantic.DeepEqual(was.Ports, want.Ports) &&
		apiequality.Semantic.DeepEqual(was.Labels, want.Labels) && apiequality.Semantic.DeepEqual(was.Annotations, want.Annotations) &&
		apiequality.Semantic.DeepEqual(was.OwnerReferences, want.OwnerReferences)
}

// mirrored are the slices of e, maxMirrors at most: one for each family of addresses and
// list of ports, of at most limit addresses. left is how many addresses have no room.
//
//nolint:staticcheck // people write Endpoints still
func mirrored(e *corev1.Endpoints, limit int) (out []*discoveryv1.EndpointSlice, left int) {
	by := make(map[string]*discoveryv1.EndpointSlice)
	for i := range e.Subsets {
		s := &e.Subsets[i]
		ports, key := portsOfSubset(s)
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for _, a := range addresses {
				family := discoveryv1.AddressTypeIPv4
				a.IP = canonical(a.IP)
				if strings.Contains(a.IP, ":") {
					family = discoveryv1.AddressTypeIPv6
				}
				slice := by[string(family)+key]
				if slice == nil && len(out) == maxMirrors {
					left++
					continue
				}
				if slice == nil {
					slice = emptyMirror(e, family, key)
					slice.Ports = ports
					by[string(family)+key] = slice
					out = append(out, slice)
				}
				if len(slice.Endpoints) == limit {
					left++
					continue
				}
				slice.Endpoints = append(slice.Endpoints, endpointOf(&a, ready))
			}
		}
		add(s.Addresses, true)
		add(s.NotReadyAddresses, false)
	}
	return out, left
}

// canonical writes an address as slices may have it: Endpoints that were stored long ago may have
// leading zeros, or an IPv4 address that is mapped into IPv6.
func canonical(address string) string {
	if ip := netutils.ParseIPSloppy(address); ip != nil {
		return ip.String()
	}
	return address
}

// emptyMirror is a slice of e without endpoints. Its name tells its family and its ports
// from others.
//
//nolint:staticcheck // people write Endpoints still
func emptyMirror(e *corev1.Endpoints, family discoveryv1.AddressType, ports string) *discoveryv1.EndpointSlice {
	base := strings.TrimRight(e.Name[:min(len(e.Name), maxBase)], "-.")
	all, annotations := map[string]string{discoveryv1.LabelServiceName: e.Name, discoveryv1.LabelManagedBy: MirroredBy}, maps.Clone(e.Annotations)
	for k, v := range e.Labels {
		if _, taken := all[k]; !taken && k != labelManaged {
			all[k] = v
		}
	}
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, Name: fmt.Sprintf("%s-%.5x", base, sha256.Sum256([]byte(e.Name+"/"+string(family)+"/"+ports))),
			Labels: all, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints"))},
		},
		AddressType: family,
	}
}

func endpointOf(a *corev1.EndpointAddress, ready bool) discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{
		Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: a.NodeName, TargetRef: a.TargetRef,
	}
	if a.Hostname != "" {
		out.Hostname = &a.Hostname
	}
	return out
}

// portsOfSubset are the ports of a subset, sorted, and what tells them from others.
func portsOfSubset(s *corev1.EndpointSubset) ([]discoveryv1.EndpointPort, string) { //nolint:staticcheck // people write it still
	sorted := slices.SortedFunc(slices.Values(s.Ports), comparePorts)
	var out []discoveryv1.EndpointPort
	for i := range sorted {
		p := &sorted[i]
		out = append(out, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
	}
	return out, keyOfPorts(sorted)
}
