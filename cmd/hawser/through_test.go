package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func labelled(name, label string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if k, v, ok := strings.Cut(label, "="); ok {
		n.Labels = map[string]string{k: v}
	}
	return n
}

func TestRouteThroughIsChecked(t *testing.T) {
	for spec, want := range map[string]string{
		"":                                "want CIDR=SELECTOR",
		"10.96.0.0=a=b":                   "want CIDR=SELECTOR",
		"10.96.0.0/12":                    "want labels of nodes behind the range",
		"10.96.0.0/12=":                   "want labels of nodes behind the range",
		"10.96.0.0/12=a b":                "labels of nodes: ",
		"0.0.0.0/0=a=b":                   "the range holds addresses that are no one machine's",
		"169.254.169.254/32=a=b":          "the range holds addresses that are no one machine's",
		"127.0.0.0/8=a=b":                 "the range holds addresses that are no one machine's",
		"::ffff:10.96.0.0/108=a=b":        "the range is an IPv4 range in IPv6",
		"10.96.0.0/12=a=b":                "",
		"10.97.0.1/16=gateway":            "",
		"fd00:96::/112=a in (b,c),!d":     "",
		"10.96.0.0/12=a=b 10.97.0.0/16=c": "its range overlaps",
	} {
		o := throughOptions{specs: []string{spec}}
		if strings.HasSuffix(want, "overlaps") {
			o.specs = strings.Split(spec, " ")
		}
		err := o.check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), "--route-through ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q: %v, want %q", spec, err, want)
		}
	}
	if _, err := parse(t, "--route-through", "10.96.0.0/12=a in (b,c)", "--route-through", "fd00:96::/112=d"); err != nil {
		t.Error(err)
	}
}

// TestRouteThrough: the nodes of a range are those with its labels now, in another order each
// time, and a bounded number.
func TestRouteThrough(t *testing.T) {
	o := throughOptions{specs: []string{"10.96.0.0/12=gateway=yes", "fd00:96::/112=gateway in (yes,six)"}}
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	p := newThroughNodes(&o)
	to := func(ip string) string {
		all := p.to(netip.MustParseAddr(ip))
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	p.set(labelled("a", "gateway=yes"))
	p.set(labelled("b", "gateway=six"))
	p.set(labelled("c", ""))
	p.set(labelled("a", "gateway=yes"))
	for ip, want := range map[string]string{"10.96.0.1": "a", "10.112.0.1": "", "fd00:96::1": "a b", "fd00:97::1": ""} {
		if got := to(ip); got != want {
			t.Errorf("%s: %q, want %q", ip, got, want)
		}
	}
	p.set(labelled("a", "gateway=no"))
	p.remove("b")
	p.remove("c")
	if got := to("10.96.0.1") + to("fd00:96::1"); got != "" {
		t.Errorf("%q are left", got)
	}
	first := map[string]bool{}
	for i := range 10 * maxThrough {
		p.set(labelled(fmt.Sprint("n", i), "gateway=yes"))
	}
	for range 100 {
		all := p.to(netip.MustParseAddr("10.96.0.1"))
		first[all[0]] = true
		slices.Sort(all)
		if n := len(slices.Compact(all)); n != maxThrough {
			t.Fatalf("%d nodes", n)
		}
	}
	if len(first) < 2 {
		t.Error("the same node is always first")
	}
}

// TestRouteThroughIsNotClaimed: a node that says it has an address of such a range draws
// nothing, and a range of pods, which no node writes, is that node's.
func TestRouteThroughIsNotClaimed(t *testing.T) {
	o := &serverOptions{through: throughOptions{specs: []string{"10.0.0.0/8=gateway"}}}
	if err := o.through.check(); err != nil {
		t.Fatal(err)
	}
	p, err := newRoutePolicy(o, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	got := p.of(claimant([]string{"10.96.0.10", "192.0.2.7"}, []string{"10.244.3.0/24"}))
	if want := []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("10.244.3.0/24")}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
