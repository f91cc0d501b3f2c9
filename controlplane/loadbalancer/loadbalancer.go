// Package loadbalancer has a server listen for Services of type LoadBalancer.
//
// Who gives a Service its address is the cloud controller manager, by its provider (package
// cloud): the address stands in the Service's status, with the ports that are the Service's
// there. A server that was told to listen at it does so, at these ports, and leads
// connections to endpoints that are ready, each through the tunnel of its node, so
// externalTrafficPolicy and node ports make no difference. It runs in each server that has
// addresses, whoever leads.
//
// What it is not: it does not listen by itself; see Config.Set.
package loadbalancer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// ProxyProtocol is the annotation of a Service whose endpoints are told first who connects,
// by version 2 of the PROXY protocol, if it is "v2".
const ProxyProtocol = "hawser.dev/proxy-protocol"

// again is when a front that could not be had is tried again: what has its port may end.
const again = 10 * time.Second

// A Front is a port of a Service at an address of this server.
type Front struct {
	Addr          netip.AddrPort
	Sources       []netip.Prefix  // whom it serves; empty means everybody
	Sticky        bool            // sessionAffinity ClientIP
	ProxyProtocol bool            // see the annotation
	Targets       func() []string // addresses to dial, IP%NODE:PORT, as of now
}

// Config configures a Controller. Addresses and Set are required.
type Config struct {
	// Addresses are those at which this server may listen.
	Addresses []netip.Addr
	// Ports are those at which it may; none means all.
	Ports []utilnet.PortRange
	// Set makes fronts what a Service has, which is called NAMESPACE/NAME.
	Set func(ctx context.Context, service string, fronts []Front) error
}

// A Controller has fronts made.
type Controller struct {
	cfg      Config
	services corelisters.ServiceLister
	slicesOf func(namespace, service string) ([]*discoveryv1.EndpointSlice, error)
	watched  cache.SharedIndexInformer
	log      *slog.Logger
	events   record.EventRecorder
	told     map[string]string // by Service, why there is no listening; of the one worker
}

// New returns a controller that watches through d.Informers. It is an error if d.Informers has been shut down.
func New(d loop.Deps, c Config) (*Controller, error) {
	services := d.Informers.Core().V1().Services()
	of, err := loop.SlicesByService(d.Informers.Discovery().V1().EndpointSlices().Informer(), "") // each connection looks
	if err != nil {
		return nil, err
	}
	ctl := &Controller{cfg: c, services: services.Lister(), slicesOf: of, watched: services.Informer(), events: loop.Recorder(d.Events), told: make(map[string]string)}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name.
func (*Controller) Name() string { return "hawser-load-balancer-controller" }

// Run keeps fronts until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: 1, Log: c.log})
	stop, err := loop.Watch(c.watched, q.Add)
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

func (c *Controller) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	svc, err := c.services.Services(ns).Get(name)
	if apierrors.IsNotFound(err) {
		delete(c.told, key)
		return 0, c.cfg.Set(ctx, key, nil)
	}
	if err != nil {
		return 0, err
	}
	fronts, refused := c.fronts(svc) // which trying again does not change
	err = c.cfg.Set(ctx, key, fronts)
	if why := errors.Join(refused, err); why != nil {
		c.tell(svc, why)
	} else {
		delete(c.told, key)
	}
	if err != nil {
		return again, nil
	}
	return 0, nil
}

// tell says why there is no listening for a Service.
func (c *Controller) tell(svc *corev1.Service, err error) {
	text := strings.Join(strings.Fields(err.Error()), " ")
	c.events.Eventf(svc, corev1.EventTypeWarning, "ListenFailed", "A server cannot listen for this Service: %s", text)
	if name := svc.Namespace + "/" + svc.Name; c.told[name] != text { // it is tried again and again
		c.told[name] = text
		c.log.Warn("no listening for a service", "service", name, "err", text)
	}
}

