package nodeipam

// Tests of what is refused, by the name of the flag.

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name  string
		c     Config
		pools string // what comes of it
		err   string // or how the error begins
	}{
		{"off", Config{MaskSize: -1}, "[]", ""},
		{"off, with a range", Config{ClusterCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/12", MaskSize: -1}, "[]", ""},
		{"off, nonsense", Config{ClusterCIDR: "nonsense"}, "", `--cluster-cidr "nonsense": `},
		{"off, services within", Config{ClusterCIDR: "10.0.0.0/8", ServiceCIDR: "10.96.0.0/12"}, "[]", ""},
		{"no range", Config{}, "", "--allocate-node-cidrs needs --cluster-cidr"},
		{"default", Config{ClusterCIDR: "10.244.0.0/16"}, "[10.244.0.0/16-24]", ""},
		{"default of IPv6", Config{ClusterCIDR: "fd00:10::/48"}, "[fd00:10::/48-64]", ""},
		{"bits beyond the prefix", Config{ClusterCIDR: "10.244.7.1/16"}, "[10.244.0.0/16-24]", ""},
		{"both", Config{ClusterCIDR: "10.244.0.0/16, fd00:10::/56"}, "[10.244.0.0/16-24 fd00:10::/56-64]", ""},
		{"the other way round", Config{ClusterCIDR: "fd00:10::/56,10.244.0.0/16", MaskSizeIPv4: 20, MaskSizeIPv6: 72}, "[fd00:10::/56-72 10.244.0.0/16-20]", ""},
		{"size", Config{ClusterCIDR: "10.244.0.0/16", MaskSize: 26}, "[10.244.0.0/16-26]", ""},
		{"size of IPv4", Config{ClusterCIDR: "10.244.0.0/16", MaskSizeIPv4: 27}, "[10.244.0.0/16-27]", ""},
		{"size of IPv6", Config{ClusterCIDR: "fd00:10::/56", MaskSize: 60}, "[fd00:10::/56-60]", ""},
		{"size of IPv6 by its name", Config{ClusterCIDR: "fd00:10::/56", MaskSizeIPv6: 61}, "[fd00:10::/56-61]", ""},
		{"one block", Config{ClusterCIDR: "10.244.0.0/24"}, "[10.244.0.0/24-24]", ""},
		{"as many as can be", Config{ClusterCIDR: "10.244.0.0/16", MaskSize: 32}, "[10.244.0.0/16-32]", ""},
		{"services beside", Config{ClusterCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/12,fd00::/108"}, "[10.244.0.0/16-24]", ""},

		{"not a range", Config{ClusterCIDR: "10.244.0.0"}, "", `--cluster-cidr "10.244.0.0": "10.244.0.0" is not a range`},
		{"one is not a range", Config{ClusterCIDR: "10.244.0.0/16,"}, "", `--cluster-cidr "10.244.0.0/16,": "" is not a range`},
		{"IPv4 in IPv6", Config{ClusterCIDR: "::ffff:10.0.0.0/104"}, "", `--cluster-cidr "::ffff:10.0.0.0/104": `},
		{"zone", Config{ClusterCIDR: "fe80::%eth0/64"}, "", `--cluster-cidr "fe80::%eth0/64": `},
		{"two of a family", Config{ClusterCIDR: "10.0.0.0/16,10.1.0.0/16"}, "", "--cluster-cidr 10.0.0.0/16,10.1.0.0/16: want one range, or one of IPv4 and one of IPv6"},
		{"three", Config{ClusterCIDR: "10.0.0.0/16,fd00::/56,fd01::/56"}, "", "--cluster-cidr 10.0.0.0/16,fd00::/56,fd01::/56: want one"},
		{"too small", Config{ClusterCIDR: "10.0.0.0/26"}, "", "--node-cidr-mask-size 24: --cluster-cidr 10.0.0.0/26 is smaller than what one node would get: want --node-cidr-mask-size between 26 and 32"},
		{"too small for what was asked", Config{ClusterCIDR: "10.0.0.0/16", MaskSizeIPv4: 12}, "", "--node-cidr-mask-size-ipv4 12: --cluster-cidr 10.0.0.0/16 is smaller"},
		{"negative", Config{ClusterCIDR: "10.0.0.0/16", MaskSize: -1}, "", "--node-cidr-mask-size -1: "},
		{"too many", Config{ClusterCIDR: "10.0.0.0/8", MaskSize: 25}, "", "--node-cidr-mask-size 25: --cluster-cidr 10.0.0.0/8 cannot be cut into blocks that small: want --node-cidr-mask-size between 8 and 24"},
		{"too many of IPv6", Config{ClusterCIDR: "10.244.0.0/16,fd00::/40"}, "", "--node-cidr-mask-size-ipv6 64: --cluster-cidr fd00::/40 cannot be cut into blocks that small: want --node-cidr-mask-size-ipv6 between 40 and 56"},
		{"longer than an address", Config{ClusterCIDR: "10.0.0.0/24", MaskSize: 33}, "", "--node-cidr-mask-size 33: --cluster-cidr 10.0.0.0/24 cannot be cut into blocks that small: want --node-cidr-mask-size between 24 and 32"},
		{"one size for two", Config{ClusterCIDR: "10.0.0.0/16,fd00::/56", MaskSize: 24}, "", "--node-cidr-mask-size does not say which"},
		{"said twice", Config{ClusterCIDR: "10.0.0.0/16", MaskSize: 24, MaskSizeIPv4: 24}, "", "--node-cidr-mask-size and --node-cidr-mask-size-ipv4 or -ipv6 say the same thing"},
		{"IPv4 of IPv6", Config{ClusterCIDR: "fd00::/56", MaskSizeIPv4: 24}, "", "--node-cidr-mask-size-ipv4 is of no use with --cluster-cidr fd00::/56"},
		{"IPv6 of IPv4", Config{ClusterCIDR: "10.0.0.0/16", MaskSizeIPv6: 64}, "", "--node-cidr-mask-size-ipv6 is of no use with --cluster-cidr 10.0.0.0/16"},
		{"services within", Config{ClusterCIDR: "10.0.0.0/8", ServiceCIDR: "10.96.0.0/12"}, "[10.0.0.0/8-24 without 4096]", ""},
		{"services within a block", Config{ClusterCIDR: "10.0.0.0/16", ServiceCIDR: "10.0.7.64/26"}, "[10.0.0.0/16-24 without 1]", ""},
		{"services around", Config{ClusterCIDR: "10.96.0.0/16", ServiceCIDR: "10.96.0.0/12"}, "", "--service-cluster-ip-range 10.96.0.0/12 leaves no block of --cluster-cidr 10.96.0.0/16 for nodes"},
		{"services in the only block", Config{ClusterCIDR: "10.96.0.0/24", ServiceCIDR: "10.96.0.0/26"}, "", "--service-cluster-ip-range 10.96.0.0/26 leaves no block of --cluster-cidr 10.96.0.0/24 for nodes"},
		{"services of both families", Config{ClusterCIDR: "10.244.0.0/16,fd00::/56", ServiceCIDR: "10.96.0.0/12,fd00::/108"}, "[10.244.0.0/16-24 fd00::/56-64 without 1]", ""},
		{"services cannot be read", Config{ClusterCIDR: "10.244.0.0/16", ServiceCIDR: "10.96"}, "", `--service-cluster-ip-range "10.96": `},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.c.Allocate = !strings.HasPrefix(tc.name, "off")
			pools, err := tc.c.pools()
			if tc.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tc.err) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %v, want %s…", err, tc.err)
				}
				if _, err := New(loop.Deps{}, tc.c); err == nil {
					t.Error("New takes it")
				}
				return
			}
			var got []string
			for _, p := range pools {
				text := fmt.Sprintf("%s-%d", p.all, p.bits)
				if p.taken > 0 {
					text += fmt.Sprintf(" without %d", p.taken)
				}
				got = append(got, text)
			}
			if err != nil || fmt.Sprint(got) != tc.pools {
				t.Errorf("got %v, %v, want %s", got, err, tc.pools)
			}
		})
	}
}

