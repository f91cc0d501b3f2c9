// Tests of the allowed targets of streams.

package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/hawser-project/hawser/tunnel"
)

func targets(t testing.TB, specs ...string) Targets {
	t.Helper()
	ts, err := ParseTargets(specs)
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

// TestDeniedSaysWhy: a port that a pod declares is not one of the node's loopback.
func TestDeniedSaysWhy(t *testing.T) {
	p := policy{node: "node-1", kubelet: true}
	for addr, want := range map[string]string{
		"node-1:8080":     "reached at the pods' addresses; --allow-target 127.0.0.1:8080",
		"127.0.0.1:8080":  "reached at the pods' addresses; --allow-target 127.0.0.1:8080",
		"192.0.2.1:8080":  "list it under the container's ports",
		"example.com:443": "--allow-target example.com:443",
	} {
		if _, err := p.decide("tcp", addr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", addr, err, want)
		}
	}
}

func TestDecide(t *testing.T) {
	pod, own := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("192.0.2.1")
	base := policy{
		node: "node-1", kubelet: true,
		own: func() []netip.Addr { return []netip.Addr{own} },
		// Pods of the process runtime have the node's addresses; loopback stays
		// closed even if it is reported as a pod's.
		pods: func(a netip.AddrPort) bool {
			ip := a.Addr()
			return a.Port() == 8080 && (ip == pod || ip == own) || ip.IsLoopback() || isMetadata(ip)
		},
	}
	const kubelet = "kubelet"
	for _, tc := range []struct {
		name  string
		allow string
		addr  string
		want  string // addresses, kubelet, or a code's text
	}{
		{"kubelet", "", "node-1:10250", kubelet},
		{"kubelet in capitals", "", "NODE-1.:10250", kubelet},
		{"kubelet by address", "", "192.0.2.1:10250", kubelet},
		{"kubelet by scoped address", "", "192.0.2.1%node-1:10250", kubelet},
		{"pod", "", "10.1.0.7:8080", "10.1.0.7:8080"},
		{"pod, mapped", "", "[::ffff:10.1.0.7]:8080", "10.1.0.7:8080"},
		{"pod scoped to this node", "", "10.1.0.7%node-1:8080", "10.1.0.7:8080"},
		{"pod that shares the node's address", "", "192.0.2.1%node-1:8080", "192.0.2.1:8080"},
		{"a port that no pod declares", "", "10.1.0.7:8081", tunnel.Denied.String()},
		{"a port of the node that no pod declares", "", "192.0.2.1:22", tunnel.Denied.String()},
		{"a port of the node that is allowed", "192.0.2.1:22", "192.0.2.1:22", "192.0.2.1:22"},
		{"pod scoped to another node", "", "10.1.0.7%node-2:8080", tunnel.Denied.String()},
		{"another node scoped to itself", "", "node-2%node-2:10250", tunnel.Denied.String()},
		{"the node scoped to itself", "", "node-1%node-1:10250", kubelet},
		{"neither", "", "10.1.0.8:8080", tunnel.Denied.String()},
		{"another node", "", "node-2:10250", tunnel.Denied.String()},
		{"loopback port by name", "", "node-1:8080", tunnel.Denied.String()},
		{"loopback by address", "", "127.0.0.1:8080", tunnel.Denied.String()},
		{"loopback by other address", "127.0.0.1:*", "127.0.0.2:8080", tunnel.Denied.String()},
		{"localhost", "", "localhost:8080", tunnel.Denied.String()},
		{"loopback port allowed", "127.0.0.1:*", "node-1:8080", "127.0.0.1:8080"},
		{"other loopback port allowed", "127.0.0.1:81", "node-1:8080", tunnel.Denied.String()},
		{"both loopbacks allowed", "127.0.0.0/8,[::1]:8080", "node-1:8080", "127.0.0.1:8080 [::1]:8080"},
		{"localhost allowed", "localhost:8080", "node-1:8080", "127.0.0.1:8080 [::1]:8080"},
		{"node's name allowed", "node-1:8080", "node-1:8080", "127.0.0.1:8080 [::1]:8080"},
		{"loopback under everything", "0.0.0.0/0,::/0", "127.0.0.1:8080", tunnel.Denied.String()},
		{"loopback 6 under everything", "0.0.0.0/0,::/0", "[::1]:8080", tunnel.Denied.String()},
		{"range", "10.0.0.0/8", "10.200.0.1:1", "10.200.0.1:1"},
		{"out of range", "10.0.0.0/8", "11.0.0.1:1", tunnel.Denied.String()},
		{"address and port", "192.0.2.9:443", "192.0.2.9:443", "192.0.2.9:443"},
		{"address and other port", "192.0.2.9:443", "192.0.2.9:80", tunnel.Denied.String()},
		{"IPv6", "fd00::/8", "[fd00::1%node-1]:80", "[fd00::1]:80"},
		{"name", "db.internal:5432", "DB.internal:5432", "db.internal:5432"},
		{"name, any port", "db.internal:*", "db.internal:1", "db.internal:1"},
		{"other name", "db.internal:5432", "db2.internal:5432", tunnel.Denied.String()},
		{"metadata, though a pod's", "", "169.254.169.254:80", tunnel.Denied.String()},
		{"metadata under a range", "169.254.0.0/16,0.0.0.0/0", "169.254.169.254:80", tunnel.Denied.String()},
		{"metadata named", "169.254.169.254:80", "169.254.169.254:80", "169.254.169.254:80"},
		{"metadata named with another port", "169.254.169.254:80", "169.254.169.254:81", tunnel.Denied.String()},
		{"metadata named as a range of one", "169.254.169.254/32", "169.254.169.254:80", "169.254.169.254:80"},
		{"metadata 6", "::/0", "[fd00:ec2::254]:80", tunnel.Denied.String()},
		{"metadata, mapped", "::/0,0.0.0.0/0", "[::ffff:169.254.169.254]:80", tunnel.Denied.String()},
		{"metadata, translated", "::/0", "[64:ff9b::a9fe:a9fe]:80", tunnel.Denied.String()},
		{"metadata scoped to this node", "0.0.0.0/0", "169.254.169.254%node-1:80", tunnel.Denied.String()},
		{"metadata, 6to4", "::/0", "[2002:a9fe:a9fe::1]:80", tunnel.Denied.String()},
		{"metadata, Teredo", "::/0", "[2001:0:1:2:3:4:5601:5601]:80", tunnel.Denied.String()},
		{"metadata, compatible", "::/0", "[::a9fe:a9fe]:80", tunnel.Denied.String()},
		{"metadata, ISATAP", "::/0", "[2001:db8::5efe:a9fe:a9fe]:80", tunnel.Denied.String()},
		{"metadata, translated locally", "::/0", "[64:ff9b:1::a9fe:a9fe]:80", tunnel.Denied.String()},
		{"loopback, translated", "::/0", "[64:ff9b::7f00:1]:80", tunnel.Denied.String()},
		{"loopback, 6to4", "::/0", "[2002:7f00:1::1]:80", tunnel.Denied.String()},
		{"unspecified, translated", "::/0", "[64:ff9b::]:80", tunnel.Denied.String()},
		{"broadcast", "0.0.0.0/0", "255.255.255.255:80", tunnel.Denied.String()},
		{"unspecified", "0.0.0.0/0", "0.0.0.0:80", tunnel.Denied.String()},
		{"unspecified 6", "::/0", "[::]:80", tunnel.Denied.String()},
		{"multicast", "0.0.0.0/0", "224.0.0.1:80", tunnel.Denied.String()},
		{"link-local with zone", "fe80::/10", "[fe80::1%eth0%node-1]:80", tunnel.Denied.String()},
		{"no port", "", "node-1", tunnel.Invalid.String()},
		{"port 0", "", "node-1:0", tunnel.Invalid.String()},
		{"port too large", "", "node-1:65536", tunnel.Invalid.String()},
		{"port by name", "", "node-1:http", tunnel.Invalid.String()},
		{"no host", "", ":80", tunnel.Invalid.String()},
		{"nothing before the zone", "0.0.0.0/0", "%node-1:80", tunnel.Denied.String()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := base
			p.allow = targets(t, tc.allow)
			v, err := p.decide("tcp", tc.addr)
			got := strings.Join(v.addrs, " ")
			switch {
			case err != nil:
				got = tunnel.CodeOf(err).String()
			case v.kubelet:
				got += kubelet
			}
			if got != tc.want {
				t.Errorf("decide(%q) with %q = %q (%v), want %q", tc.addr, tc.allow, got, err, tc.want)
			}
		})
	}
	if _, err := base.decide("udp", "10.1.0.7:53"); !errors.Is(err, tunnel.Invalid) {
		t.Errorf("udp: %v, want Invalid", err)
	}
}

