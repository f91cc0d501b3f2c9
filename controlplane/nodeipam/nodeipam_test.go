package nodeipam

// Tests of the controller against an API server made of maps, in fake time.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"

	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	two   = "10.0.0.0/23"                  // two blocks
	four  = "10.0.0.0/22"                  // four
	mixed = "10.0.0.0/22,fd00:10::/63"     // four, and two of IPv6
	none  = "Normal CIDRNotAvailable Node" // how that event begins
)

// TestAllocation follows nodes that come and go.
func TestAllocation(t *testing.T) {
	for _, tc := range []struct {
		name  string
		c     Config
		nodes []runtime.Object
		do    func(l *lab)
		want  string
	}{
		{"one after the other", Config{ClusterCIDR: four}, nil, func(l *lab) {
			l.create("a", "b", "c")
		}, "a=10.0.0.0/24 b=10.0.1.0/24 c=10.0.2.0/24"},
		{"services within", Config{ClusterCIDR: four, ServiceCIDR: "10.0.1.128/26"}, nil, func(l *lab) {
			l.create("a", "b", "c", "d")
			l.delete("a")
		}, "b=10.0.2.0/24 c=10.0.3.0/24 d=10.0.0.0/24"},
		{"round and round", Config{ClusterCIDR: four}, nil, func(l *lab) {
			l.create("a", "b", "c")
			l.delete("a", "b")
			l.create("d", "e", "f")
		}, "c=10.0.2.0/24 d=10.0.3.0/24 e=10.0.0.0/24 f=10.0.1.0/24"},
		{"both families", Config{ClusterCIDR: "fd00:10::/56,10.0.0.0/16", MaskSizeIPv4: 26}, nil, func(l *lab) {
			l.create("a", "b")
		}, "a=fd00:10::/64+10.0.0.0/26 b=fd00:10:0:1::/64+10.0.0.64/26"},
		{"what nodes hold is taken", Config{ClusterCIDR: four}, []runtime.Object{machine("a", "10.0.0.0/24"), machine("b", "10.0.2.0/25")}, func(l *lab) {
			l.create("c", "d", "e")
		}, "a=10.0.0.0/24 b=10.0.2.0/25 c=10.0.1.0/24 d=10.0.3.0/24 e="},
		{"what a node holds later is taken", Config{ClusterCIDR: four}, nil, func(l *lab) {
			_, err := l.client.CoreV1().Nodes().Create(l.t.Context(), machine("a", "10.0.0.0/23"), metav1.CreateOptions{})
			l.must(err)
			l.settle()
			l.create("b")
		}, "a=10.0.0.0/23 b=10.0.2.0/24"},
		{"only the older field", Config{ClusterCIDR: two}, []runtime.Object{
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"}},
		}, func(l *lab) { l.create("b") }, "a= b=10.0.1.0/24"},
		{"restarted", Config{ClusterCIDR: four}, nil, func(l *lab) {
			l.create("a", "b", "c")
			l.delete("b")
			l.must(l.stop())
			l.run(Config{ClusterCIDR: four})
			l.create("d", "e")
		}, "a=10.0.0.0/24 c=10.0.2.0/24 d=10.0.1.0/24 e=10.0.3.0/24"},
		{"held twice", Config{ClusterCIDR: two}, []runtime.Object{machine("a", "10.0.0.0/24"), machine("b", "10.0.0.0/24")}, func(l *lab) {
			l.delete("a")
			l.create("c", "d") // b holds the one that a had
		}, "b=10.0.0.0/24 c=10.0.1.0/24 d="},
		{"made anew", Config{ClusterCIDR: two}, nil, func(l *lab) {
			l.create("a", "b")
			l.delete("a")
			l.create("a")
		}, "a=10.0.0.0/24 b=10.0.1.0/24"},
		{"made anew at once", Config{ClusterCIDR: two}, nil, func(l *lab) {
			l.create("a", "b")
			l.must(l.client.CoreV1().Nodes().Delete(l.t.Context(), "a", metav1.DeleteOptions{}))
			_, err := l.client.CoreV1().Nodes().Create(l.t.Context(), machine("a"), metav1.CreateOptions{})
			l.must(err)
			l.settle()
		}, "a=10.0.0.0/24 b=10.0.1.0/24"},
		{"being deleted", Config{ClusterCIDR: two}, nil, func(l *lab) {
			l.create("a", "b")
			n, err := l.client.CoreV1().Nodes().Get(l.t.Context(), "a", metav1.GetOptions{})
			l.must(err)
			n.Finalizers = []string{"example.com/wait"}
			_, err = l.client.CoreV1().Nodes().Update(l.t.Context(), n, metav1.UpdateOptions{})
			l.must(err)
			l.delete("a")
			l.create("c")
		}, "a=10.0.0.0/24 b=10.0.1.0/24 c=10.0.0.0/24"},
		{"of another range, at run time", Config{ClusterCIDR: two}, nil, func(l *lab) {
			_, err := l.client.CoreV1().Nodes().Create(l.t.Context(), machine("a", "10.9.0.0/24"), metav1.CreateOptions{})
			l.must(err)
			l.settle()
			l.create("b")
			if n := strings.Count(l.log.String(), `node=a err="pod range 10.9.0.0/24 is no part of --cluster-cidr"`); n != 1 {
				l.t.Errorf("said %d times:\n%s", n, &l.log)
			}
		}, "a=10.9.0.0/24 b=10.0.0.0/24"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, tc.nodes...)
				l.run(tc.c)
				tc.do(l)
				<-time.After(time.Minute)
				l.expect("in the end", tc.want)
				l.must(l.stop())
			})
		})
	}
}