// FuzzCheck: whatever the flags say, either it is refused in one line or what
// comes of it is blocks of the cluster's ranges that are no services'.
func FuzzCheck(f *testing.F) {
	f.Add("10.244.0.0/16", "10.96.0.0/12", 0, 0, 0)
	f.Add("10.244.0.0/16,fd00:10::/56", "fd00::/108", 0, 24, 64)
	f.Add("10.0.0.0/8", "10.0.0.0/12", 20, 0, 0)
	f.Add("0.0.0.0/0", "", 16, 0, 0)
	f.Add("::/0,255.255.255.255/32", "", 0, 32, 16)
	f.Fuzz(func(t *testing.T, cluster, services string, size, four, six int) {
		c := Config{Allocate: true, ClusterCIDR: cluster, ServiceCIDR: services, MaskSize: size, MaskSizeIPv4: four, MaskSizeIPv6: six}
		pools, err := c.pools()
		if err != nil {
			if len(pools) != 0 || strings.Count(err.Error(), "\n") > strings.Count(cluster+services, "\n") {
				t.Fatalf("%v with %q", pools, err)
			}
			return
		}
		if len(pools) < 1 || len(pools) > 2 {
			t.Fatalf("%d pools", len(pools))
		}
		for _, p := range pools {
			last := len(p.users) - 1
			if last >= 1<<maxBits {
				t.Fatalf("%d blocks", last+1)
			}
			for _, i := range []int{0, last / 2, last} {
				b := p.block(i)
				if !b.IsValid() || b != b.Masked() || !p.all.Contains(b.Addr()) || b.Bits() < p.all.Bits() || p.index(b.Addr()) != i {
					t.Fatalf("block %d of %v is %v", i, p.all, b)
				}
			}
			if services == "" {
				continue
			}
			s, err := parseRanges("", services)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range s {
				for range 3 {
					if b, _, ok := p.take(); ok && s.Overlaps(b) {
						t.Fatalf("%v is given away and overlaps %v", b, s)
					}
				}
			}
		}
	})
}
