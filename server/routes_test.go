package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

func TestParseTarget(t *testing.T) {
	ip := netip.MustParseAddr
	for _, tc := range []struct {
		in   string
		want target
	}{
		{"node-1:10250", target{node: "node-1", addr: "node-1:10250"}},
		{"a.b.c:1", target{node: "a.b.c", addr: "a.b.c:1"}},
		{"10.0.0.7:8080", target{ip: ip("10.0.0.7"), addr: "10.0.0.7:8080"}},
		{"[fd00::7]:80", target{ip: ip("fd00::7"), addr: "[fd00::7]:80"}},
		{"[::ffff:10.0.0.7]:80", target{ip: ip("10.0.0.7"), addr: "[::ffff:10.0.0.7]:80"}},
		{"10.0.0.7%node-1:8080", target{node: "node-1", addr: "10.0.0.7:8080"}},
		{"[fd00::7%node-1]:80", target{node: "node-1", addr: "[fd00::7]:80"}},
		{"[fe80::1%eth0%node-1]:80", target{node: "node-1", addr: "[fe80::1%eth0]:80"}},
		{"db.internal%node-1:5432", target{node: "node-1", addr: "db.internal:5432"}},
		{"localhost%node-1:65535", target{node: "node-1", addr: "localhost:65535"}},
	} {
		got, err := parseTarget("tcp", tc.in)
		if err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v; want %+v", tc.in, got, err, tc.want)
		}
	}
	for _, in := range []string{
		"", ":", "node-1", "node-1:", ":80", "node-1:0", "node-1:65536", "node-1:http", "node-1:-1", "node-1:+1", "a:b:80",
		"Node-1:80", "node_1:80", "-a:80", "10.0.0.7%:80", "%node-1:80", "10.0.0.7%Node:80", "fd00::7:80", "x y:80",
		strings.Repeat("a", 700) + ":80",
	} {
		if got, err := parseTarget("tcp", in); !errors.Is(err, tunnel.Invalid) {
			t.Errorf("%q: %+v, %v", in, got, err)
		} else if len(err.Error()) > 800 {
			t.Errorf("%q: an error of %d bytes", in[:10], len(err.Error()))
		}
	}
	if _, err := parseTarget("udp", "node-1:53"); !errors.Is(err, tunnel.Invalid) {
		t.Errorf("udp: %v", err)
	}
}

// A target that parses has exactly one route, and the agent's address parses as HOST:PORT.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{"node-1:10250", "10.0.0.7%node-1:80", "[fe80::1%eth0%n]:1", "[::1]:80", "%:1", "a%b%c:2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseTarget("tcp", s)
		if err != nil {
			if !errors.Is(err, tunnel.Invalid) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if (got.node == "") == (got.ip == netip.Addr{}) {
			t.Fatalf("%+v", got)
		}
		host, _, err := net.SplitHostPort(got.addr)
		if err != nil || host == "" {
			t.Fatalf("%q: agent is to dial %q: %v", s, got.addr, err)
		}
	})
}

func prefixes(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		if !strings.Contains(p, "/") {
			a := netip.MustParseAddr(p)
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestRoutes(t *testing.T) {
	var r routes
	find := func(ip string) string { return strings.Join(r.find(netip.MustParseAddr(ip)), " ") }
	check := func(when string, want map[string]string) {
		t.Helper()
		for ip, nodes := range want {
			if got := find(ip); got != nodes {
				t.Errorf("%s: %s leads to %q, want %q", when, ip, got, nodes)
			}
		}
	}
	check("empty", map[string]string{"10.0.0.1": ""})
	r.set("a", prefixes("10.0.0.1", "10.244.1.0/24", "fd00::1", "10.0.0.1"))
	r.set("b", prefixes("10.0.0.2", "10.244.2.0/24", "10.244.1.7"))
	r.set("c", prefixes("10.0.0.1", "::ffff:10.9.0.0/112"))
	check("set", map[string]string{
		"10.0.0.1": "a c", "10.0.0.2": "b", "10.244.1.9": "a", "10.244.1.7": "a b", "10.244.2.9": "b",
		"fd00::1": "a", "10.9.3.4": "c", "10.3.0.1": "", "::1": "",
	})
	r.set("c", prefixes("10.0.0.3"))
	check("c moved", map[string]string{"10.0.0.1": "a", "10.9.3.4": "", "10.0.0.3": "c"})
	r.set("a", prefixes("10.244.1.0/24", "10.244.1.3"))
	check("its own range and address", map[string]string{"10.244.1.3": "a"})
	r.set("a", nil)
	r.set("b", nil)
	r.set("c", nil)
	r.set("never seen", nil)
	check("all gone", map[string]string{"10.0.0.1": "", "10.244.1.7": "", "10.0.0.3": ""})
	if len(r.byNode)+len(r.claims)+len(r.bits) != 0 {
		t.Errorf("left behind: %v, %v, %v", r.byNode, r.claims, r.bits)
	}
	r.set("default", prefixes("0.0.0.0/0", "::/0"))
	check("default route", map[string]string{"8.8.8.8": "default", "2001:db8::1": "default"})
}

func TestResolve(t *testing.T) {
	var r routes
	for i := range 1000 {
		r.set(fmt.Sprintf("node-%d", i), prefixes("192.168.1.10"))
	}
	r.set("alone", prefixes("10.0.0.1"))
	for _, tc := range []struct {
		addr, node, dial string
		code             tunnel.Code
	}{
		{"10.0.0.1:80", "alone", "10.0.0.1:80", 0},
		{"192.168.1.10:80", "", "", tunnel.Ambiguous},
		{"192.168.1.10%node-7:80", "node-7", "192.168.1.10:80", 0},
		{"node-7:10250", "node-7", "node-7:10250", 0},
		{"10.0.0.2:80", "", "", tunnel.NoNode},
		{"nonsense", "", "", tunnel.Invalid},
	} {
		node, dial, err := r.resolve("tcp", tc.addr)
		if node != tc.node || dial != tc.dial || tunnel.CodeOf(err) != tc.code {
			t.Errorf("%s: %q, %q, %v", tc.addr, node, dial, err)
		}
	}
}