// TestExhaustion: a node that finds nothing left is told of, and is served as
// soon as another goes.
func TestExhaustion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		reg := l.run(Config{ClusterCIDR: mixed})
		l.create("a", "b")
		if got := l.told(); got != "" {
			t.Errorf("told %q", got)
		}
		l.create("c", "d")
		l.expect("full", "a=10.0.0.0/24+fd00:10::/64 b=10.0.1.0/24+fd00:10:0:1::/64 c= d=")
		<-time.After(4 * time.Minute)
		want := none + " c status is now: CIDRNotAvailable; " + none + " d status is now: CIDRNotAvailable"
		if got := l.told(); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		<-time.After(3 * time.Minute) // and once more, after remind
		if got := strings.Split(l.told(), "; "); len(got) != 2 {
			t.Errorf("reminded %q", got)
		}
		// What was taken of the range that had some left has been given back.
		for name, want := range map[string]float64{"10.0.0.0/22": 0.5, "fd00:10::/63": 1} {
			if got := gauge(t, reg, "node_ipam_controller_cidrset_usage_cidrs", name); got != want {
				t.Errorf("%v of %s is used, want %v", got, name, want)
			}
		}
		before := time.Now()
		l.delete("b")
		if d := time.Since(before); d > 100*time.Millisecond {
			t.Fatalf("took %v", d)
		}
		if got := l.ranges(); strings.Count(got, "+fd00:10:0:1::/64") != 1 || strings.Count(got+" ", "= ") != 1 {
			t.Errorf("after one has gone: %s", got)
		}
		l.delete("a")
		if got := l.ranges(); strings.Count(got, "+") != 2 {
			t.Errorf("after both have gone: %s", got)
		}
		taken := gauge(t, reg, "node_ipam_controller_cidrset_cidrs_allocations_total", "10.0.0.0/22")
		freed := gauge(t, reg, "node_ipam_controller_cidrset_cidrs_releases_total", "10.0.0.0/22")
		if taken-freed != 2 || freed < 2 {
			t.Errorf("%v blocks taken and %v freed", taken, freed)
		}
		l.must(l.stop())
	})
}

