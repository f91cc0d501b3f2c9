package evidence

// Tests of links and sites, and the cost of an overview.

import (
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/auth"
)

func TestJudgeLinks(t *testing.T) {
	lo := net.Interface{Name: "lo", Flags: net.FlagUp | net.FlagRunning | net.FlagLoopback}
	up := net.Interface{Name: "eth0", Flags: net.FlagUp | net.FlagRunning}
	noCarrier := net.Interface{Name: "eth1", Flags: net.FlagUp}
	down := net.Interface{Name: "eth2"}
	for _, tc := range []struct {
		name string
		all  []net.Interface
		want string
	}{
		{"up", []net.Interface{lo, noCarrier, up}, ""},
		{"no carrier", []net.Interface{lo, noCarrier}, "no network interface is up (eth1)"},
		{"down", []net.Interface{down, lo, noCarrier}, "no network interface is up (eth2, eth1)"},
		{"only the loopback", []net.Interface{lo}, "there is no network interface but the loopback"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if err := judgeLinks(tc.all); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSiteOf(t *testing.T) {
	for _, tc := range []struct {
		labels map[string]string
		want   string
	}{
		{nil, ""},
		{map[string]string{corev1.LabelTopologyRegion: "r"}, ""},
		{map[string]string{corev1.LabelTopologyZone: "z"}, ""}, // which a node says itself
		{map[string]string{corev1.LabelFailureDomainBetaZone: "old", corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"}, ""},
		{map[string]string{auth.SiteLabel: "s"}, "s"},
		{map[string]string{auth.SiteLabel: "s", corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"}, "s"},
	} {
		if got := siteOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}}); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.labels, got, tc.want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("no source, and no error")
	}
}

// BenchmarkExcuse judges ten thousand nodes of a hundred sites, a tenth of which
// are silent, from one overview made anew each time.
func BenchmarkExcuse(b *testing.B) {
	w := &world{sessions: make(map[string]*Session), nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
	now := time.Now()
	var silent []*corev1.Node
	for i := range 10_000 {
		name, zone := fmt.Sprintf("n%d", i), fmt.Sprintf("z%d", i%100)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{auth.SiteLabel: zone}}}
		if err := w.nodes.Add(n); err != nil {
			b.Fatal(err)
		}
		s := &Session{Node: name, Changes: []Change{{At: now.Add(-time.Hour), State: Attached}}}
		if i%100 < 10 {
			s.Changes = append(s.Changes, Change{At: now.Add(-20 * time.Second), Heard: now.Add(-40 * time.Second), State: Parked, Cause: Silent})
			silent = append(silent, n)
		}
		w.sessions[name] = s
	}
	j, err := New(Config{Source: w, Nodes: corelisters.NewNodeLister(w.nodes), Links: func() error { return nil }, Started: now.Add(-time.Hour)})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		j.view = nil
		for _, n := range silent {
			if reason, _, _, _ := j.Excuse(n); reason != SiteLostNetwork {
				b.Fatal(reason)
			}
		}
	}
}