// TestDeniedNamesRemedy: the remedy in the error must work.
func TestDeniedNamesRemedy(t *testing.T) {
	for _, addr := range []string{"node-1:8080", "10.9.9.9:80", "[fd00::9]:80", "db.internal:5432", "169.254.169.254:80", "127.0.0.1:22"} {
		p := policy{node: "node-1"}
		_, err := p.decide("tcp", addr)
		if err == nil {
			t.Fatalf("%s is not denied", addr)
		}
		_, rest, ok := strings.Cut(err.Error(), "--allow-target ")
		if !ok {
			t.Fatalf("no remedy in %q", err)
		}
		p.allow = targets(t, strings.Fields(rest)[0])
		if v, err := p.decide("tcp", addr); err != nil || len(v.addrs) == 0 {
			t.Errorf("with the advice for %s followed: %v, %v", addr, v, err)
		}
	}
}

func TestNoKubelet(t *testing.T) {
	p := policy{node: "node-1"}
	if _, err := p.decide("tcp", "node-1:10250"); !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), "--kubelet none") {
		t.Errorf("without a kubelet: %v, want Denied and why", err)
	}
	p.kubelet = true
	p.node = "10.0.0.1" // a DNS subdomain, if an odd one
	if v, err := p.decide("tcp", "10.0.0.1:10250"); err != nil || !v.kubelet {
		t.Errorf("node that is called like an address: %v, %v", v, err)
	}
}