// TestWrites: what becomes of the blocks if the node cannot be written.
func TestWrites(t *testing.T) {
	refused := apierrors.NewForbidden(corev1.Resource("nodes"), "a", errors.New("no"))
	for _, tc := range []struct {
		name   string
		after  bool // the write is done, and the answer lost
		err    error
		while  string // what nodes have while it fails
		gone   string // and after a has been written
		events int
		warns  int
	}{
		// What was refused is free for b; a finds another with each try.
		{"refused", false, refused, "a= b=10.0.1.0/24", "a=10.0.3.0/24 b=10.0.1.0/24", 1, 3},
		// The server may have done it, so a keeps what it was to have.
		{"lost before", false, io.EOF, "a= b=10.0.1.0/24", "a=10.0.0.0/24 b=10.0.1.0/24", 1, 2},
		{"lost after", true, apierrors.NewTimeoutError("slow", 1), "a=10.0.0.0/24 b=10.0.1.0/24", "a=10.0.0.0/24 b=10.0.1.0/24", 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				l.failing(func(name string) (bool, error) {
					if name == "a" {
						return tc.after, tc.err
					}
					return false, nil
				})
				l.run(Config{ClusterCIDR: four})
				l.create("a", "b")
				<-time.After(250 * time.Millisecond) // tries at once and after 0.1 s; the next is after 0.3 s
				l.expect("while it fails", tc.while)
				l.failing(func(string) (bool, error) { return false, nil })
				<-time.After(time.Minute)
				l.expect("in the end", tc.gone)
				l.must(l.stop())
				if n := strings.Count(l.told(), "Normal CIDRAssignmentFailed Node a status is now: CIDRAssignmentFailed"); n != tc.events {
					t.Errorf("told %d times, want %d", n, tc.events)
				}
				if n := strings.Count(l.log.String(), "level=WARN"); n > tc.warns {
					t.Errorf("warned %d times, want no more than %d:\n%s", n, tc.warns, &l.log)
				}
			})
		})
	}
}

// TestWriteRaces: the node goes, or somebody else has given it a range.
func TestWriteRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.run(Config{ClusterCIDR: four})
		l.failing(func(name string) (bool, error) {
			return false, apierrors.NewNotFound(corev1.Resource("nodes"), name)
		})
		l.create("a")
		if l.patches != 1 {
			t.Errorf("%d writes to a node that is gone", l.patches)
		}
		l.delete("a")
		l.failing(func(name string) (bool, error) {
			return false, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), name, nil)
		})
		l.create("b") // reserves 10.0.1.0/24
		n, err := l.client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
		l.must(err)
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.0.3.0/24", []string{"10.0.3.0/24"}
		_, err = l.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		l.must(err)
		l.settle()
		l.failing(func(string) (bool, error) { return false, nil })
		l.create("c", "d", "e", "f")
		<-time.After(time.Minute)
		l.expect("in the end", "b=10.0.3.0/24 c=10.0.2.0/24 d=10.0.0.0/24 e=10.0.1.0/24 f=")
		l.must(l.stop())
		if l.patches > 1+2*writeTries+3 {
			t.Errorf("%d writes", l.patches)
		}
	})
}

// TestForeignRanges: what one node holds keeps no other from being served. It is
// told of, and what is good of it is kept from others.
func TestForeignRanges(t *testing.T) {
	const served = " waits=10.0.0.0/24"
	for _, tc := range []struct{ name, held, want, log, event string }{
		{"another range", "10.9.0.0/24", "n=10.9.0.0/24" + served, "pod range 10.9.0.0/24 is no part of --cluster-cidr", reasonForeign},
		{"another family", "fd00::/64", "n=fd00::/64" + served, "pod range fd00::/64 is no part of --cluster-cidr", reasonForeign},
		{"one too many", "10.0.0.0/24,fd00::/64", "n=10.0.0.0/24+fd00::/64 waits=10.0.1.0/24", "pod range fd00::/64 is no part of", reasonForeign},
		{"cannot be read", "10.0.0.0", "n=10.0.0.0" + served, "cannot be read", reasonForeign},
		{"all addresses", "0.0.0.0/0", "n=0.0.0.0/0" + served, "is all of --cluster-cidr", reasonForeign},
		{"all of the cluster", two, "n=" + two + served, "is all of --cluster-cidr", reasonForeign},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %v", tc.name, late), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLab(t)
					bad := func() {
						_, err := l.client.CoreV1().Nodes().Create(t.Context(), machine("n", strings.Split(tc.held, ",")...), metav1.CreateOptions{})
						l.must(err)
					}
					if !late {
						bad()
					}
					reg := l.run(Config{ClusterCIDR: two})
					if late {
						bad()
						l.settle()
					}
					l.create("waits")
					l.expect("in the end", tc.want)
					l.must(l.stop())
					if log := l.log.String(); strings.Count(log, tc.log) != 1 || !strings.Contains(log, "--cluster-cidr to what it was") {
						t.Errorf("log:\n%s", log)
					}
					if told := l.told(); strings.Count(told, tc.event) != 2 { // once, in reason and message
						t.Errorf("told %q", told)
					}
					if n, err := testutil.GatherAndCount(reg, "hawser_node_ipam_ranges_refused_total"); n != 1 || err != nil {
						t.Errorf("%d counters, %v", n, err)
					}
				})
			})
		}
	}
}

