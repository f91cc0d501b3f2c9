// --route-through: the nodes that lead to addresses which no node has, such as the cluster
// IPs of services.

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hawser-project/hawser/controlplane/nodeipam"
)

// maxThrough bounds the nodes among which a dial has the choice.
const maxThrough = 64

// throughOptions is the flag.
type throughOptions struct {
	specs []string
	list  []routedRange // set by check
}

// A routedRange is one range and the labels of the nodes that lead to it.
type routedRange struct {
	cidr  netip.Prefix
	nodes labels.Selector
}

func (o *throughOptions) addFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&o.specs, "route-through", nil, "CIDR=SELECTOR: addresses that no node has, such as those of services, are reached through any node with these labels whose agent admits them (--allow-target CIDR). Choose labels that a node cannot give itself, such as node-restriction.kubernetes.io/NAME. May be repeated")
}

// check reads the flag. Errors name it.
func (o *throughOptions) check() error {
	o.list = nil
	for _, spec := range o.specs {
		t, err := parseRoutedRange(spec)
		if err != nil {
			return fmt.Errorf("--route-through %q: %w", spec, err)
		}
		if slices.ContainsFunc(o.list, func(other routedRange) bool { return other.cidr.Overlaps(t.cidr) }) {
			return fmt.Errorf("--route-through %q: its range overlaps with that of another one", spec)
		}
		o.list = append(o.list, t)
	}
	return nil
}

func parseRoutedRange(spec string) (t routedRange, err error) {
	cidr, selector, _ := strings.Cut(spec, "=")
	if t.cidr, err = netip.ParsePrefix(cidr); err != nil {
		return t, errors.New("want CIDR=SELECTOR, such as 10.96.0.0/12=node-restriction.kubernetes.io/gateway")
	}
	t.cidr = t.cidr.Masked()
	if why := nodeipam.Unroutable(t.cidr); why != "" {
		return t, errors.New("the range " + why)
	}
	if t.nodes, err = labels.Parse(selector); err != nil {
		return t, fmt.Errorf("labels of nodes: %w", err)
	}
	if t.nodes.Empty() {
		return t, errors.New("want labels of nodes behind the range: each of these nodes sees what is sent there")
	}
	return t, nil
}

// covers reports whether ip is in one of the ranges.
func (o *throughOptions) covers(ip netip.Addr) bool {
	return slices.ContainsFunc(o.list, func(t routedRange) bool { return t.cidr.Contains(ip) })
}

// A throughNodes follows which nodes have the labels.
type throughNodes struct {
	list []routedRange

	mu    sync.Mutex // guards the following
	nodes [][]string // by range, sorted
}

func newThroughNodes(o *throughOptions) *throughNodes {
	return &throughNodes{list: o.list, nodes: make([][]string, len(o.list))}
}

// set takes the labels of a node.
func (t *throughNodes) set(n *corev1.Node) {
	for i := range t.list {
		t.put(i, n.Name, t.list[i].nodes.Matches(labels.Set(n.Labels)))
	}
}

// remove is for a node that is gone.
func (t *throughNodes) remove(node string) {
	for i := range t.list {
		t.put(i, node, false)
	}
}

func (t *throughNodes) put(i int, node string, want bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, had := slices.BinarySearch(t.nodes[i], node)
	switch {
	case want && !had:
		t.nodes[i] = slices.Insert(t.nodes[i], at, node)
	case had && !want:
		t.nodes[i] = slices.Delete(t.nodes[i], at, at+1)
	}
}

// to are nodes that lead to ip, from a random one on. It has the signature of
// server.Config.Through.
func (t *throughNodes) to(ip netip.Addr) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.list {
		all := t.nodes[i]
		if !t.list[i].cidr.Contains(ip) || len(all) == 0 {
			continue
		}
		some := make([]string, 0, min(len(all), maxThrough))
		for first := rand.IntN(len(all)); len(some) < cap(some); first++ { //nolint:gosec // spreads load
			some = append(some, all[first%len(all)])
		}
		return some
	}
	return nil
}
