// Routes: which addresses of a Node object lead to the node.

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/nodeipam"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// maxAddresses bounds the addresses of a node, which it writes itself, that are looked at.
	maxAddresses = 256
	// maxNamed bounds those that make no route and are named in a log line.
	maxNamed = 8
)

// A routePolicy decides which routes a Node object makes. What a node says of
// itself draws no traffic that is another's: an address makes a route unless it is
// the server's (of a server that has an API server), a service's, a pod's, no one machine's, or in
// a range that others lead to (--route-through). A range of pods, which
// no node writes, makes one if it is in --cluster-cidr, where that is said, and has
// none of those. An address that two nodes have routes for leads to neither; the
// hub sees to that.
type routePolicy struct {
	pods     []netip.Prefix // --cluster-cidr
	services netip.Prefix
	own      []netip.Addr // the server's
	through  *throughOptions
	refused  prometheus.Counter
	events   record.EventRecorder // nil means none
	log      *slog.Logger

	said strangers.LogLimiter // of addresses: a node may say other ones each time

	mu   sync.Mutex
	told map[string]refusals // guarded by mu: by node, what has been told
}

// refusals are what of a node makes no route.
type refusals struct{ all, ranges string }

// newRoutePolicy registers its metric with r.
func newRoutePolicy(o *serverOptions, r prometheus.Registerer, log *slog.Logger) (*routePolicy, error) {
	p := &routePolicy{services: o.services, through: &o.through, log: log, told: make(map[string]refusals)}
	for text := range strings.SplitSeq(o.controllers.IPAM.ClusterCIDR, ",") {
		if c, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil { // the flags have been checked
			p.pods = append(p.pods, c.Masked())
		}
	}
	own := o.servingIPs()
	if o.beside.kubeconfig != "" {
		own = nil // the machine of the hub, or of the API server, may be a node
	}
	for _, ip := range own {
		if a, ok := netip.AddrFromSlice(ip); ok {
			p.own = append(p.own, a.Unmap())
		}
	}
	p.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "hawser", Subsystem: "hub", Name: "routes_refused_total",
		Help: "Addresses and ranges of Node objects that made no route, because they are not the node's to have.",
	})
	err := r.Register(p.refused)
	if known := (prometheus.AlreadyRegisteredError{}); errors.As(err, &known) {
		if had, ok := known.ExistingCollector.(prometheus.Counter); ok {
			p.refused, err = had, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register the metric of routes: %w", err)
	}
	return p, nil
}

// record has events of refused ranges made until ctx is done. It comes before of.
func (p *routePolicy) record(ctx context.Context, client kubernetes.Interface) {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	p.events = b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "hawser-hub"})
}

// of returns the routes of a node, and tells of what makes none when it changes.
func (p *routePolicy) of(n *corev1.Node) []netip.Prefix {
	var out []netip.Prefix
	var bad, badRanges []string
	for _, a := range n.Status.Addresses[:min(len(n.Status.Addresses), maxAddresses)] {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil {
			continue // a name
		}
		ip = ip.Unmap().WithZone("")
		if why := p.address(ip); why != "" {
			bad = append(bad, a.Address+" "+why)
			continue
		}
		out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
	}
	ranges := n.Spec.PodCIDRs
	if len(ranges) == 0 && n.Spec.PodCIDR != "" {
		ranges = []string{n.Spec.PodCIDR}
	}
	for _, text := range ranges {
		c, err := netip.ParsePrefix(text)
		why := "cannot be read"
		if err == nil {
			c = c.Masked()
			why = p.podRange(c)
		}
		if why != "" {
			badRanges = append(badRanges, text+" "+why)
			continue
		}
		out = append(out, c)
	}
	p.tell(n, bad, badRanges)
	return out
}

// address is why ip makes no route; empty if it does.
func (p *routePolicy) address(ip netip.Addr) string {
	in := func(c netip.Prefix) bool { return c.Contains(ip) }
	switch {
	case nodeipam.Unroutable(netip.PrefixFrom(ip, ip.BitLen())) != "":
		return "is no one machine's"
	case slices.Contains(p.own, ip):
		return "is the server's"
	case in(p.services):
		return "is a service's (--service-cluster-ip-range)"
	case slices.ContainsFunc(p.pods, in):
		return "is a pod's (--cluster-cidr)"
	case p.through.covers(ip):
		return "is reached through other nodes (--route-through)"
	}
	return ""
}

// podRange is why c makes no route; empty if it does.
func (p *routePolicy) podRange(c netip.Prefix) string {
	around := func(o netip.Prefix) bool { return o.Bits() <= c.Bits() && o.Contains(c.Addr()) }
	switch why := nodeipam.Unroutable(c); {
	case why != "":
		return why
	case len(p.pods) > 0 && !slices.ContainsFunc(p.pods, around):
		return "is no part of --cluster-cidr"
	case c.Overlaps(p.services):
		return "holds addresses of services (--service-cluster-ip-range)"
	case slices.ContainsFunc(p.own, c.Contains):
		return "holds an address of the server"
	}
	return ""
}

// tell counts and logs what makes no route, once until it changes, and for each node once a
// minute at most. Of ranges an event tells, too: no node writes them, and so none makes
// events by it.
func (p *routePolicy) tell(n *corev1.Node, addresses, ranges []string) {
	node, bad := n.Name, slices.Concat(addresses, ranges)
	now := refusals{strings.Join(bad, ", "), strings.Join(ranges, ", ")}
	p.mu.Lock()
	was := p.told[node]
	if now == (refusals{}) {
		delete(p.told, node)
	} else {
		p.told[node] = now
	}
	p.mu.Unlock()
	if now.all != "" && now != was {
		p.refused.Add(float64(len(bad)))
		if _, ok := p.said.Allow(node); ok {
			p.log.Warn("a node has addresses that make no route; dial ADDRESS%NODE, or have the node say other ones (--node-ip)",
				"node", node, "refused", strings.Join(bad[:min(len(bad), maxNamed)], ", "), "more", max(0, len(bad)-maxNamed))
		}
	}
	if p.events != nil && now.ranges != "" && now.ranges != was.ranges {
		p.events.Eventf(n, corev1.EventTypeWarning, "RouteRefused", "The hub does not lead to podCIDRs of this node: %s", now.ranges)
	}
}

// forget is for a node that is gone.
func (p *routePolicy) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.told, node)
}
