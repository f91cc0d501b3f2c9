// Policy: the targets that servers may dial.

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
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// metadata are the addresses of cloud metadata services, which give the machine's
// credentials to any local process. A prefix that contains one does not allow it; it must
// be named. It is never changed.
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

// These are the prefixes under which IPv6 addresses carry IPv4 ones.
var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")      // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")      // RFC 4380
	compatible = netip.MustParsePrefix("::/96")          // RFC 4291, 2.5.5.1
)

var (
	broadcast = netip.MustParseAddr("255.255.255.255")
	loopback4 = netip.MustParseAddr("127.0.0.1")
	loopback6 = netip.MustParseAddr("::1")
)

// A policy decides which targets are allowed. It has no state.
type policy struct {
	node    string
	kubelet bool           // whether it runs in this process
	outside netip.AddrPort // of a kubelet that is another process; not valid if there is none
	own     func() []netip.Addr
	pods    func(netip.AddrPort) bool
	allow   Targets

	resolver *net.Resolver // nil means the system's
}

// kubeletTimeout is how long a kubelet in another process of this machine may take to
// accept a connection.
const kubeletTimeout = 900 * time.Millisecond

// A decision is the target of an allowed stream: the kubelet in this process, or the first
// address that answers.
type decision struct {
	kubelet bool
	pods    bool // only because a pod declares it
	addrs   []string
	within  time.Duration // for the dial; 0 means as long as the opener waits
}

// decide returns the target of a stream for addr. Errors are *tunnel.DialError: Invalid if
// addr is malformed, else Denied.
func (p policy) decide(network, addr string) (decision, error) {
	if network != "tcp" {
		return decision{}, refuse(addr, tunnel.Invalid, "network %q: only tcp is supported", network)
	}
	host, port, err := splitPort(addr)
	if err != nil {
		return decision{}, refuse(addr, tunnel.Invalid, "%v", err)
	}
	// The last '%' begins the node, after RFC 4007's zones.
	if i := strings.LastIndexByte(host, '%'); i >= 0 {
		if zone := host[i+1:]; zone != p.node {
			return decision{}, refuse(addr, tunnel.Denied, "it is for node %q and this is node %q", zone, p.node)
		}
		host = host[:i]
	}
	// A node may have a name that looks like an address.
	if ip, err := netip.ParseAddr(host); err == nil && host != p.node {
		return p.decideIP(addr, ip, port)
	}
	return p.decideName(addr, host, port)
}

func (p policy) decideIP(addr string, ip netip.Addr, port uint16) (decision, error) {
	ip = ip.Unmap()
	to := netip.AddrPortFrom(ip, port).String()
	switch {
	case ip.Zone() != "":
		return decision{}, refuse(addr, tunnel.Denied, "addresses with a zone are not reachable")
	case !isHost(ip):
		return decision{}, refuse(addr, tunnel.Denied, "%v is not the address of a host", ip)
	case isMetadata(ip):
		if p.allow.exactly(ip, port) {
			return decision{addrs: []string{to}}, nil
		}
		return decision{}, refuse(addr, tunnel.Denied, "%v is a cloud's metadata service; only --allow-target %s admits it", ip, to)
	case embeddedIPv4(ip).IsLoopback() && !ip.IsLoopback() && !p.allow.exactly(ip, port):
		return decision{}, refuse(addr, tunnel.Denied, "%v embeds a loopback address; only --allow-target %s admits it", ip, to)
	case p.isKubelet(port) && p.isOwn(ip):
		return p.toKubelet(addr)
	case p.allow.ip(ip, port):
		return decision{addrs: []string{to}}, nil
	case p.isPods(ip, port):
		return decision{addrs: []string{to}, pods: true}, nil
	default:
		return decision{}, p.notAllowed(addr, to)
	}
}

func (p policy) decideName(addr, host string, port uint16) (decision, error) {
	name := canonicalName(host)
	to := net.JoinHostPort(name, strconv.Itoa(int(port)))
	if name != p.node {
		if p.allow.host(name, port) {
			return decision{addrs: []string{to}}, nil
		}
		return decision{}, p.notAllowed(addr, to)
	}
	if p.isKubelet(port) {
		return p.toKubelet(addr)
	}
	// Any other port of the node is one on its loopback.
	var v decision
	named := p.allow.host(name, port) || p.allow.host("localhost", port)
	for _, ip := range []netip.Addr{loopback4, loopback6} {
		if named || p.allow.ip(ip, port) {
			v.addrs = append(v.addrs, netip.AddrPortFrom(ip, port).String())
		}
	}
	if v.addrs == nil {
		return decision{}, p.notAllowed(addr, netip.AddrPortFrom(loopback4, port).String())
	}
	return v, nil
}

// isKubelet reports whether port is the kubelet's. A Node object may name the port that
// the kubelet really has.
func (p policy) isKubelet(port uint16) bool {
	return port == KubeletPort || p.outside.IsValid() && port == p.outside.Port()
}

