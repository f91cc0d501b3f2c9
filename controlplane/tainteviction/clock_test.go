package tainteviction

// Tests of since when a taint counts, and a benchmark of what a look costs.

import (
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

// owner is an entry of a node's managed fields; at is seconds since zero.
func owner(at int, subresource, fields string) metav1.ManagedFieldsEntry {
	e := metav1.ManagedFieldsEntry{Manager: "m", Subresource: subresource, FieldsV1: metav1.NewFieldsV1(fields)}
	if at != 0 {
		when := metav1.NewTime(zero.Add(time.Duration(at) * s))
		e.Time = &when
	}
	return e
}

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestSince(t *testing.T) {
	const owned, other = `{"f:spec":{"f:taints":{}}}`, `{"f:metadata":{"f:taints":{}},"f:spec":{"f:unschedulable":{}}}`
	for _, tc := range []struct {
		name    string
		added   int // timeAdded; zero means none
		created int
		owners  []metav1.ManagedFieldsEntry
		seen    time.Duration
		want    time.Duration
	}{
		{"no time at all", 0, 0, nil, 100 * s, 100 * s},
		{"timeAdded", 40, 0, nil, 100 * s, 41 * s},
		{"timeAdded goes first", 40, 0, []metav1.ManagedFieldsEntry{owner(30, "", owned)}, 100 * s, 41 * s},
		{"just now", 100, 0, nil, 100*s + 700*time.Millisecond, 100*s + 700*time.Millisecond},
		{"a second ago", 99, 0, nil, 100 * s, 100 * s},
		{"in that second, at most", 99, 0, nil, 102 * s, 100 * s},
		{"from the future", 101, 0, nil, 100 * s, 100 * s},
		{"from the future, and the list was written", 1e9, 0, []metav1.ManagedFieldsEntry{owner(30, "", owned)}, 100 * s, 31 * s},
		{"list written in the future", 0, 0, []metav1.ManagedFieldsEntry{owner(1e9, "", owned)}, 100 * s, 100 * s},
		{"older than the node", 20, 60, nil, 100 * s, 61 * s},
		{"list written", 0, 0, []metav1.ManagedFieldsEntry{owner(30, "", owned)}, 100 * s, 31 * s},
		{"list written just now", 0, 0, []metav1.ManagedFieldsEntry{owner(100, "", owned)}, 100*s + 1, 100*s + 1},
		{"several writers", 0, 0, []metav1.ManagedFieldsEntry{owner(50, "", owned), owner(30, "", owned), owner(70, "", owned)}, 100 * s, 31 * s},
		{"others wrote other things", 0, 0, []metav1.ManagedFieldsEntry{owner(10, "", other), owner(20, "status", owned), owner(0, "", owned), owner(30, "", owned)}, 100 * s, 31 * s},
		{"cannot be read", 0, 0, []metav1.ManagedFieldsEntry{owner(30, "", "{"), owner(30, "", `{"f:spec":[]}`), {FieldsV1: nil, Time: &metav1.Time{Time: zero}}}, 100 * s, 100 * s},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: tc.owners}}
			if tc.created != 0 {
				n.CreationTimestamp = metav1.NewTime(zero.Add(time.Duration(tc.created) * s))
			}
			taint := &corev1.Taint{}
			if tc.added != 0 {
				added := metav1.NewTime(zero.Add(time.Duration(tc.added) * s))
				taint.TimeAdded = &added
			}
			if got := since(n, taint, zero.Add(tc.seen)).Sub(zero); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestDue: what becomes of a pod of a node whose taints were added a minute ago, or at no time that
// is known.
func TestDue(t *testing.T) {
	now := zero.Add(time.Hour)
	added := metav1.NewTime(now.Add(-61 * s)) // of which a second may not have been
	taint := func(key string, at *metav1.Time) corev1.Taint {
		return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: at}
	}
	tolerates := func(key string, seconds int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}
	}
	forGood := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists}
	const never, unknown = time.Duration(-1 << 63), time.Duration(1<<63 - 1)
	for name, tc := range map[string]struct {
		taints []corev1.Taint
		tols   []corev1.Toleration
		came   time.Duration // ago
		in     time.Duration
	}{
		"no taint":                             {nil, nil, time.Hour, never},
		"another effect":                       {[]corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}, nil, time.Hour, never},
		"not tolerated":                        {[]corev1.Taint{taint("a", &added)}, nil, time.Hour, -60 * s},
		"not tolerated, of no time":            {[]corev1.Taint{taint("a", nil)}, nil, time.Hour, 0},
		"for good":                             {[]corev1.Taint{taint("a", &added)}, []corev1.Toleration{forGood}, time.Hour, never},
		"for a while":                          {[]corev1.Taint{taint("a", &added)}, []corev1.Toleration{tolerates("a", 300)}, time.Hour, 240 * s},
		"the shorter of two":                   {[]corev1.Taint{taint("a", &added), taint("b", &added)}, []corev1.Toleration{tolerates("a", 300), tolerates("b", 90)}, time.Hour, 30 * s},
		"came after the taint":                 {[]corev1.Taint{taint("a", &added)}, []corev1.Toleration{tolerates("a", 300)}, 10 * s, 291 * s},
		"for a while, of no time":              {[]corev1.Taint{taint("a", nil)}, []corev1.Toleration{tolerates("a", 300)}, time.Hour, unknown},
		"for a while, of no time, and at once": {[]corev1.Taint{taint("a", nil), taint("b", &added)}, []corev1.Toleration{tolerates("a", 300)}, time.Hour, -60 * s},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-tc.came))}, Spec: corev1.PodSpec{Tolerations: tc.tols}}
		at, leaves := Due(&corev1.Node{Spec: corev1.NodeSpec{Taints: tc.taints}}, p, now)
		got := at.Sub(now)
		switch {
		case !leaves:
			got = never
		case at.IsZero():
			got = unknown
		}
		if got != tc.in {
			t.Errorf("%s: leaves in %v, want %v", name, got, tc.in)
		}
	}
}

