// Census: how many strangers come from each address.

package strangers

import (
	"net"
	"net/netip"
)

// A Source is where connections come from: an IPv4 address, or an IPv6 /64, which is
// what one host may have to itself. Addresses of other kinds are all one source.
type Source struct{ prefix netip.Prefix }

// SourceOf is the source that a remote address is of.
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

// A Census counts connections by source, where there is room for a limited number of
// them. Its zero value has counted none. It has no lock.
type Census struct{ counts map[Source]int }

// Add counts one more of s.
func (c *Census) Add(s Source) {
	if c.counts == nil {
		c.counts = make(map[Source]int)
	}
	c.counts[s]++
}

// Remove counts one less of s.
func (c *Census) Remove(s Source) {
	if c.counts[s]--; c.counts[s] <= 0 {
		delete(c.counts, s)
	}
}

// Of is how many there are of s.
func (c *Census) Of(s Source) int { return c.counts[s] }

// Yields says which source is to give up one of limit places to a newcomer: its own
// if that has its share already, else the one that has most. So one source alone
// never keeps the others out, and may have all places that nobody else wants.
func (c *Census) Yields(newcomer Source, limit int) Source {
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
