// Numbers that are given out once each: addresses and ports of services.

package apiserver

import (
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// A pool gives out the values at(0), at(1), … of a finite range. It is not safe
// for use by several goroutines at once.
type pool[T comparable] struct {
	at    func(i int) (T, bool) // false beyond the end
	size  int
	taken map[T]struct{}
}

// maxPool bounds how much of a large range is handed out by itself.
const maxPool = 1 << 16

func newPool[T comparable](at func(i int) (T, bool)) *pool[T] {
	p := &pool[T]{at: at, taken: make(map[T]struct{})}
	lo, hi := 0, maxPool // the size is in [lo, hi]
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if _, ok := at(mid - 1); ok {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	p.size = lo
	return p
}

// any takes some free value. It starts at random so that a number just given
// back is not given out again at once, while others may still remember it.
func (p *pool[T]) any() (T, bool) {
	var none T
	if p.size == 0 {
		return none, false
	}
	start := rand.IntN(p.size)
	for i := range p.size {
		v, _ := p.at((start + i) % p.size)
		if p.take(v) {
			return v, true
		}
	}
	return none, false
}

// take takes v and reports whether it was free.
func (p *pool[T]) take(v T) bool {
	if _, ok := p.taken[v]; ok {
		return false
	}
	p.taken[v] = struct{}{}
	return true
}

func (p *pool[T]) release(v T) { delete(p.taken, v) }

// hostAddr is the i-th address of prefix, counted from that of the network, if a host can have it.
func hostAddr(prefix netip.Prefix, i int) (netip.Addr, bool) {
	base := prefix.Masked().Addr()
	n := new(big.Int).SetBytes(base.AsSlice())
	n.Add(n, big.NewInt(int64(i)))
	raw := n.Bytes()
	if len(raw) > base.BitLen()/8 {
		return netip.Addr{}, false
	}
	buf := make([]byte, base.BitLen()/8)
	copy(buf[len(buf)-len(raw):], raw)
	a, _ := netip.AddrFromSlice(buf)
	if !isHost(prefix, a) {
		return netip.Addr{}, false
	}
	return a, true
}

// isHost tells whether a is an address of prefix that a host can have: not that of the network,
// and not the last one of an IPv4 range, which is for broadcasts.
func isHost(prefix netip.Prefix, a netip.Addr) bool {
	return prefix.Contains(a) && a != prefix.Masked().Addr() && (!a.Is4() || prefix.Contains(a.Next()))
}

// held is what one service has of the pools.
type held struct {
	ips   []netip.Addr
	ports []int32
}

func (h held) hasIP(ip netip.Addr) bool { return slices.Contains(h.ips, ip) }
func (h held) hasPort(p int32) bool     { return slices.Contains(h.ports, p) }

// without is what h has and o has not.
func (h held) without(o held) held {
	h.ips = slices.DeleteFunc(slices.Clone(h.ips), o.hasIP)
	h.ports = slices.DeleteFunc(slices.Clone(h.ports), o.hasPort)
	return h
}

func holdings(s *corev1.Service) held {
	var h held
	for _, text := range s.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil {
			h.ips = append(h.ips, ip)
		}
	}
	add := func(p int32) {
		if p != 0 && !h.hasPort(p) {
			h.ports = append(h.ports, p)
		}
	}
	for _, p := range s.Spec.Ports {
		add(p.NodePort)
	}
	add(s.Spec.HealthCheckNodePort)
	return h
}
