package scheduler

// A test of what is told about demands that are not heeded.

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUnheeded: a pod that demands what is not looked at is told so, once it is bound.
func TestUnheeded(t *testing.T) {
	term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}}
	spread := func(otherwise ...corev1.UnsatisfiableConstraintAction) (out []corev1.TopologySpreadConstraint) {
		for _, o := range otherwise {
			out = append(out, corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: o})
		}
		return out
	}
	for name, tc := range map[string]struct {
		spec corev1.PodSpec
		want string // what is named; empty: nothing is told
	}{
		"nothing": {},
		"preferred": {corev1.PodSpec{
			TopologySpreadConstraints: spread(corev1.ScheduleAnyway),
			Affinity: &corev1.Affinity{
				NodeAffinity:    &corev1.NodeAffinity{},
				PodAffinity:     &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}},
				PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}},
			},
		}, ""},
		"apart": {corev1.PodSpec{Affinity: &corev1.Affinity{
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}},
		}}, "podAntiAffinity"},
		"together, and spread": {corev1.PodSpec{
			TopologySpreadConstraints: spread(corev1.ScheduleAnyway, corev1.DoNotSchedule, corev1.DoNotSchedule),
			Affinity:                  &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}},
		}, "podAffinity, topologySpreadConstraints"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, nil, testNode("node-1", nil))
				defer b.stop()
				b.create(testPod("p", func(p *corev1.Pod) {
					p.Spec.Affinity, p.Spec.TopologySpreadConstraints = tc.spec.Affinity, tc.spec.TopologySpreadConstraints
				}))
				after(time.Second)
				b.isOn("p", "node-1")
				want := []string{"Normal Scheduled: Successfully assigned ns/p to node-1"}
				if tc.want != "" {
					want = append(want, "Warning ConstraintsNotHeeded: Assigned without regard to "+tc.want+", which this scheduler does not know")
				}
				if got := b.events.about("p"); !slices.Equal(got, want) {
					t.Errorf("events %q, want %q", got, want)
				}
			})
		})
	}
}
