package nodelifecycle

// Config, its defaults, and which combinations of settings are refused.

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// The documented defaults of a Policy.
const (
	DefaultMonitorPeriod         = 5 * time.Second
	DefaultMonitorGracePeriod    = 40 * time.Second
	DefaultStartupGracePeriod    = 60 * time.Second
	DefaultEvictionRate          = 0.1
	DefaultSecondaryEvictionRate = 0.01
	DefaultUnhealthyZoneThresh   = 0.55
	DefaultLargeClusterThreshold = 50
)

// DefaultWorkers is how many nodes a pass works on at once if not told otherwise.
// Hardly any node is work. When many have fallen silent together, though, the last
// has to wait for the others, and what they wait for is answers from a busy server.
const DefaultWorkers = 32

// A Policy says when a node counts as lost and how fast nodes are evicted from.
// The fields are those of Kubernetes' flags, whose names Check uses.
type Policy struct {
	// MonitorPeriod (--node-monitor-period) passes between the beginnings of two
	// looks at all nodes.
	MonitorPeriod time.Duration
	// MonitorGracePeriod (--node-monitor-grace-period) is how long a node may be
	// quiet before it is Unknown.
	MonitorGracePeriod time.Duration
	// StartupGracePeriod (--node-startup-grace-period) is the same for a node that
	// has never said whether it is ready, from its creation.
	StartupGracePeriod time.Duration
	// EvictionRate (--node-eviction-rate) is how many nodes a second of one zone
	// get a NoExecute taint while the zone is healthy, or down as a whole. Zero
	// means none.
	EvictionRate float32
	// SecondaryEvictionRate (--secondary-node-eviction-rate) is the same for a
	// large zone that is partly down. Zero means none.
	SecondaryEvictionRate float32
	// UnhealthyZoneThreshold (--unhealthy-zone-threshold) is the share of nodes
	// that are not ready from which on a zone is partly down, if they are more
	// than two.
	UnhealthyZoneThreshold float32
	// LargeClusterThreshold (--large-cluster-size-threshold) is the number of
	// nodes above which a zone is large. In a smaller one that is partly down
	// nothing is evicted.
	LargeClusterThreshold int
}

// AddFlags adds the flags that set p.
func (p *Policy) AddFlags(f *pflag.FlagSet) {
	d := DefaultPolicy()
	f.DurationVar(&p.MonitorPeriod, "node-monitor-period", d.MonitorPeriod, "time between two looks at all nodes")
	f.DurationVar(&p.MonitorGracePeriod, "node-monitor-grace-period", d.MonitorGracePeriod, "how long a node may be silent before its conditions are Unknown")
	f.DurationVar(&p.StartupGracePeriod, "node-startup-grace-period", d.StartupGracePeriod, "how long a node that has never said whether it is ready may be silent before its conditions are Unknown")
	f.Float32Var(&p.EvictionRate, "node-eviction-rate", d.EvictionRate, "nodes a second of a zone from which pods are evicted while the zone is healthy, or down as a whole")
	f.Float32Var(&p.SecondaryEvictionRate, "secondary-node-eviction-rate", d.SecondaryEvictionRate, "nodes a second of a large zone from which pods are evicted while the zone is partly down")
	f.Float32Var(&p.UnhealthyZoneThreshold, "unhealthy-zone-threshold", d.UnhealthyZoneThreshold, "share of a zone's nodes, if more than two, whose silence makes it partly down")
	f.IntVar(&p.LargeClusterThreshold, "large-cluster-size-threshold", d.LargeClusterThreshold, "nodes above which a zone is large; a smaller one that is partly down is not evicted from")
}

// DefaultPolicy returns the documented defaults.
func DefaultPolicy() Policy {
	return Policy{
		MonitorPeriod: DefaultMonitorPeriod, MonitorGracePeriod: DefaultMonitorGracePeriod,
		StartupGracePeriod: DefaultStartupGracePeriod, EvictionRate: DefaultEvictionRate,
		SecondaryEvictionRate: DefaultSecondaryEvictionRate, UnhealthyZoneThreshold: DefaultUnhealthyZoneThresh,
		LargeClusterThreshold: DefaultLargeClusterThreshold,
	}
}

