package fleet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

// A pod that Kubernetes would start again is not over: its controller would replace it at once, and
// that one, too. It is over once it is deleted.
func TestPhaseByRestartPolicy(t *testing.T) {
	for _, tc := range []struct {
		policy  corev1.RestartPolicy
		code    int
		deleted bool
		want    corev1.PodPhase
	}{
		{corev1.RestartPolicyAlways, 0, false, corev1.PodRunning},
		{corev1.RestartPolicyAlways, 3, false, corev1.PodRunning},
		{corev1.RestartPolicyAlways, 0, true, corev1.PodSucceeded},
		{corev1.RestartPolicyAlways, 143, true, corev1.PodFailed},
		{corev1.RestartPolicyOnFailure, 0, false, corev1.PodSucceeded},
		{corev1.RestartPolicyOnFailure, 3, false, corev1.PodFailed},
		{corev1.RestartPolicyNever, 0, false, corev1.PodSucceeded},
		{corev1.RestartPolicyNever, 3, false, corev1.PodFailed},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: tc.policy, Containers: []corev1.Container{{Name: "c"}}}}
		if tc.deleted {
			pod.DeletionTimestamp = new(metav1.Now())
		}
		have := []runtime.ContainerStatus{{ID: "1", Name: "c", State: runtime.Exited, ExitCode: tc.code}}
		st := lightStatus(pod, have, "192.0.2.1", time.Unix(1, 0))
		if c := st.ContainerStatuses[0]; st.Phase != tc.want || c.Ready || c.RestartCount != 0 || c.State.Terminated == nil {
			t.Errorf("%+v: phase %s, container %+v", tc, st.Phase, c)
		}
		if ready := conditionOf(st, corev1.PodReady); ready.Status != corev1.ConditionFalse {
			t.Errorf("%+v: ready: %+v", tc, ready)
		}
	}
}
