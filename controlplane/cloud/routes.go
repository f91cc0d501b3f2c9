package cloud

// Routes: which ranges of pods the hub leads to which node.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/hawser-project/hawser/controlplane/nodeipam"
)

// routes are the hub's. Its servers lead to what the spec of a Node has as podCIDRs, which
// no node writes, for as long as the Node is there. So nothing is kept here: a route is
// there if the hub leads to the whole of a range, and to make it is to say why it does not.
// What only a server knows, such as the range of services, that says by events of the Node.
type routes Cloud

var _ cloudprovider.Routes = (*routes)(nil)

// ListRoutes implements cloudprovider.Routes. There are no blackholes: where no Node has a
// range, there is no route.
func (r *routes) ListRoutes(context.Context, string) ([]*cloudprovider.Route, error) {
	all, err := r.ranges()
	if err != nil {
		return nil, err
	}
	var out []*cloudprovider.Route
	for i := range all {
		if c := &all[i]; c.why() == "" {
			out = append(out, &cloudprovider.Route{Name: c.node + " " + c.text, TargetNode: types.NodeName(c.node), DestinationCIDR: c.text})
		}
	}
	return out, nil
}

// CreateRoute implements cloudprovider.Routes.
func (r *routes) CreateRoute(_ context.Context, _, _ string, route *cloudprovider.Route) error {
	c, err := r.find(route)
	if err != nil {
		return err
	}
	if c == nil {
		return fmt.Errorf("the podCIDRs of node %s do not have %s", route.TargetNode, route.DestinationCIDR)
	}
	if why := c.why(); why != "" {
		return errors.New(c.text + " " + why)
	}
	return nil
}

// DeleteRoute implements cloudprovider.Routes. A route goes with its Node, or with the
// Node's range.
func (r *routes) DeleteRoute(_ context.Context, _ string, route *cloudprovider.Route) error {
	c, err := r.find(route)
	if err == nil && c != nil {
		err = fmt.Errorf("the podCIDRs of node %s have %s", route.TargetNode, route.DestinationCIDR)
	}
	return err
}

func (r *routes) find(route *cloudprovider.Route) (*podRange, error) {
	all, err := r.ranges()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(c podRange) bool {
		return c.node == string(route.TargetNode) && c.text == route.DestinationCIDR
	})
	if i < 0 {
		return nil, nil
	}
	return &all[i], nil
}

// A podRange is one that a Node's spec has.
type podRange struct {
	node, text string
	cidr       netip.Prefix
	fault      string // the hub does not lead there for
	above      string // a node with a range around it
	below      string // a node with a range in it
}

// why is why the hub does not lead to all of it; empty if it does.
func (c *podRange) why() string {
	if other := cmp.Or(c.above, c.below); c.fault == "" && other != "" {
		return fmt.Sprintf("overlaps a range of node %s: the hub leads to neither; give one of them another range", other)
	}
	return c.fault
}

// ranges are those of all Nodes.
func (r *routes) ranges() ([]podRange, error) {
	r.mu.Lock()
	lister, within := r.nodes, r.pods
	r.mu.Unlock()
	if lister == nil {
		return nil, errors.New("the nodes are not known yet")
	}
	nodes, err := lister.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("the podCIDRs of nodes: %w", err)
	}
	var all []podRange
	for _, n := range nodes {
		for _, text := range n.Spec.PodCIDRs {
			c := podRange{node: n.Name, text: text}
			if p, err := netip.ParsePrefix(text); err != nil {
				c.fault = "is no range"
			} else {
				c.cidr = p.Masked()
				if c.fault = nodeipam.Unroutable(c.cidr); c.fault == "" && len(within) > 0 && !slices.ContainsFunc(within, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) }) {
					c.fault = "is no part of --cluster-cidr"
				}
			}
			all = append(all, c)
		}
	}
	overlaps(all)
	return all, nil
}

// overlaps finds whose ranges overlap those of another node. Two ranges are apart, or one
// is in the other: in this order each comes after those around it, which are open.
func overlaps(all []podRange) {
	slices.SortFunc(all, func(a, b podRange) int {
		return cmp.Or(a.cidr.Addr().Compare(b.cidr.Addr()), cmp.Compare(a.cidr.Bits(), b.cidr.Bits()), cmp.Compare(a.node, b.node))
	})
	var open []*podRange
	closeLast := func() {
		c := open[len(open)-1]
		if open = open[:len(open)-1]; len(open) == 0 {
			return
		}
		if up := open[len(open)-1]; c.node != up.node {
			up.below = c.node
		} else {
			up.below = cmp.Or(up.below, c.below)
		}
	}
	for i := range all {
		c := &all[i]
		if !c.cidr.IsValid() {
			continue
		}
		for len(open) > 0 && !open[len(open)-1].cidr.Contains(c.cidr.Addr()) {
			closeLast()
		}
		if len(open) > 0 {
			up := open[len(open)-1]
			if c.above = up.node; up.node == c.node {
				c.above = up.above
			}
		}
		open = append(open, c)
	}
	for len(open) > 0 {
		closeLast()
	}
}
