// Policy: where the streams that servers open may lead.

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/hawser-project/hawser/tunnel"
)

// metadata are the addresses at which clouds hand credentials to whoever asks
// from the machine. Reaching one is being the machine, so an entry that merely
// covers it does not admit it. It is written here once and never changed.
var metadata = map[netip.Addr]bool{
	netip.MustParseAddr("169.254.169.254"): true, // most clouds
	netip.MustParseAddr("fd00:ec2::254"):   true, // EC2
	netip.MustParseAddr("169.254.170.2"):   true, // ECS tasks
	netip.MustParseAddr("169.254.170.23"):  true, // EKS pods
	netip.MustParseAddr("fd00:ec2::23"):    true, // EKS pods
	netip.MustParseAddr("fd20:ce::254"):    true, // Google
	netip.MustParseAddr("100.100.100.200"): true, // Alibaba
	netip.MustParseAddr("168.63.129.16"):   true, // Azure
}

// nat64 is the prefix under which translators embed IPv4 addresses (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

var (
	loopback4 = netip.MustParseAddr("127.0.0.1")
	loopback6 = netip.MustParseAddr("::1")
)

// A policy decides. It has no state.
type policy struct {
	node        string
	kubelet     bool // whether there is one in this process
	kubeletAddr string
	own         func() []netip.Addr
	pods        func(netip.Addr) bool
	allow       Targets
}

// A verdict is where a stream may go: to the kubelet in this process, or to the
// first address that answers.
type verdict struct {
	kubelet bool
	addrs   []string
}

// decide says where a stream for addr may go. Errors are *tunnel.DialError:
// Invalid if addr makes no sense, Refused if the node has no kubelet API, else
// Denied.
func (p policy) decide(network, addr string) (verdict, error) {
	if network != "tcp" {
		return verdict{}, refuse(addr, tunnel.Invalid, "network %q: only tcp is carried", network)
	}
	host, port, err := splitPort(addr)
	if err != nil {
		return verdict{}, refuse(addr, tunnel.Invalid, "%v", err)
	}
	// The last '%' begins the node, after RFC 4007's zones.
	if i := strings.LastIndexByte(host, '%'); i >= 0 {
		if zone := host[i+1:]; zone != p.node {
			return verdict{}, refuse(addr, tunnel.Denied, "it is for node %q and this is node %q", zone, p.node)
		}
		host = host[:i]
	}
	// A node may have a name that looks like an address.
	if ip, err := netip.ParseAddr(host); err == nil && host != p.node {
		return p.decideIP(addr, ip, port)
	}
	return p.decideName(addr, host, port)
}

func (p policy) decideIP(addr string, ip netip.Addr, port uint16) (verdict, error) {
	ip = ip.Unmap()
	to := netip.AddrPortFrom(ip, port).String()
	switch {
	case ip.Zone() != "":
		return verdict{}, refuse(addr, tunnel.Denied, "addresses with a zone are not reachable")
	case ip.IsUnspecified(), ip.IsMulticast():
		// The unspecified address is loopback in disguise.
		return verdict{}, refuse(addr, tunnel.Denied, "%v is not the address of a host", ip)
	case isMetadata(ip):
		if p.allow.exactly(ip, port) {
			return verdict{addrs: []string{to}}, nil
		}
		return verdict{}, refuse(addr, tunnel.Denied, "%v is a cloud's metadata service; only --allow-target %s admits it", ip, to)
	case port == KubeletPort && p.own != nil && slices.Contains(p.own(), ip):
		return p.toKubelet(addr)
	case p.allow.ip(ip, port), p.pods != nil && !ip.IsLoopback() && p.pods(ip):
		return verdict{addrs: []string{to}}, nil
	default:
		return verdict{}, p.notAllowed(addr, to)
	}
}

func (p policy) decideName(addr, host string, port uint16) (verdict, error) {
	name := canonicalName(host)
	to := net.JoinHostPort(name, strconv.Itoa(int(port)))
	if name != p.node {
		if p.allow.host(name, port) {
			return verdict{addrs: []string{to}}, nil
		}
		return verdict{}, p.notAllowed(addr, to)
	}
	if port == KubeletPort {
		return p.toKubelet(addr)
	}
	// Any other port of the node is one on its loopback.
	var v verdict
	named := p.allow.host(name, port) || p.allow.host("localhost", port)
	for _, ip := range []netip.Addr{loopback4, loopback6} {
		if named || p.allow.ip(ip, port) {
			v.addrs = append(v.addrs, netip.AddrPortFrom(ip, port).String())
		}
	}
	if v.addrs == nil {
		return verdict{}, p.notAllowed(addr, netip.AddrPortFrom(loopback4, port).String())
	}
	return v, nil
}

func (p policy) toKubelet(addr string) (verdict, error) {
	switch {
	case p.kubelet:
		return verdict{kubelet: true}, nil
	case p.kubeletAddr != "":
		return verdict{addrs: []string{p.kubeletAddr}}, nil
	default:
		return verdict{}, refuse(addr, tunnel.Refused, "node %s has no kubelet API", p.node)
	}
}

func (p policy) notAllowed(addr, to string) error {
	return refuse(addr, tunnel.Denied, "%s is neither the kubelet nor a pod of node %s; --allow-target %s on its agent would admit it", to, p.node, to)
}

func refuse(addr string, code tunnel.Code, format string, args ...any) error {
	return &tunnel.DialError{Addr: addr, Code: code, Text: fmt.Sprintf(format, args...)}
}

// isMetadata looks through the ways to write an IPv4 address as IPv6.
func isMetadata(ip netip.Addr) bool {
	ip = ip.WithZone("").Unmap()
	if nat64.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	return metadata[ip]
}

// dial is the default way to a target. A name that was admitted must not turn
// out to be a metadata service's address, whatever its owner has it resolve to.
func (p policy) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		return p.checkResolved(addr, resolved)
	}}
	return d.DialContext(ctx, network, addr)
}

func (p policy) checkResolved(addr, resolved string) error {
	to, err := netip.ParseAddrPort(resolved)
	if err != nil {
		return refuse(addr, tunnel.Invalid, "it resolves to %q", resolved)
	}
	ip := to.Addr().WithZone("").Unmap()
	if isMetadata(ip) && !p.allow.exactly(ip, to.Port()) {
		return refuse(addr, tunnel.Denied, "it leads to %v, a cloud's metadata service", ip)
	}
	return nil
}

// splitPort is net.SplitHostPort with a port that is a number from 1 and a host
// that is not empty.
func splitPort(addr string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return "", 0, errors.New("want HOST:PORT")
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("port %q is not a number from 1 to 65535", text)
	}
	return host, uint16(n), nil
}
