// Rules: targets that an operator allows beyond the default.

package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxRules bounds a list of rules.
const maxRules = 1024

// A Rule allows some targets: an address range on any port, or one host on one
// port or any.
type Rule struct {
	prefix netip.Prefix // valid, or else name is set
	name   string       // lower case
	port   uint16       // 0 means any
}

// Rules allow what any of them does.
type Rules []Rule

// ParseRules reads a comma-separated list of CIDR and HOST:PORT, where PORT may
// be *, such as 10.0.0.0/8,127.0.0.1:*,db.internal:5432.
func ParseRules(s string) (Rules, error) {
	var rules Rules
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		r, err := parseRule(item)
		if err != nil {
			return nil, fmt.Errorf("allowed target %q: %w", item, err)
		}
		if rules = append(rules, r); len(rules) > maxRules {
			return nil, fmt.Errorf("more than %d allowed targets", maxRules)
		}
	}
	return rules, nil
}

func parseRule(s string) (Rule, error) {
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return Rule{}, errors.New("want a CIDR such as 10.0.0.0/8")
		}
		return Rule{prefix: unmap(p)}, nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return Rule{}, errors.New("want CIDR or HOST:PORT; PORT may be *")
	}
	var r Rule
	if port != "*" {
		n, err := parsePort(port)
		if err != nil {
			return Rule{}, err
		}
		r.port = n
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		ip = ip.Unmap().WithZone("")
		r.prefix = netip.PrefixFrom(ip, ip.BitLen())
		return r, nil
	}
	if host == "" || len(host) > 253 || strings.ContainsAny(host, "*%/ ") {
		return Rule{}, fmt.Errorf("%q is neither an address nor a name", host)
	}
	r.name = strings.ToLower(host)
	return r, nil
}

func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// String is the rule as ParseRules reads it.
func (r Rule) String() string {
	port := "*"
	if r.port != 0 {
		port = strconv.Itoa(int(r.port))
	}
	switch {
	case r.name != "":
		return net.JoinHostPort(r.name, port)
	case r.port == 0 && !r.prefix.IsSingleIP():
		return r.prefix.String()
	default:
		return net.JoinHostPort(r.prefix.Addr().String(), port)
	}
}

// allowIP says whether a rule covers ip on port. Loopback is covered only by a
// rule about loopback, and a metadata address only by one that names it and
// nothing else: a wide range is never meant to include these.
func (rs Rules) allowIP(ip netip.Addr, port uint16) bool {
	return slices.ContainsFunc(rs, func(r Rule) bool {
		switch {
		case r.name != "" || r.port != 0 && r.port != port || !r.prefix.Contains(ip):
			return false
		case isMetadata(ip):
			return r.prefix.IsSingleIP()
		case ip.IsLoopback():
			return r.prefix.Addr().IsLoopback() && r.prefix.Bits() >= loopbackBits(ip)
		default:
			return true
		}
	})
}

func loopbackBits(ip netip.Addr) int {
	if ip.Is4() {
		return 8
	}
	return 128
}

// allowName says whether a rule covers a host by name.
func (rs Rules) allowName(host string, port uint16) bool {
	host = strings.ToLower(host)
	return slices.ContainsFunc(rs, func(r Rule) bool {
		return r.name == host && (r.port == 0 || r.port == port)
	})
}

// isMetadata says whether ip is where a cloud hands a machine its credentials:
// AWS (instances, tasks, pods), GCP, Azure and others, Alibaba, Oracle.
func isMetadata(ip netip.Addr) bool {
	switch ip.String() {
	case "169.254.169.254", "fd00:ec2::254", "169.254.170.2", "169.254.170.23", "fd00:ec2::23", "100.100.100.200", "fd20:ce::254":
		return true
	default:
		return false
	}
}

// splitPort is net.SplitHostPort with a checked port.
func splitPort(addr string) (host string, port uint16, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return "", 0, errors.New("want HOST:PORT")
	}
	port, err = parsePort(p)
	return host, port, err
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", s)
	}
	return uint16(n), nil
}
