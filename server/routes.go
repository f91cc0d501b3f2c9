// Addresses: from what a caller dials to a node and what that node dials.

package server

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// maxTarget bounds an address to dial: two DNS names, a port and separators.
const maxTarget = 600

// A target is a parsed address. Exactly one of node and ip is set.
type target struct {
	node string
	ip   netip.Addr // the node is looked up by it
	addr string     // what the agent is to dial
}

// parseTarget understands NODE:PORT, HOST%NODE:PORT and IP:PORT. The last '%'
// separates, as for the zone of RFC 4007, so that a host may have a zone of its
// own.
func parseTarget(network, addr string) (target, error) {
	invalid := func(format string, args ...any) (target, error) {
		return target{}, &tunnel.DialError{Addr: addr, Code: tunnel.Invalid, Text: fmt.Sprintf(format, args...)}
	}
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return invalid("network %q: only tcp goes through the tunnel", network)
	}
	if len(addr) > maxTarget {
		addr = addr[:32] + "…"
		return invalid("address is longer than %d bytes", maxTarget)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return invalid("want HOST:PORT")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return invalid("port %q is not a number from 1 to 65535", port)
	}
	if i := strings.LastIndexByte(host, '%'); i >= 0 {
		node := host[i+1:]
		if err := auth.CheckNodeName(node); err != nil {
			return invalid("after '%%': %v", err)
		}
		if i == 0 {
			return invalid("no host before '%%'")
		}
		return target{node: node, addr: net.JoinHostPort(host[:i], port)}, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return target{ip: ip.Unmap(), addr: addr}, nil
	}
	if err := auth.CheckNodeName(host); err != nil {
		return invalid("%v", err)
	}
	return target{node: host, addr: addr}, nil
}

// routes map addresses to nodes.
type routes struct {
	mu     sync.RWMutex // guards the following
	byNode map[string][]netip.Prefix
	claims map[netip.Prefix][]string // nodes that claim exactly this, sorted
	bits   map[int]int               // prefixes in claims by family and length
}

// set replaces what node claims.
func (r *routes) set(node string, prefixes []netip.Prefix) {
	want := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if p = p.Masked(); p.IsValid() && !slices.Contains(want, p) {
			want = append(want, p)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byNode == nil {
		r.byNode = make(map[string][]netip.Prefix)
		r.claims = make(map[netip.Prefix][]string)
		r.bits = make(map[int]int)
	}
	for _, p := range r.byNode[node] {
		r.removeLocked(p, node)
	}
	delete(r.byNode, node)
	if len(want) == 0 {
		return
	}
	r.byNode[node] = want
	for _, p := range want {
		nodes := r.claims[p]
		if len(nodes) == 0 {
			r.bits[key(p)]++
		}
		i, _ := slices.BinarySearch(nodes, node)
		r.claims[p] = slices.Insert(nodes, i, node)
	}
}

func (r *routes) removeLocked(p netip.Prefix, node string) {
	nodes := r.claims[p]
	if i, ok := slices.BinarySearch(nodes, node); ok {
		nodes = slices.Delete(nodes, i, i+1)
	}
	if len(nodes) > 0 {
		r.claims[p] = nodes
		return
	}
	delete(r.claims, p)
	if r.bits[key(p)]--; r.bits[key(p)] == 0 {
		delete(r.bits, key(p))
	}
}

// find returns the nodes with any prefix that contains ip. The longest does not win, so
// that no node can take traffic from the range of another.
func (r *routes) find(ip netip.Addr) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var found []string
	for n := ip.BitLen(); n >= 0; n-- {
		p, err := ip.Prefix(n)
		if err != nil || r.bits[key(p)] == 0 {
			continue
		}
		for _, node := range r.claims[p] {
			if i, had := slices.BinarySearch(found, node); !had {
				found = slices.Insert(found, i, node)
			}
		}
	}
	return found
}

// key is the prefix length with its address family.
func key(p netip.Prefix) int {
	if p.Addr().Is4() {
		return p.Bits()
	}
	return 256 + p.Bits()
}

// resolve returns which node to dial for addr and what that node must dial.
func (r *routes) resolve(network, addr string) (node, dial string, err error) {
	t, err := parseTarget(network, addr)
	if err != nil {
		return "", "", err
	}
	if t.node != "" {
		return t.node, t.addr, nil
	}
	switch nodes := r.find(t.ip); len(nodes) {
	case 0:
		return "", "", &tunnel.DialError{Addr: addr, Code: tunnel.NoNode, Text: "no node has address " + t.ip.String()}
	case 1:
		return nodes[0], t.addr, nil
	default:
		return "", "", &tunnel.DialError{
			Addr: addr, Code: tunnel.Ambiguous,
			Text: fmt.Sprintf("%d nodes have address %s (%s, %s, …): dial %s%%NODE instead", len(nodes), t.ip, nodes[0], nodes[1], t.ip),
		}
	}
}