// A kubelet in another process is reached at its port, by the node's name and its addresses.
func TestKubeletOutside(t *testing.T) {
	p := policy{
		node: "node-1", outside: netip.MustParseAddrPort("127.0.0.1:34567"),
		own: func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.1")} },
	}
	for addr, want := range map[string]string{
		"node-1:10250":           "127.0.0.1:34567",
		"node-1:34567":           "127.0.0.1:34567",
		"192.0.2.1%node-1:10250": "127.0.0.1:34567",
		"192.0.2.1:34567":        "127.0.0.1:34567",
		"node-1:34568":           "",
		"192.0.2.1:22":           "",
		"127.0.0.1:34567":        "",
		"node-2:10250":           "",
	} {
		v, err := p.decide("tcp", addr)
		if want == "" {
			if !errors.Is(err, tunnel.Denied) {
				t.Errorf("%s: %+v, %v, want Denied", addr, v, err)
			}
			continue
		}
		if err != nil || v.kubelet || len(v.addrs) != 1 || v.addrs[0] != want || v.within == 0 {
			t.Errorf("%s: %+v, %v, want %s", addr, v, err, want)
		}
	}
}

func TestCheckResolved(t *testing.T) {
	p := policy{
		node: "node-1", allow: targets(t, "db.internal:*", "localhost:*", "169.254.169.254:81", "127.0.0.1:81", "169.254.7.0/24", "[64:ff9b::7f00:1]:81"),
		own:  func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.1")} },
		pods: func(a netip.AddrPort) bool { return a.Port() == 8080 },
	}
	for resolved, want := range map[string]tunnel.Code{
		"192.0.2.7:80":                0,
		"169.254.169.254:80":          tunnel.Denied,
		"169.254.169.254:81":          0,
		"[::ffff:169.254.169.254]:80": tunnel.Denied,
		"[64:ff9b::a9fe:a9fe]:80":     tunnel.Denied,
		"127.0.0.1:80":                tunnel.Denied,
		"127.9.9.9:80":                tunnel.Denied,
		"127.0.0.1:81":                0, // an entry of its own
		"[::1]:80":                    tunnel.Denied,
		"[::ffff:127.0.0.1]:80":       tunnel.Denied,
		"[64:ff9b::7f00:1]:80":        tunnel.Denied,
		"[64:ff9b::7f00:1]:81":        0, // likewise
		"[64:ff9b::c000:207]:80":      0,
		"[2002:7f00:1::]:80":          tunnel.Denied,
		"[2002:a9fe:a9fe::]:80":       tunnel.Denied,
		"0.0.0.0:80":                  tunnel.Denied,
		"[::]:80":                     tunnel.Denied,
		"224.0.0.1:80":                tunnel.Denied,
		"[ff02::1]:80":                tunnel.Denied,
		"255.255.255.255:80":          tunnel.Denied,
		"169.254.1.1:80":              tunnel.Denied,
		"169.254.7.1:80":              0, // likewise
		"[fe80::1%eth0]:80":           tunnel.Denied,
		"[fd00:ec2::254]:80":          tunnel.Denied,
		"100.100.100.200:80":          tunnel.Denied,
		"168.63.129.16:80":            tunnel.Denied,
		"10.0.0.1:80":                 0,
		"[fd00::1]:80":                0,
		"192.0.2.1:22":                tunnel.Denied,
		"[::ffff:192.0.2.1]:22":       tunnel.Denied,
		"[64:ff9b::c000:201]:22":      tunnel.Denied,
		"192.0.2.1:8080":              0, // a pod declares it
		"nonsense":                    tunnel.Invalid,
	} {
		if got := tunnel.CodeOf(p.checkResolved("db.internal:80", resolved)); got != want {
			t.Errorf("a name that leads to %s: %v, want %v", resolved, got, want)
		}
	}
	for _, addr := range []string{"127.0.0.1:80", "localhost:80", "db.localhost:80", "LOCALHOST.:80"} { // already decided
		if err := p.checkResolved(addr, "127.0.0.1:80"); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// A name that resolves to loopback is refused, although its first address is allowed, or
// was allowed at an earlier lookup.
func TestNameThatLeadsHome(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	p := policy{node: "node-1", allow: targets(t, "db.internal:*"), resolver: loopbackResolver()}
	if c, err := p.dial(t.Context(), "tcp", "db.internal:"+port); !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), "127.0.0.1, a loopback address") {
		t.Errorf("connected: %v, %v", c, err)
	}
	p.allow = targets(t, "db.internal:*", l.Addr().String())
	c, err := p.dial(t.Context(), "tcp", "db.internal:"+port)
	if err != nil {
		t.Fatalf("with an entry for the address as well: %v", err)
	}
	_ = c.Close()
}

