// Load balancers: where this server listens for Services, and how it reaches their
// endpoints.

package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/hawser-project/hawser/controlplane/loadbalancer"
	"github.com/hawser-project/hawser/server/balance"
)

// loadBalancerController is the controller that has this server listen for Services.
const loadBalancerController = "hawser-load-balancer-controller"

// loadBalancerOptions are the flags of load balancers.
type loadBalancerOptions struct {
	list, portList []string
	limit          int

	// set by check
	addrs []netip.Addr
	ports []utilnet.PortRange
}

func (o *loadBalancerOptions) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.list, "load-balancer-addresses", nil, "addresses of this server at which it listens for Services of type LoadBalancer; the inventory of hawser-ccm names those of all servers")
	f.StringSliceVar(&o.portList, "load-balancer-ports", nil, "ports, and ranges such as 30000-32767, at which it listens for Services of type LoadBalancer; one that asks for another gets an event (default all)")
	f.IntVar(&o.limit, "load-balancer-connections", balance.DefaultLimit, "connections to Services of type LoadBalancer that may be open at a time, all together; a newcomer costs the oldest of the client that has most its place")
}

func (o *loadBalancerOptions) check() (err error) {
	if o.addrs, err = loadbalancer.ParseAddresses(o.list); err != nil {
		return fmt.Errorf("--load-balancer-addresses %w", err)
	}
	if o.ports, err = loadbalancer.ParsePorts(o.portList); err != nil {
		return fmt.Errorf("--load-balancer-ports %w", err)
	}
	if o.limit <= 0 {
		return fmt.Errorf("--load-balancer-connections %d: want one or more", o.limit)
	}
	return nil
}

// openBalancer makes t's balancer, if there are addresses. It starts nothing.
func (t *tunnels) openBalancer(o *serverOptions) (err error) {
	if len(o.balancers.addrs) == 0 {
		return nil
	}
	t.balancer, err = balance.New(balance.Config{
		Dial: t.named("load-balancer", t.hub.DialSpare), Limit: o.balancers.limit, Drain: o.shutdown.grace, Log: t.log, Metrics: t.metrics,
	})
	return err
}

// loadBalancer is the configuration of the controller; nil if there are no addresses.
func (t *tunnels) loadBalancer(o *serverOptions) *loadbalancer.Config {
	if t.balancer == nil {
		return nil
	}
	return &loadbalancer.Config{Addresses: o.balancers.addrs, Ports: o.balancers.ports, Set: func(ctx context.Context, service string, fronts []loadbalancer.Front) error {
		all := make([]balance.Front, len(fronts))
		for i, f := range fronts {
			all[i] = balance.Front(f)
		}
		return t.balancer.Set(ctx, service, all)
	}}
}
