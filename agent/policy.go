// Policy: where a stream from the server may lead.

package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/hawser-project/hawser/tunnel"
)

// A policy decides. It does nothing.
type policy struct {
	node  string
	own   func() []netip.Addr
	pod   func(netip.AddrPort) bool
	allow Rules
}

// A destination is what the policy made of an address.
type destination struct {
	kubelet bool
	addr    string // to dial, unless it is the kubelet
}

func (a *Agent) policy() policy {
	return policy{node: a.config.Node, own: a.config.Addresses, pod: a.config.Pod, allow: a.config.Allow}
}

// route says where addr leads, or why it may not be dialed.
func (p policy) route(network, addr string) (destination, error) {
	if network != "tcp" {
		return destination{}, fmt.Errorf("%w: network %q", tunnel.Invalid, network)
	}
	host, port, err := splitPort(addr)
	if err != nil {
		return destination{}, fmt.Errorf("%w: address %q: %w", tunnel.Invalid, addr, err)
	}
	if host == p.node {
		if port == KubeletPort {
			return destination{kubelet: true}, nil
		}
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		if !p.allow.allowName(host, port) {
			return destination{}, p.denied(host, port)
		}
		return destination{addr: addr}, nil
	}
	ip = ip.Unmap()
	to := destination{addr: net.JoinHostPort(ip.String(), strconv.Itoa(int(port)))}
	ip = ip.WithZone("")
	switch {
	case ip.IsUnspecified() || ip.IsMulticast(): // the former is loopback in disguise
		return destination{}, fmt.Errorf("%w: %s is no address of a target", tunnel.Denied, ip)
	case p.allow.allowIP(ip, port):
		return to, nil
	case isMetadata(ip):
		return destination{}, fmt.Errorf("%w: %s is a cloud's metadata address; --allow-target %s would allow it",
			tunnel.Denied, ip, net.JoinHostPort(ip.String(), "80"))
	case port == KubeletPort && p.own != nil && slices.Contains(p.own(), ip):
		return destination{kubelet: true}, nil
	case p.pod != nil && !ip.IsLoopback() && p.pod(netip.AddrPortFrom(ip, port)):
		return to, nil
	default:
		return destination{}, p.denied(host, port)
	}
}

func (p policy) denied(host string, port uint16) error {
	at := net.JoinHostPort(host, strconv.Itoa(int(port)))
	return fmt.Errorf("%w: %s is neither the kubelet nor a pod of node %s; --allow-target %s on its agent would allow it", tunnel.Denied, at, p.node, at)
}

// dial connects to what the policy allowed.
func (a *Agent) dial(ctx context.Context, to destination, network string) (net.Conn, error) {
	if to.kubelet {
		to.addr = a.config.KubeletAddr
	}
	if a.config.Dial != nil {
		return a.config.Dial(ctx, network, to.addr)
	}
	d := net.Dialer{ControlContext: func(_ context.Context, _, addr string, _ syscall.RawConn) error {
		return a.checkResolved(addr)
	}}
	return d.DialContext(ctx, network, to.addr)
}

// checkResolved keeps an allowed name from leading to a metadata address.
func (a *Agent) checkResolved(addr string) error {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return fmt.Errorf("%w: resolved to %q", tunnel.Invalid, addr)
	}
	ip := ap.Addr().Unmap().WithZone("")
	if isMetadata(ip) && !a.config.Allow.allowIP(ip, ap.Port()) {
		return fmt.Errorf("%w: the name leads to %s, a cloud's metadata address", tunnel.Denied, ip)
	}
	return nil
}
