// The status of a pod on a light node. Everything here is pure.

package fleet

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

// lightStatus is what the containers of a pod amount to. What the API has already
// keeps its times.
func lightStatus(pod *corev1.Pod, have []runtime.ContainerStatus, host string, at time.Time) *corev1.PodStatus {
	now := metav1.NewTime(at).Rfc3339Copy()
	st := &corev1.PodStatus{
		Phase: phaseOf(pod, have), StartTime: pod.Status.StartTime, ObservedGeneration: pod.Generation,
		HostIP: host, HostIPs: []corev1.HostIP{{IP: host}}, PodIP: host, PodIPs: []corev1.PodIP{{IP: host}},
	}
	if st.StartTime == nil {
		st.StartTime = &now
	}
	for i := range pod.Spec.InitContainers {
		st.InitContainerStatuses = append(st.InitContainerStatuses, initStatus(pod, i, *st.StartTime))
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		at := slices.IndexFunc(have, func(h runtime.ContainerStatus) bool { return h.Name == c.Name })
		if at >= 0 {
			st.ContainerStatuses = append(st.ContainerStatuses, containerStatus(&have[at]))
		}
	}
	ended := st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed
	unready, why := corev1.ConditionTrue, ""
	switch {
	case st.Phase == corev1.PodSucceeded:
		unready, why = corev1.ConditionFalse, "PodCompleted"
	case ended:
		unready, why = corev1.ConditionFalse, "PodFailed"
	case st.Phase != corev1.PodRunning || slices.ContainsFunc(st.ContainerStatuses, func(c corev1.ContainerStatus) bool { return !c.Ready }):
		unready, why = corev1.ConditionFalse, "ContainersNotReady"
	}
	started := corev1.ConditionTrue
	if ended {
		started = corev1.ConditionFalse
	}
	for _, c := range []corev1.PodCondition{
		{Type: corev1.PodReadyToStartContainers, Status: started},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
		{Type: corev1.ContainersReady, Status: unready, Reason: why},
		{Type: corev1.PodReady, Status: unready, Reason: why},
	} {
		c.LastTransitionTime, c.ObservedGeneration = now, pod.Generation
		if o := conditionOf(&pod.Status, c.Type); o != nil && o.Status == c.Status {
			c.LastTransitionTime = o.LastTransitionTime
		}
		st.Conditions = append(st.Conditions, c)
	}
	return st
}

// phaseOf sums containers up. A pod whose restart policy is Always is not over before it is deleted,
// though its containers are not started again: a controller would replace it as fast as it ends.
func phaseOf(pod *corev1.Pod, have []runtime.ContainerStatus) corev1.PodPhase {
	always := pod.Spec.RestartPolicy == corev1.RestartPolicyAlways && pod.DeletionTimestamp == nil
	running, failed := len(have) == 0 || always, false
	for i := range have {
		running = running || have[i].State != runtime.Exited
		failed = failed || have[i].State == runtime.Exited && have[i].ExitCode != 0
	}
	switch {
	case running:
		return corev1.PodRunning
	case failed:
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

func conditionOf(st *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range st.Conditions {
		if st.Conditions[i].Type == t {
			return &st.Conditions[i]
		}
	}
	return nil
}

func initStatus(pod *corev1.Pod, i int, at metav1.Time) corev1.ContainerStatus {
	c := &pod.Spec.InitContainers[i]
	st := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: true}
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways { // a sidecar
		st.State.Running = &corev1.ContainerStateRunning{StartedAt: at}
		st.Started = new(true)
		return st
	}
	st.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: at, FinishedAt: at}
	return st
}

func containerStatus(h *runtime.ContainerStatus) corev1.ContainerStatus {
	running := h.State == runtime.Running
	st := corev1.ContainerStatus{
		Name: h.Name, Image: h.Image, ImageID: h.Image, ContainerID: "fake://" + h.ID, Ready: running, Started: &running,
	}
	began := metav1.NewTime(h.StartedAt).Rfc3339Copy()
	if h.State != runtime.Exited {
		st.State.Running = &corev1.ContainerStateRunning{StartedAt: began}
		return st
	}
	reason := "Completed"
	if h.ExitCode != 0 {
		reason = "Error"
	}
	st.State.Terminated = &corev1.ContainerStateTerminated{
		ExitCode: int32(h.ExitCode), Reason: reason, ContainerID: st.ContainerID, //nolint:gosec // 0 to 255
		StartedAt: began, FinishedAt: metav1.NewTime(h.EndedAt).Rfc3339Copy(),
	}
	return st
}

// sameStatus tells whether writing want would change nothing that means anything:
// phase, states of containers, conditions.
func sameStatus(have, want *corev1.PodStatus) bool {
	if have.Phase != want.Phase || len(have.ContainerStatuses) != len(want.ContainerStatuses) || have.PodIP != want.PodIP {
		return false
	}
	for i, c := range want.ContainerStatuses {
		if h := have.ContainerStatuses[i]; h.Name != c.Name || h.Ready != c.Ready || h.ContainerID != c.ContainerID ||
			(h.State.Terminated == nil) != (c.State.Terminated == nil) {
			return false
		}
	}
	for _, c := range want.Conditions {
		if h := conditionOf(have, c.Type); h == nil || h.Status != c.Status {
			return false
		}
	}
	return true
}
