package nodeipam

// What is wrong with a Config, by the names of the flags, and the pools that a
// good one makes.

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// maxBits bounds how much longer than the cluster's prefix that of a block may
// be, and with it the number of blocks: 65,536.
const maxBits = 16

// Check returns what is wrong with the part of c that is about addresses, in one
// line that names the flag and says what would do.
func (c *Config) Check() error {
	_, err := c.pools()
	return err
}

// pools returns a pool for each of the cluster's ranges, none if nothing is to be
// allocated.
func (c *Config) pools() ([]*pool, error) {
	ranges, err := c.ranges()
	if err != nil {
		return nil, err
	}
	services, err := c.services()
	if err != nil || !c.Allocate {
		return nil, err
	}
	if err := c.unambiguous(ranges); err != nil {
		return nil, err
	}
	out := make([]*pool, 0, len(ranges))
	for _, all := range ranges {
		flag, bits := c.maskSize(all, len(ranges) > 1)
		if err := fits(all, flag, bits); err != nil {
			return nil, err
		}
		p := newPool(all, bits)
		for _, s := range services {
			p.hold(s)
		}
		if p.taken == len(p.users) {
			return nil, fmt.Errorf("--service-cluster-ip-range %s leaves no block of --cluster-cidr %s for nodes: choose ranges that have no address in common", c.ServiceCIDR, all)
		}
		out = append(out, p)
	}
	return out, nil
}

// ranges returns the cluster's ranges. They may be said, and are then checked,
// also where somebody else allocates from them.
func (c *Config) ranges() ([]netip.Prefix, error) {
	if c.ClusterCIDR == "" {
		if c.Allocate {
			return nil, errors.New("--allocate-node-cidrs needs --cluster-cidr, such as 10.244.0.0/16")
		}
		return nil, nil
	}
	ranges, err := parseRanges("--cluster-cidr", c.ClusterCIDR)
	if err != nil {
		return nil, err
	}
	if len(ranges) > 2 || len(ranges) == 2 && ranges[0].Addr().Is4() == ranges[1].Addr().Is4() {
		return nil, fmt.Errorf("--cluster-cidr %s: want one range, or one of IPv4 and one of IPv6", c.ClusterCIDR)
	}
	return ranges, nil
}

// parseRanges reads ranges with commas between them. Bits beyond the prefix are
// cleared.
func parseRanges(flag, text string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%s %q: %q is not a range such as 10.244.0.0/16 or fd00:10::/56", flag, text, part)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// services returns the ranges of services, none if they are not known.
func (c *Config) services() ([]netip.Prefix, error) {
	if c.ServiceCIDR == "" || c.ClusterCIDR == "" {
		return nil, nil
	}
	return parseRanges("--service-cluster-ip-range", c.ServiceCIDR)
}

// unambiguous checks that the flags for the size of a block are those that the
// cluster's families ask for.
func (c *Config) unambiguous(ranges []netip.Prefix) error {
	four, six := c.MaskSizeIPv4 != 0, c.MaskSizeIPv6 != 0
	switch {
	case len(ranges) > 1 && c.MaskSize != 0:
		return errors.New("--node-cidr-mask-size does not say which of the two ranges of --cluster-cidr is meant: use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6")
	case len(ranges) > 1:
		return nil
	case c.MaskSize != 0 && (four || six):
		return errors.New("--node-cidr-mask-size and --node-cidr-mask-size-ipv4 or -ipv6 say the same thing: use one of them")
	case four && !ranges[0].Addr().Is4():
		return fmt.Errorf("--node-cidr-mask-size-ipv4 is of no use with --cluster-cidr %s, which is IPv6: use --node-cidr-mask-size-ipv6", ranges[0])
	case six && ranges[0].Addr().Is4():
		return fmt.Errorf("--node-cidr-mask-size-ipv6 is of no use with --cluster-cidr %s, which is IPv4: use --node-cidr-mask-size-ipv4", ranges[0])
	}
	return nil
}

// maskSize returns the length of the prefix of a block of all, and the flag that
// sets it.
func (c *Config) maskSize(all netip.Prefix, dual bool) (flag string, bits int) {
	flag, bits = "--node-cidr-mask-size-ipv6", c.MaskSizeIPv6
	otherwise := DefaultMaskSizeIPv6
	if all.Addr().Is4() {
		flag, bits, otherwise = "--node-cidr-mask-size-ipv4", c.MaskSizeIPv4, DefaultMaskSizeIPv4
	}
	if !dual && bits == 0 {
		flag, bits = "--node-cidr-mask-size", c.MaskSize
	}
	if bits == 0 {
		bits = otherwise
	}
	return flag, bits
}

// fits checks that all can be cut into blocks, and into not too many.
func fits(all netip.Prefix, flag string, bits int) error {
	least, most := all.Bits(), min(all.Bits()+maxBits, all.Addr().BitLen())
	switch {
	case bits < least:
		return fmt.Errorf("%s %d: --cluster-cidr %s is smaller than what one node would get: want %s between %d and %d, or a larger range", flag, bits, all, flag, least, most)
	case bits > most:
		return fmt.Errorf("%s %d: --cluster-cidr %s cannot be cut into blocks that small: want %s between %d and %d", flag, bits, all, flag, least, most)
	}
	return nil
}
