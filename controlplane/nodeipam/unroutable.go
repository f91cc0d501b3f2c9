package nodeipam

// Ranges to which no hub leads, whatever else a cluster has.

import (
	"net/netip"
	"slices"
)

// everywhere are ranges that mean the same machine, or none, wherever one is.
var everywhere = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"), netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// Unroutable says why no hub leads to c, wherever the ranges of pods and services are; it
// is empty if one may.
func Unroutable(c netip.Prefix) string {
	switch {
	case c.Addr().Is4In6():
		return "is an IPv4 range in IPv6"
	case slices.ContainsFunc(everywhere, c.Overlaps):
		return "holds addresses that are no one machine's"
	}
	return ""
}
