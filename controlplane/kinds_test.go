package controlplane

// Tests that a kind that cannot be listed stops those who need it, and nobody else.

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/controlplane/csr"
	"github.com/hawser-project/hawser/controlplane/loadbalancer"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// TestEveryKindIsNoted: whatever the controllers have the factory watch, each has been
// noted for the one that asked. A group without a method in kinds would not be. The help topic
// controller-kinds has them, and what each controller may write.
func TestEveryKindIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, "", "")
		cert, key := authority(t)
		plane, err := New(Config{Client: &rest.Config{}, Signer: csr.SignerConfig{CertFile: cert, KeyFile: key}, CollectGarbage: true, Tunnel: &Tunnel{}, LoadBalancer: &loadbalancer.Config{}})
		if err != nil {
			t.Fatal(err)
		}
		plane.cfg.Client.CAData = []byte("x")
		plane.cfg.IPAM.Allocate, plane.cfg.IPAM.ClusterCIDR = true, "10.244.0.0/16"
		f := informers.NewSharedInformerFactory(p.client, 0)
		s := &shared{cfg: plane.cfg, deps: loop.Deps{Client: p.client, Metrics: &scope{}, Log: plane.log}, events: newEvents(), freezes: newEvents()}
		defer s.events.Shutdown()
		defer s.freezes.Shutdown()
		noted := map[string]bool{}
		for _, e := range plane.entries {
			its, k := *s, newKinds(f)
			its.deps.Informers = k
			c, err := e.make(&its)
			if err != nil {
				t.Fatal(err)
			}
			if c == nil {
				t.Errorf("%s is not made", e.name)
			}
			checkWatches(t, e.name, k)
			for kind := range k.watched {
				noted[kind] = true
			}
		}
		stop := make(chan struct{})
		close(stop)
		f.Start(stop)
		all := map[string]bool{}
		for typ := range f.WaitForCacheSync(stop) {
			all[typ.Elem().Name()] = true
		}
		f.Shutdown()
		if len(all) < 5 || !reflect.DeepEqual(all, noted) {
			t.Errorf("watched are %q, noted %q", slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(noted)))
		}
		if n := len(kindsTable()); n != len(plane.entries) {
			t.Errorf("the table has %d controllers of %d", n, len(plane.entries))
		}
	})
}

// TestMissingKind: while certificate requests and jobs cannot be listed, the pods of
// a dead node go at the same time as otherwise, what is missing is told, and those who
// need it start when it is there.
func TestMissingKind(t *testing.T) {
	cert, key := authority(t)
	want := map[string][]string{
		"certificatesigningrequest-approving-controller": {"CertificateSigningRequest"},
		"certificatesigningrequest-cleaner-controller":   {"CertificateSigningRequest"},
		"certificatesigningrequest-signing-controller":   {"CertificateSigningRequest"},
		"cronjob-controller":                             {"Job"},
		"disruption-controller":                          {"Job"},
		"job-controller":                                 {"Job"},
		"ttl-after-finished-controller":                  {"Job"},
	}
	var gone []time.Duration // when the dead node's pod went
	for _, refused := range [][]string{nil, {"certificatesigningrequests", "jobs"}} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlant(t, cert, key, "a/a1", "b/b1", "c/c1")
			p.refuse(refused...)
			l := p.start()
			defer l.stop()
			p.until(29 * time.Second)
			ready := false
			select {
			case <-l.started:
				ready = true
			default:
			}
			if ready == (refused != nil) {
				t.Errorf("ready after 29 s: %v, though missing are %q", ready, refused)
			}
			p.cutOff("a1")
			p.until(10 * time.Minute)
			select {
			case <-l.started:
			default:
				t.Error("never ready")
			}
			gone = append(gone, p.evicted()["a1"])
			if refused == nil {
				return
			}
			l.expectMissing(t, want)
			for name, kinds := range want {
				if got := p.log.with("the controller waits", "controller="+name, "missing="+kinds[0]); len(got) != 1 {
					t.Errorf("of %s it was told %q", name, got)
				}
			}
			if got := p.log.with("the controller waits"); len(got) != len(want) {
				t.Errorf("it was told %q", got)
			}
			request := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{
				Name: "old", CreationTimestamp: metav1.NewTime(time.Now().Add(-48 * time.Hour)),
			}}
			_, err := p.client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), request, metav1.CreateOptions{})
			p.must(err)
			p.refuse("jobs")
			p.until(80 * time.Minute)
			maps.DeleteFunc(want, func(_ string, kinds []string) bool { return kinds[0] != "Job" })
			l.expectMissing(t, want)
			left, err := p.client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(left.Items) != 0 {
				t.Errorf("the cleaner has left %v, %v", left.Items, err)
			}
			p.refuse()
			p.until(90 * time.Minute)
			l.expectMissing(t, nil)
			if got := p.log.with("the controller starts", "controller=job-controller"); len(got) != 1 {
				t.Errorf("told %q", got)
			}
		})
	}
	if len(gone) != 2 || gone[0] != gone[1] || gone[0] < 5*time.Minute {
		t.Errorf("the pod of a dead node went after %v", gone)
	}
}

// expectMissing compares what is missing, by the method, the metric, and the metric
// of those who run.
func (l *life) expectMissing(t *testing.T, want map[string][]string) {
	t.Helper()
	if got := l.Missing(); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Errorf("missing are %v, want %v", got, want)
	}
	var metric strings.Builder
	for _, name := range slices.Sorted(maps.Keys(want)) {
		fmt.Fprintf(&metric, "hawser_controller_missing_kind{controller=%q,kind=%q} 1\n", name, want[name][0])
	}
	if metric.Len() > 0 {
		head := "# HELP hawser_controller_missing_kind 1 for each kind that could not be listed yet and that a controller waits for.\n# TYPE hawser_controller_missing_kind gauge\n"
		if err := testutil.GatherAndCompare(l.registry, strings.NewReader(head+metric.String()), "hawser_controller_missing_kind"); err != nil {
			t.Error(err)
		}
	} else if n, err := testutil.GatherAndCount(prometheus.Gatherer(l.registry), "hawser_controller_missing_kind"); n != 0 || err != nil {
		t.Errorf("%d kinds are said to be missing, %v", n, err)
	}
	for _, e := range l.entries {
		if _, waits := want[e.name]; waits && testutil.ToFloat64(l.metrics.up.WithLabelValues(e.name)) != 0 {
			t.Errorf("%s is said to run", e.name)
		}
	}
}
