// Targets: the values of --allow-target.

package agent

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser/auth"
)

// maxTargets bounds a list, which is walked for each stream.
const maxTargets = 1024

// Targets is a list of what streams may lead to. Its zero value is empty.
type Targets struct{ list []allowed }

// An allowed is one entry: addresses, or a name.
type allowed struct {
	spec   string
	prefix netip.Prefix // not valid if name is set
	name   string       // in lower case
	port   uint16       // 0 means every port
}

// exact reports whether the entry is about one single address.
func (e allowed) exact() bool { return e.prefix.IsSingleIP() }

// loopback reports whether the entry is about loopback addresses only.
func (e allowed) loopback() bool {
	return e.prefix.Addr().IsLoopback() && (e.prefix.Bits() >= 8 && e.prefix.Addr().Is4() || e.exact())
}

func (e allowed) onPort(port uint16) bool { return e.port == 0 || e.port == port }

// ParseTargets parses entries, several of which may stand in one spec, with
// commas between:
//
//	10.0.0.0/8        every port of these addresses
//	10.0.0.7:80       one port
//	127.0.0.1:*       every port; NODE:PORT leads to these
//	[::1]:8080        IPv6
//	db.internal:5432  a name, resolved on the node, and given as that name
//
// Errors name the entry and what it should look like.
func ParseTargets(specs []string) (Targets, error) {
	var t Targets
	for _, spec := range specs {
		for s := range strings.SplitSeq(spec, ",") {
			s = strings.TrimSpace(s)
			if s == "" {
				continue
			}
			e, err := parseAllowed(s)
			if err != nil {
				return Targets{}, err
			}
			if t.list = append(t.list, e); len(t.list) > maxTargets {
				return Targets{}, fmt.Errorf("more than %d targets", maxTargets)
			}
		}
	}
	return t, nil
}

func parseAllowed(s string) (allowed, error) {
	fail := func(why string) (allowed, error) {
		return allowed{}, fmt.Errorf("target %q %s", s, why)
	}
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return fail("is no CIDR such as 10.0.0.0/8; a CIDR takes no port")
		}
		if p.Addr().Is4In6() {
			return fail("is an IPv4-mapped CIDR; write it as IPv4")
		}
		return allowed{spec: s, prefix: p.Masked()}, nil
	}
	host, portText, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return fail("must be a CIDR, or HOST:PORT with * for every port; IPv6 addresses go in brackets")
	}
	e := allowed{spec: s}
	if portText != "*" {
		n, err := strconv.ParseUint(portText, 10, 16)
		if err != nil || n == 0 {
			return fail("has no port between 1 and 65535, and no *")
		}
		e.port = uint16(n)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Zone() != "" {
			return fail("has a zone, which targets cannot have")
		}
		ip = ip.Unmap()
		e.prefix = netip.PrefixFrom(ip, ip.BitLen())
		return e, nil
	}
	e.name = canonicalName(host)
	if err := auth.CheckNodeName(e.name); err != nil {
		return fail("has a host that is neither an address nor a DNS name")
	}
	return e, nil
}

// canonicalName is how names are compared: DNS knows no case, and a name may
// end in a dot.
func canonicalName(s string) string { return strings.TrimSuffix(strings.ToLower(s), ".") }

// String is the entries with commas between.
func (t Targets) String() string {
	specs := make([]string, len(t.list))
	for i, e := range t.list {
		specs[i] = e.spec
	}
	return strings.Join(specs, ",")
}

// ip reports whether an entry admits a port of ip. Loopback is admitted only by an
// entry about nothing else: a wide range is never meant to include what a
// machine keeps to itself.
func (t Targets) ip(ip netip.Addr, port uint16) bool {
	for _, e := range t.list {
		if e.onPort(port) && e.prefix.Contains(ip) && (!ip.IsLoopback() || e.loopback()) {
			return true
		}
	}
	return false
}

// exactly is ip for entries that name this one address.
func (t Targets) exactly(ip netip.Addr, port uint16) bool {
	for _, e := range t.list {
		if e.exact() && e.onPort(port) && e.prefix.Contains(ip) {
			return true
		}
	}
	return false
}

// host reports whether an entry admits a port of a name.
func (t Targets) host(name string, port uint16) bool {
	for _, e := range t.list {
		if e.name == name && e.name != "" && e.onPort(port) {
			return true
		}
	}
	return false
}
