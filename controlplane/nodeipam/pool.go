package nodeipam

// The blocks of one range.

import "net/netip"

// A pool is a range of addresses, cut into blocks of one size, and how many nodes
// hold each.
type pool struct {
	all  netip.Prefix // without bits beyond its prefix
	bits int          // length of the prefix of a block: at most maxBits more than that of all

	users []uint32 // by block: how many holdings cover it
	taken int      // blocks that have users
	next  int      // where to look first for a free block
}

func newPool(all netip.Prefix, bits int) *pool {
	return &pool{all: all, bits: bits, users: make([]uint32, 1<<(bits-all.Bits()))}
}

// block returns the block at i: the prefix of all, then i, then zeros.
func (p *pool) block(i int) netip.Prefix {
	addr := p.all.Addr().AsSlice()
	for at := p.bits - 1; i != 0; at-- {
		if i&1 != 0 {
			addr[at/8] |= 0x80 >> (at % 8)
		}
		i >>= 1
	}
	a, _ := netip.AddrFromSlice(addr)
	return netip.PrefixFrom(a, p.bits)
}

// index returns which block an address of the range is in.
func (p *pool) index(a netip.Addr) int {
	addr, i := a.AsSlice(), 0
	for at := p.all.Bits(); at < p.bits; at++ {
		i <<= 1
		if addr[at/8]&(0x80>>(at%8)) != 0 {
			i |= 1
		}
	}
	return i
}

// part tells whether a node can hold c: it lies in the range, and leaves something
// to others unless there is one block only.
func (p *pool) part(c netip.Prefix) bool {
	return p.all.Overlaps(c) && (c.Bits() > p.all.Bits() || c.Bits() == p.all.Bits() && len(p.users) == 1)
}

// span returns the blocks, first to last, that have addresses in common with c.
func (p *pool) span(c netip.Prefix) (first, last int, ok bool) {
	switch {
	case !p.all.Overlaps(c):
		return 0, 0, false
	case c.Bits() <= p.all.Bits():
		return 0, len(p.users) - 1, true
	}
	first = p.index(c.Masked().Addr())
	if c.Bits() >= p.bits {
		return first, first, true
	}
	return first, first + 1<<(p.bits-c.Bits()) - 1, true
}

// take makes the next free block used and returns it. tries is how many used
// ones it came across. It goes round: a block that was given back is given away
// again as late as possible.
func (p *pool) take() (c netip.Prefix, tries int, ok bool) {
	if p.taken == len(p.users) {
		return netip.Prefix{}, len(p.users), false
	}
	for tries = range p.users {
		i := (p.next + tries) % len(p.users)
		if p.users[i] == 0 {
			p.users[i], p.next = 1, (i+1)%len(p.users)
			p.taken++
			return p.block(i), tries, true
		}
	}
	panic("a pool has lost count")
}

// hold makes the blocks that c covers used, or used once more. It returns how
// many became used and whether c covers one that was.
func (p *pool) hold(c netip.Prefix) (fresh int, shared bool) {
	first, last, ok := p.span(c)
	for i := first; ok && i <= last; i++ {
		if p.users[i] == 0 {
			fresh++
		} else {
			shared = true
		}
		p.users[i]++
	}
	p.taken += fresh
	return fresh, shared
}

// release takes back what take returned or hold was given, and returns how many
// blocks became free.
func (p *pool) release(c netip.Prefix) (free int) {
	first, last, ok := p.span(c)
	for i := first; ok && i <= last; i++ {
		if p.users[i]--; p.users[i] == 0 {
			free++
		}
	}
	p.taken -= free
	return free
}
