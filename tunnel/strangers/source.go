// Source: where connections come from, and how many come from each source.

package strangers

import (
	"net"
	"net/netip"
)

// A Source is an IPv4 address, or an IPv6 /64, since one host may have all of that.
// Addresses of other kinds are one source together.
type Source struct{ prefix netip.Prefix }

// SourceOf is the source of a remote address.
func SourceOf(a net.Addr) Source {
	of, ok := a.(interface{ AddrPort() netip.AddrPort }) // *net.TCPAddr and *net.UDPAddr
	if !ok {
		return Source{}
	}
	ip := of.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	p, _ := ip.Prefix(bits) // zero of no address at all
	return Source{p}
}

// A SourceCounts counts connections by source, and chooses which source gives up a place
// when there are too many. The zero value is empty. It has no lock.
type SourceCounts struct{ counts map[Source]int }

// Add counts one more of s.
func (c *SourceCounts) Add(s Source) {
	if c.counts == nil {
		c.counts = make(map[Source]int)
	}
	c.counts[s]++
}

// Remove counts one less of s.
func (c *SourceCounts) Remove(s Source) {
	if c.counts[s]--; c.counts[s] <= 0 {
		delete(c.counts, s)
	}
}

// Of is the count of s.
func (c *SourceCounts) Of(s Source) int { return c.counts[s] }

// Yields is the source that gives up one of limit places to a newcomer: the newcomer's own
// if that has its share already, else the one with the most places.
func (c *SourceCounts) Yields(newcomer Source, limit int) Source {
	if n := c.counts[newcomer]; n > 0 && n >= limit/len(c.counts) {
		return newcomer
	}
	most, of := 0, newcomer
	for s, n := range c.counts {
		if n > most {
			most, of = n, s
		}
	}
	return of
}