// fronts are the ports of a Service, at the addresses of this server that its status has
// for them. A Service with a class is another implementation's. The error names those that are not
// among Config.Ports.
func (c *Controller) fronts(svc *corev1.Service) ([]Front, error) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.DeletionTimestamp != nil || svc.Spec.LoadBalancerClass != nil {
		return nil, nil
	}
	var (
		out     []Front
		refused []string
	)
	for _, in := range svc.Status.LoadBalancer.Ingress {
		addr, err := netip.ParseAddr(in.IP)
		if err != nil || !slices.Contains(c.cfg.Addresses, addr) {
			continue
		}
		for i := range svc.Spec.Ports {
			port := &svc.Spec.Ports[i]
			if cmp.Or(port.Protocol, corev1.ProtocolTCP) != corev1.ProtocolTCP || !given(in.Ports, port.Port) {
				continue // who gives addresses has refused it, or not seen it yet
			}
			if !c.allowed(port.Port) {
				refused = append(refused, strconv.Itoa(int(port.Port)))
				continue
			}
			ns, name := svc.Namespace, svc.Name
			behind := &endpoints{port: port.Name, slicesOf: func() ([]*discoveryv1.EndpointSlice, error) { return c.slicesOf(ns, name) }}
			out = append(out, Front{
				Addr:    netip.AddrPortFrom(addr, uint16(port.Port)), //nolint:gosec // the API has it between 1 and 65535
				Sources: sources(svc), Sticky: svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP,
				ProxyProtocol: svc.Annotations[ProxyProtocol] == "v2",
				Targets: func() []string {
					targets, err := behind.targets()
					if err != nil {
						c.log.Warn("the endpoints of a service are not known", "service", ns+"/"+name, "err", err)
					}
					return targets
				},
			})
		}
	}
	if len(refused) > 0 {
		return out, fmt.Errorf("its --load-balancer-ports do not have %s", strings.Join(refused, ", "))
	}
	return out, nil
}

func (c *Controller) allowed(port int32) bool {
	return len(c.cfg.Ports) == 0 || slices.ContainsFunc(c.cfg.Ports, func(r utilnet.PortRange) bool { return r.Contains(int(port)) })
}

// given reports whether a status has a TCP port, so that no Service gets one that is
// another's. One without ports has all: whoever wrote it said nothing of them.
func given(ports []corev1.PortStatus, port int32) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p corev1.PortStatus) bool {
		return p.Port == port && p.Protocol == corev1.ProtocolTCP && p.Error == nil
	})
}

// sources are whom a Service serves, by the field or else by the older annotation. One that
// cannot be read, which the API does not take, serves nobody.
func sources(svc *corev1.Service) []netip.Prefix {
	list := svc.Spec.LoadBalancerSourceRanges
	if text := svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]; len(list) == 0 && strings.TrimSpace(text) != "" {
		list = strings.Split(text, ",")
	}
	var out []netip.Prefix
	for _, s := range list {
		p, _ := netip.ParsePrefix(strings.TrimSpace(s)) // the zero Prefix contains nothing
		out = append(out, p.Masked())
	}
	return out
}

// ParseAddresses reads the addresses of a flag.
func ParseAddresses(list []string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, s := range list {
		addr, err := netip.ParseAddr(s)
		if err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
			return nil, fmt.Errorf("%q: want an IP address of this server", s)
		}
		out = append(out, addr)
	}
	return out, nil
}

// ParsePorts reads the ports of a flag: 80, or 30000-32767.
func ParsePorts(list []string) ([]utilnet.PortRange, error) {
	var out []utilnet.PortRange
	for _, s := range list {
		r, err := utilnet.ParsePortRange(s)
		if err != nil || r.Base < 1 {
			return nil, fmt.Errorf("%q: want a port, or a range of ports such as 30000-32767", s)
		}
		out = append(out, *r)
	}
	return out, nil
}