// Check refuses settings that contradict each other or themselves. The error is
// one line that names the flags and says what to do.
func (p Policy) Check() error {
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"--node-monitor-period", p.MonitorPeriod},
		{"--node-monitor-grace-period", p.MonitorGracePeriod},
		{"--node-startup-grace-period", p.StartupGracePeriod},
	} {
		if d.value <= 0 {
			return fmt.Errorf("%s %v is not above zero: give a duration such as 5s", d.flag, d.value)
		}
	}
	if p.MonitorGracePeriod <= p.MonitorPeriod {
		return fmt.Errorf("--node-monitor-grace-period %v is not above --node-monitor-period %v: "+
			"a node must be looked at more than once before it can be lost", p.MonitorGracePeriod, p.MonitorPeriod)
	}
	for _, r := range []struct {
		flag  string
		value float32
	}{
		{"--node-eviction-rate", p.EvictionRate},
		{"--secondary-node-eviction-rate", p.SecondaryEvictionRate},
	} {
		if v := float64(r.value); !(v >= 0) || math.IsInf(v, 0) {
			return fmt.Errorf("%s %s is no rate: give nodes per second, zero or more", r.flag, number(r.value))
		}
	}
	if p.SecondaryEvictionRate > p.EvictionRate {
		return fmt.Errorf("--secondary-node-eviction-rate %s is above --node-eviction-rate %s: "+
			"a zone that is partly down cannot be evicted from faster than a healthy one",
			number(p.SecondaryEvictionRate), number(p.EvictionRate))
	}
	if !(p.UnhealthyZoneThreshold >= 0 && p.UnhealthyZoneThreshold <= 1) {
		return fmt.Errorf("--unhealthy-zone-threshold %s is not between 0 and 1: "+
			"give the share of a zone's nodes, such as 0.55", number(p.UnhealthyZoneThreshold))
	}
	if p.LargeClusterThreshold < 0 {
		return fmt.Errorf("--large-cluster-size-threshold %d is negative: give a number of nodes, such as 50", p.LargeClusterThreshold)
	}
	return nil
}

func number(f float32) string { return strconv.FormatFloat(float64(f), 'g', -1, 32) }

// Config configures a Controller. The zero value is good.
type Config struct {
	// Policy is taken as it is, zero rates included, unless all of it is zero,
	// which means DefaultPolicy. A period that is not above zero counts as its
	// default in any case.
	Policy

	// Excuse is asked about every node whose Ready condition is Unknown, in each
	// pass and again before the node is tainted. If it knows a reason for the
	// silence that is not the node's own, the node gets no NoExecute taint
	// not-ready or unreachable while that lasts. A node that has one already is
	// not asked about: an excuse that began after the taint does not apply, and
	// the time that its pods have left runs on. reason is one CamelCase word out
	// of few (it labels a metric), message a sentence for people, until when the
	// excuse ends at the latest; zero if that is not known. Excuse is called from several
	// goroutines at once, must answer at once and must not change the node. Nil excuses
	// nobody, which is what Kubernetes does.
	Excuse func(node *corev1.Node) (reason, message string, until time.Time, excused bool)
	// Judged tells whether Excuse knows enough of a node to tell death from an
	// outage. Such a node keeps its NoExecute taint when no node of any zone is
	// ready; from others it is taken back then, as Kubernetes documents. It is
	// called as Excuse is. Nil means that no node is.
	Judged func(node *corev1.Node) bool
	// Frozen is told when evictions from a node are frozen, or are for another reason or
	// until another time, and with no reason when they no longer are. It must return at once. Nil means that
	// nobody wants to know.
	Frozen func(node, reason, message string, until time.Time)

	Workers int // nodes a pass works on at once; zero means DefaultWorkers
	// Freezes records events of freezes, with a queue that nothing else fills. Nil means the Deps'.
	Freezes record.EventRecorder
}

func (c Config) withDefaults() Config {
	if c.Policy == (Policy{}) {
		c.Policy = DefaultPolicy()
	}
	loop.Default(&c.MonitorPeriod, DefaultMonitorPeriod)
	loop.Default(&c.MonitorGracePeriod, DefaultMonitorGracePeriod)
	loop.Default(&c.StartupGracePeriod, DefaultStartupGracePeriod)
	if c.Excuse == nil {
		c.Excuse = func(*corev1.Node) (string, string, time.Time, bool) { return "", "", time.Time{}, false }
	}
	if c.Judged == nil {
		c.Judged = func(*corev1.Node) bool { return false }
	}
	if c.Frozen == nil {
		c.Frozen = func(string, string, string, time.Time) {}
	}
	loop.Default(&c.Workers, DefaultWorkers)
	return c
}