// loopbackResolver answers that every name is 127.0.0.1.
func loopbackResolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe() // no PacketConn: each message is preceded by its length
		go func() {
			defer far.Close()
			var size [2]byte
			if _, err := io.ReadFull(far, size[:]); err != nil {
				return
			}
			q := make([]byte, binary.BigEndian.Uint16(size[:]))
			if _, err := io.ReadFull(far, q); err != nil {
				return
			}
			var m dnsmessage.Message
			if err := m.Unpack(q); err != nil || len(m.Questions) != 1 {
				return
			}
			m.Response, m.Additionals = true, nil
			if m.Questions[0].Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
				}}
			}
			out, err := m.Pack()
			if err == nil {
				_, _ = far.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...))
			}
		}()
		return near, nil
	}}
}

func TestParseTargets(t *testing.T) {
	for _, tc := range []struct{ in, want, err string }{
		{"", "", ""},
		{" , ", "", ""},
		{"10.0.0.0/8, 127.0.0.1:*", "10.0.0.0/8,127.0.0.1:*", ""},
		{"[::1]:80,db:5432", "[::1]:80,db:5432", ""},
		{"10.0.0.0/33", "", "no CIDR"},
		{"10.0.0.0/8:80", "", "no CIDR"},
		{"::ffff:10.0.0.0/104", "", "IPv4-mapped"},
		{"10.0.0.1", "", "HOST:PORT"},
		{"::1", "", "HOST:PORT"},
		{":80", "", "HOST:PORT"},
		{"db:0", "", "port"},
		{"db:65536", "", "port"},
		{"db:", "", "port"},
		{"db:http", "", "port"},
		{"*:80", "", "neither"},
		{"[fe80::1%eth0]:80", "", "zone"},
		{strings.Repeat("a:1,", maxTargets+1), "", "more than"},
	} {
		got, err := ParseTargets([]string{tc.in})
		switch {
		case tc.err == "" && (err != nil || got.String() != tc.want):
			t.Errorf("ParseTargets(%q) = %q, %v, want %q", tc.in, got, err, tc.want)
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("ParseTargets(%.40q): error %v, want one with %q", tc.in, err, tc.err)
		}
	}
}

func FuzzTargets(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8,127.0.0.1:*", "[::1]:80", "db.internal:5432", "::ffff:1.2.3.4/96", "a%b:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ts, err := ParseTargets([]string{s})
		if err != nil {
			return
		}
		again, err := ParseTargets([]string{ts.String()})
		if err != nil || again.String() != ts.String() {
			t.Errorf("%q prints as %q, which parses as %q, %v", s, ts, again, err)
		}
	})
}

// FuzzDecide: for every address, an agent without targets dials only its pod, and one with
// every range dials no loopback and no metadata service.
func FuzzDecide(f *testing.F) {
	for _, s := range []string{
		"node-1:10250", "10.1.0.7%node-1:80", "[::ffff:a9fe:a9fe]:80", "[64:ff9b::a9fe:a9fe]:80", "0:80", "[::]:1", "127.1:80", "2130706433:80",
	} {
		f.Add(s)
	}
	pod := netip.MustParseAddr("10.1.0.7")
	closed := policy{node: "node-1", kubelet: true, pods: func(a netip.AddrPort) bool { return a.Addr() == pod }}
	open := closed
	open.allow = targets(f, "0.0.0.0/0,::/0")
	f.Fuzz(func(t *testing.T, addr string) {
		if v, err := closed.decide("tcp", addr); err == nil && !v.kubelet {
			for _, a := range v.addrs {
				if netip.MustParseAddrPort(a).Addr() != pod {
					t.Errorf("%q leads to %s", addr, a)
				}
			}
		}
		v, err := open.decide("tcp", addr)
		if err != nil {
			if c := tunnel.CodeOf(err); c != tunnel.Denied && c != tunnel.Invalid {
				t.Errorf("%q: code %v", addr, c)
			}
			return
		}
		for _, a := range v.addrs {
			if ip := netip.MustParseAddrPort(a).Addr(); isMetadata(ip) || embeddedIPv4(ip).IsLoopback() || !isHost(ip) {
				t.Errorf("%q leads to %s", addr, a)
			}
		}
	})
}
