package podgc

// Tests of the order in which pods that have ended are removed.

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTerminatedOrder(t *testing.T) {
	born := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	made := func(name string, hours int, phase corev1.PodPhase, why string) *corev1.Pod {
		p := pod(name, "n", phase)
		p.CreationTimestamp = metav1.NewTime(born.Add(time.Duration(hours) * time.Hour))
		p.Status.Reason = why
		return p
	}
	pods := []*corev1.Pod{
		made("young", 9, corev1.PodSucceeded, ""),
		made("b", 5, corev1.PodFailed, ""),
		made("a", 5, corev1.PodSucceeded, ""),
		made("evicted-late", 8, corev1.PodFailed, "Evicted"),
		made("running", 0, corev1.PodRunning, ""),
		made("evicted-soon", 7, corev1.PodFailed, "Evicted"),
		made("not-evicted", 6, corev1.PodSucceeded, "Evicted"), // nobody evicts what has succeeded
		made("strange", 0, "", ""),
		made("old", 1, corev1.PodFailed, "Error"),
	}
	for _, tc := range []struct {
		threshold int
		want      string
	}{
		{7, ""},
		{6, "evicted-soon"},
		{3, "evicted-soon evicted-late old a"},
		{1, "evicted-soon evicted-late old a b not-evicted"},
		{0, ""},
	} {
		var names []string
		for _, d := range terminated(pods, tc.threshold) {
			names = append(names, d.pod.Name)
		}
		if got := strings.Join(names, " "); got != tc.want {
			t.Errorf("with %d kept: %q, want %q", tc.threshold, got, tc.want)
		}
	}
	if pods[0].Name != "young" {
		t.Error("the caller's list was put in another order")
	}
}