func (p policy) toKubelet(addr string) (decision, error) {
	switch {
	case p.kubelet:
		return decision{kubelet: true}, nil
	case p.outside.IsValid():
		return decision{addrs: []string{p.outside.String()}, within: kubeletTimeout}, nil
	}
	return decision{}, refuse(addr, tunnel.Denied, "the agent of node %s has no kubelet (--kubelet none)", p.node)
}

func (p policy) isOwn(ip netip.Addr) bool { return p.own != nil && slices.Contains(p.own(), ip) }

// isPods reports whether a running pod declares the port. A loopback address never belongs
// to a pod.
func (p policy) isPods(ip netip.Addr, port uint16) bool {
	return p.pods != nil && !ip.IsLoopback() && p.pods(netip.AddrPortFrom(ip, port))
}

func (p policy) notAllowed(addr, to string) error {
	at, err := netip.ParseAddrPort(to)
	switch {
	case !p.kubelet: // this process does not run the pods
		return refuse(addr, tunnel.Denied, "%s is not the kubelet of node %s; --allow-target %s on its agent would admit it", to, p.node, to)
	case err == nil && at.Addr().IsLoopback():
		return refuse(addr, tunnel.Denied, "%s is not the kubelet of node %s: ports that pods declare are reached at the pods' addresses; --allow-target %s on its agent would admit it", to, p.node, to)
	}
	return refuse(addr, tunnel.Denied, "%s is neither the kubelet nor a port that a running pod of node %s declares: list it under the container's ports, or --allow-target %s on its agent would admit it", to, p.node, to)
}

func refuse(addr string, code tunnel.Code, format string, args ...any) error {
	return &tunnel.DialError{Addr: addr, Code: code, Text: fmt.Sprintf(format, args...)}
}

// isMetadata also recognizes IPv4 addresses embedded in IPv6 ones.
func isMetadata(ip netip.Addr) bool {
	return metadata[ip.WithZone("").Unmap()] || metadata[embeddedIPv4(ip)]
}

// isHost reports whether the address can be a host's. Connecting to the unspecified address
// reaches loopback.
func isHost(ip netip.Addr) bool {
	for _, ip := range []netip.Addr{ip, embeddedIPv4(ip)} {
		if ip.IsUnspecified() || ip.IsMulticast() || ip == broadcast {
			return false
		}
	}
	return true
}

// embeddedIPv4 returns the IPv4 address that is embedded in an IPv6 one, to which a translator
// or a tunnel would deliver packets; else ip itself, unmapped and without its zone.
func embeddedIPv4(ip netip.Addr) netip.Addr {
	ip = ip.WithZone("").Unmap()
	if ip.Is4() {
		return ip
	}
	b := ip.As16()
	from := 12
	switch {
	case nat64.Contains(ip), nat64Local.Contains(ip):
	case sixToFour.Contains(ip):
		from = 2
	case teredo.Contains(ip):
		for i := range b[12:] {
			b[12+i] = ^b[12+i]
		}
	case compatible.Contains(ip) && !ip.IsLoopback() && !ip.IsUnspecified():
	case [4]byte(b[8:]) == [4]byte{0, 0, 0x5e, 0xfe}, [4]byte(b[8:]) == [4]byte{2, 0, 0x5e, 0xfe}: // RFC 5214
	default:
		return ip
	}
	return netip.AddrFrom4([4]byte(b[from:]))
}

// dial is the default Config.Target. It resolves an allowed name once and checks each
// address before it connects, so that the owner of the name cannot make it resolve to
// loopback, link-local or metadata addresses.
func (p policy) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Resolver: p.resolver, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		return p.checkResolved(addr, resolved)
	}}
	return d.DialContext(ctx, network, addr)
}

func (p policy) checkResolved(addr, resolved string) error {
	to, err := netip.ParseAddrPort(resolved)
	if err != nil {
		return refuse(addr, tunnel.Invalid, "it resolves to %q", resolved)
	}
	if host, _, err := net.SplitHostPort(addr); err != nil || isAddr(host) || isLocalName(host) {
		return err // it is allowed, or its text is clear
	}
	ip, port := to.Addr().WithZone("").Unmap(), to.Port()
	v4 := embeddedIPv4(ip)
	what := ""
	switch {
	case !isHost(ip):
		what = "not the address of a host"
	case isMetadata(ip):
		what = "a cloud's metadata service"
	case p.allow.ip(ip, port) && ip == v4, p.allow.exactly(ip, port):
		return nil // an entry names the address as well
	case v4.IsLoopback():
		what = "a loopback address"
	case v4.IsLinkLocalUnicast():
		what = "a link-local address"
	case (p.isOwn(ip) || p.isOwn(v4)) && !p.isPods(ip, port):
		what = "this node's own address, and no running pod declares the port"
	}
	if what == "" || p.allow.exactly(ip, port) && isHost(ip) {
		return nil
	}
	return refuse(addr, tunnel.Denied, "it resolves to %v, %s; only --allow-target %s as well would admit that", ip, what, netip.AddrPortFrom(ip, port))
}

func isAddr(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// isLocalName reports whether a name can only mean loopback (RFC 6761, 6.3).
func isLocalName(host string) bool {
	name := canonicalName(host)
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
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
