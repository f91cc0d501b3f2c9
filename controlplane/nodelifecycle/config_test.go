package nodelifecycle

// Tests of settings: what is refused, and in which words.

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestCheck(t *testing.T) {
	nan := float32(math.NaN())
	for _, tc := range []struct {
		name string
		set  func(p *Policy)
		want []string // nil: accepted
	}{
		{"defaults", func(*Policy) {}, nil},
		{"none evicted", func(p *Policy) { p.EvictionRate, p.SecondaryEvictionRate = 0, 0 }, nil},
		{"equal rates", func(p *Policy) { p.SecondaryEvictionRate = p.EvictionRate }, nil},
		{"bounds of the threshold", func(p *Policy) { p.UnhealthyZoneThreshold, p.LargeClusterThreshold = 1, 0 }, nil},
		{"threshold of zero", func(p *Policy) { p.UnhealthyZoneThreshold = 0 }, nil},
		{"fast", func(p *Policy) { p.MonitorPeriod, p.MonitorGracePeriod, p.StartupGracePeriod = 100e6, 2e9, 1e9 }, nil},
		{"no period", func(p *Policy) { p.MonitorPeriod = 0 }, []string{"--node-monitor-period 0s"}},
		{"negative grace", func(p *Policy) { p.MonitorGracePeriod = -time.Second }, []string{"--node-monitor-grace-period -1s"}},
		{"no startup grace", func(p *Policy) { p.StartupGracePeriod = 0 }, []string{"--node-startup-grace-period 0s"}},
		{"grace not above period", func(p *Policy) { p.MonitorGracePeriod = p.MonitorPeriod }, []string{"--node-monitor-grace-period 5s", "--node-monitor-period 5s"}},
		{"secondary above primary", func(p *Policy) { p.SecondaryEvictionRate = 0.2 }, []string{"--secondary-node-eviction-rate 0.2 is above --node-eviction-rate 0.1:"}},
		{"negative rate", func(p *Policy) { p.EvictionRate = -0.1 }, []string{"--node-eviction-rate -0.1"}},
		{"rate not a number", func(p *Policy) { p.EvictionRate = nan }, []string{"--node-eviction-rate NaN"}},
		{"endless rate", func(p *Policy) { p.EvictionRate = float32(math.Inf(1)) }, []string{"--node-eviction-rate +Inf"}},
		{"negative secondary", func(p *Policy) { p.SecondaryEvictionRate = -1 }, []string{"--secondary-node-eviction-rate -1"}},
		{"threshold above one", func(p *Policy) { p.UnhealthyZoneThreshold = 1.1 }, []string{"--unhealthy-zone-threshold 1.1"}},
		{"percent", func(p *Policy) { p.UnhealthyZoneThreshold = 55 }, []string{"--unhealthy-zone-threshold 55"}},
		{"negative threshold", func(p *Policy) { p.UnhealthyZoneThreshold = -0.1 }, []string{"--unhealthy-zone-threshold -0.1"}},
		{"threshold not a number", func(p *Policy) { p.UnhealthyZoneThreshold = nan }, []string{"--unhealthy-zone-threshold NaN"}},
		{"negative size", func(p *Policy) { p.LargeClusterThreshold = -1 }, []string{"--large-cluster-size-threshold -1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Config{Policy: DefaultPolicy()}
			tc.set(&c.Policy)
			err := c.Check()
			if (err == nil) != (tc.want == nil) {
				t.Fatalf("got %v", err)
			}
			for _, s := range tc.want {
				if !strings.Contains(err.Error(), s) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%q does not say %q in one line", err, s)
				}
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	if got := (Config{}).withDefaults().Policy; got != DefaultPolicy() {
		t.Errorf("got %+v", got)
	}
	got := Config{Policy: Policy{MonitorPeriod: time.Second}}.withDefaults().Policy
	if want := (Policy{MonitorPeriod: time.Second, MonitorGracePeriod: DefaultMonitorGracePeriod, StartupGracePeriod: DefaultStartupGracePeriod}); got != want {
		t.Errorf("what is set is not taken as it is: %+v", got)
	}
}

// TestMadeTwice: two controllers of one process share their metrics.
func TestMadeTwice(t *testing.T) {
	client, reg := fake.NewClientset(), prometheus.NewRegistry()
	f := informers.NewSharedInformerFactory(client, 0)
	d := loop.Deps{Client: client, Informers: f, Metrics: reg}
	a, err := New(d, Config{})
	b, more := New(d, Config{})
	if err := errors.Join(err, more); err != nil {
		t.Fatal(err)
	}
	a.metrics.frozen.WithLabelValues("x").Inc()
	b.metrics.frozen.WithLabelValues("x").Inc()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "hawser_eviction_frozen_nodes" && f.GetMetric()[0].GetGauge().GetValue() != 2 {
			t.Errorf("got %v", f.GetMetric())
		}
	}
}
