// This file finds the addresses of the machine.

package node

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

// dnsTimeout bounds the lookup of the node's own name, which on a machine without
// a resolver would take much longer.
const dnsTimeout = 2 * time.Second

// findAddresses returns the addresses the node is known by: those configured; else
// the host name, when it is an address; else one that DNS has for the name and the
// machine has too; else one of the interface with the default route; else the
// first of any interface.
func (n *Node) findAddresses(ctx context.Context) ([]netip.Addr, error) {
	if len(n.cfg.IPs) > 0 {
		return n.cfg.IPs, nil
	}
	if ip, err := netip.ParseAddr(n.cfg.Hostname); err == nil && checkIP(ip) == nil {
		return []netip.Addr{ip}, nil
	}
	interfaces, err := localAddresses()
	if err != nil {
		return nil, err
	}
	var local []netip.Addr
	for _, i := range interfaces {
		local = append(local, i.addrs...)
	}
	dnsCtx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	// No answer is no error: there is another way.
	named, _ := net.DefaultResolver.LookupNetIP(dnsCtx, "ip", n.cfg.Name)
	var usable []netip.Addr
	for _, ip := range named {
		if slices.Contains(local, ip.Unmap()) {
			usable = append(usable, ip.Unmap())
		}
	}
	if len(usable) == 0 {
		if name, err := n.machine.defaultInterface(); err == nil {
			for _, i := range interfaces {
				if i.name == name {
					usable = i.addrs
				}
			}
		}
	}
	if len(usable) == 0 {
		usable = local
	}
	if len(usable) == 0 {
		return nil, errors.New("no interface has an address that other machines can reach; say which with --node-ip")
	}
	return []netip.Addr{preferred(usable)}, nil
}

// preferred returns the first IPv4 address, or else the first.
func preferred(list []netip.Addr) netip.Addr {
	for _, ip := range list {
		if ip.Is4() {
			return ip
		}
	}
	return list[0]
}

type netInterface struct {
	name  string
	addrs []netip.Addr
}

// localAddresses lists the addresses of interfaces that are up, without those that
// no other machine reaches.
func localAddresses() ([]netInterface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var list []netInterface
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // gone since
		}
		ni := netInterface{name: i.Name}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && checkIP(p.Addr().Unmap()) == nil {
				ni.addrs = append(ni.addrs, p.Addr().Unmap())
			}
		}
		list = append(list, ni)
	}
	return list, nil
}

// defaultInterface returns the name of the interface with the IPv4 default route
// of the least metric, or else the IPv6 one.
func (m *machine) defaultInterface() (string, error) {
	best, name := uint64(1<<63), ""
	err4 := m.rows("proc/net/route", func(f []string) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			return
		}
		var metric uint64
		if _, err := fmt.Sscan(f[6], &metric); err == nil && metric < best {
			best, name = metric, f[0]
		}
	})
	if name != "" {
		return name, nil
	}
	err6 := m.rows("proc/net/ipv6_route", func(f []string) {
		// destination, its prefix length, source, its length, next hop, metric, …, device
		if len(f) < 10 || strings.Trim(f[0], "0") != "" || f[1] != "00" || f[9] == "lo" {
			return
		}
		if b, err := hex.DecodeString(f[5]); err == nil && len(b) == 4 {
			if metric := uint64(binary.BigEndian.Uint32(b)); metric < best {
				best, name = metric, f[9]
			}
		}
	})
	if name != "" {
		return name, nil
	}
	return "", errors.Join(errors.New("there is no default route"), err4, err6)
}

func (m *machine) rows(file string, row func(fields []string)) error {
	f, err := os.Open(m.path(file))
	if err != nil {
		return err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		row(strings.Fields(sc.Text()))
	}
	return sc.Err()
}