func TestBoundAt(t *testing.T) {
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(zero.Add(d)) }
	scheduled := func(status corev1.ConditionStatus, d time.Duration) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodScheduled, Status: status, LastTransitionTime: at(d)}
	}
	for _, tc := range []struct {
		name    string
		created time.Duration
		cs      []corev1.PodCondition
		want    time.Duration
	}{
		{"created on the node", 10 * s, nil, 11 * s},
		{"scheduled", 10 * s, []corev1.PodCondition{scheduled(corev1.ConditionTrue, 20*s)}, 21 * s},
		{"not scheduled", 10 * s, []corev1.PodCondition{scheduled(corev1.ConditionFalse, 20*s)}, 11 * s},
		{"other condition", 10 * s, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(20 * s)}}, 11 * s},
		{"just now", 99*s + 1, nil, 100 * s},
		{"from the future", 101 * s, nil, 100 * s},
		{"scheduled in the future", 10 * s, []corev1.PodCondition{scheduled(corev1.ConditionTrue, 101*s)}, 11 * s},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(tc.created)}, Status: corev1.PodStatus{Conditions: tc.cs}}
			if got := boundAt(p, zero.Add(100*s)).Sub(zero); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// BenchmarkPlan is one look at a pod that waits for its time.
func BenchmarkPlan(b *testing.B) {
	r := &run{
		Controller: &Controller{log: slog.New(slog.DiscardHandler), events: &record.FakeRecorder{}},
		nodes:      map[string]*node{}, evictions: map[string]*eviction{},
	}
	now := time.Now()
	r.note(machine(execute("a")), now)
	p := pod("p", tolerates("node.kubernetes.io/not-ready", 300), tolerates("a", 300))
	b.ReportAllocs()
	for b.Loop() {
		if e, off := r.plan("ns/p", p, now); e == nil || off != nil {
			b.Fatal(e, off)
		}
	}
}
