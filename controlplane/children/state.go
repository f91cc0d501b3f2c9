package children

// What state a pod is in, and which of several is missed least.

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Ended tells whether none of p's containers will run again.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Active tells whether p runs, or may yet, and stays.
func Active(p *corev1.Pod) bool { return !Ended(p) && p.DeletionTimestamp == nil }

// Terminating tells whether p is being deleted and may still run.
func Terminating(p *corev1.Pod) bool { return !Ended(p) && p.DeletionTimestamp != nil }

// Filter returns those of pods for which is holds.
func Filter(pods []*corev1.Pod, is func(*corev1.Pod) bool) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range pods {
		if is(p) {
			out = append(out, p)
		}
	}
	return out
}

// Ready tells whether p serves.
func Ready(p *corev1.Pod) bool {
	c := readiness(p)
	return c != nil && c.Status == corev1.ConditionTrue
}

// readiness is the Ready condition of p; nil if it has none.
func readiness(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == corev1.PodReady {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// Available tells whether p has been ready for at least that long. If p only
// needs more time, in is how much.
func Available(p *corev1.Pod, long time.Duration, now time.Time) (ok bool, in time.Duration) {
	c := readiness(p)
	switch {
	case c == nil || c.Status != corev1.ConditionTrue:
		return false, 0
	case long <= 0:
		return true, 0
	case c.LastTransitionTime.IsZero():
		return false, 0
	}
	in = c.LastTransitionTime.Add(long).Sub(now)
	return in <= 0, max(in, 0)
}

// ByWorth sorts pods so that the one missed least comes first: one that is on no
// node, that does not run yet, that is not ready, that costs less to delete
// (annotation controller.kubernetes.io/pod-deletion-cost), that has more company
// on its node, that has been ready for a shorter time, that has restarted more
// often, that is younger. company counts the pods like p on a node. Of times
// only the order of magnitude counts; what is equal in everything is chosen from
// by uid, so that it does not always fall on the same zone. (KEP-2185, KEP-2255.)
func ByWorth(pods []*corev1.Pod, company func(node string) int, now time.Time) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(
			order(a.Spec.NodeName != "", b.Spec.NodeName != ""),
			cmp.Compare(phaseWorth[a.Status.Phase], phaseWorth[b.Status.Phase]),
			order(Ready(a), Ready(b)),
			cmp.Compare(deletionCost(a), deletionCost(b)),
			-cmp.Compare(company(a.Spec.NodeName), company(b.Spec.NodeName)),
			cmp.Compare(age(readySince(a), now), age(readySince(b), now)),
			-restarts(a, b),
			cmp.Compare(age(a.CreationTimestamp.Time, now), age(b.CreationTimestamp.Time, now)),
			cmp.Compare(a.UID, b.UID),
		)
	})
}

var phaseWorth = map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodUnknown: 1, corev1.PodRunning: 2}

func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func deletionCost(p *corev1.Pod) int64 {
	n, err := strconv.ParseInt(p.Annotations[corev1.PodDeletionCost], 10, 32)
	if err != nil {
		return 0
	}
	return n
}

// readySince is since when p is ready by its node's account, which is not before it was
// made; zero if it is not.
func readySince(p *corev1.Pod) time.Time {
	c := readiness(p)
	switch {
	case c == nil || c.Status != corev1.ConditionTrue:
		return time.Time{}
	case c.LastTransitionTime.Time.Before(p.CreationTimestamp.Time):
		return p.CreationTimestamp.Time
	}
	return c.LastTransitionTime.Time
}

// age is the order of magnitude of the time since t: equal for times of which the
// longer is less than about twice the shorter. A time that is not known is as
// good as now.
func age(t, now time.Time) int64 {
	if d := now.Sub(t); d > 0 && !t.IsZero() {
		return int64(math.Log2(float64(d)))
	}
	return -1
}

// restarts compares the most often restarted containers of a and b, then the
// most often restarted sidecars.
func restarts(a, b *corev1.Pod) int {
	am, as := mostRestarts(a)
	bm, bs := mostRestarts(b)
	return cmp.Or(cmp.Compare(am, bm), cmp.Compare(as, bs))
}

func mostRestarts(p *corev1.Pod) (regular, sidecar int32) {
	for i := range p.Status.ContainerStatuses {
		regular = max(regular, p.Status.ContainerStatuses[i].RestartCount)
	}
	always := func(c corev1.Container) bool {
		return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		if slices.ContainsFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == s.Name && always(c) }) {
			sidecar = max(sidecar, s.RestartCount)
		}
	}
	return regular, sidecar
}