// TestMany: a fleet that starts at once, and again after a restart.
func TestMany(t *testing.T) {
	const count = 300
	synctest.Test(t, func(t *testing.T) {
		var nodes []runtime.Object
		for i := range count {
			nodes = append(nodes, machine(fmt.Sprintf("n%d", i)))
		}
		l := newLab(t, nodes...)
		reg := l.run(Config{ClusterCIDR: "10.0.0.0/16,fd00:10::/48"})
		l.must(l.stop())
		l.run(Config{ClusterCIDR: "10.0.0.0/16,fd00:10::/48"})
		l.must(l.stop())
		list, err := l.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		l.must(err)
		seen := map[string]bool{}
		served := 0
		for i := range list.Items {
			for _, c := range list.Items[i].Spec.PodCIDRs {
				if seen[c] || !netip.MustParsePrefix(c).IsValid() {
					t.Errorf("%s given away twice", c)
				}
				seen[c] = true
			}
			served += len(list.Items[i].Spec.PodCIDRs)
		}
		if served != 256+256 || l.patches != 256 {
			t.Errorf("%d ranges in %d writes, want 512 in 256", served, l.patches)
		}
		if got := gauge(t, reg, "node_ipam_controller_cirdset_max_cidrs", "fd00:10::/48"); got != 1<<16 {
			t.Errorf("%v blocks of IPv6", got)
		}
		if n, err := testutil.GatherAndCount(reg, "node_ipam_controller_cidrset_allocation_tries_per_request"); n != 2 || err != nil {
			t.Errorf("%d histograms, %v", n, err)
		}
		if got := gauge(t, reg, "node_ipam_controller_cidrset_cidrs_allocations_total", "10.0.0.0/16"); got != 256 {
			t.Errorf("%v blocks of IPv4 taken, want 256", got)
		}
	})
}

// TestOff: a controller that is off waits, and changes nothing.
func TestOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, machine("n"))
		f := informers.NewSharedInformerFactory(l.client, 0)
		c, err := New(loop.Deps{Client: l.client, Informers: f}, Config{ClusterCIDR: "10.0.0.0/8"})
		l.must(err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		<-time.After(time.Hour)
		select {
		case err := <-done:
			t.Fatalf("it ended: %v", err)
		default:
		}
		cancel()
		if err := <-done; err != nil || l.patches != 0 {
			t.Errorf("%v, %d writes", err, l.patches)
		}
	})
}

func TestSharedMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	p := newPool(netip.MustParsePrefix(two), 24)
	for range 2 {
		m, err := newMetrics(reg)
		if err != nil {
			t.Fatal(err)
		}
		m.took(p, 1)
	}
	if got := gauge(t, reg, "node_ipam_controller_cidrset_cidrs_allocations_total", two); got != 2 {
		t.Errorf("%v allocations, want 2", got)
	}
	odd := prometheus.NewRegistry()
	odd.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "node_ipam_controller_cidrset_usage_cidrs"}))
	if _, err := newMetrics(odd); err == nil {
		t.Error("took one gauge for many")
	}
}
