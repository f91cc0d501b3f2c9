// The columns of pods.

package kinds

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// nodeLost is the status reason that the node lifecycle controller gives the
// pods of a node it can no longer reach.
const nodeLost = "NodeLost"

func podTable(gr schema.GroupResource) rest.TableConvertor {
	doc := corev1.PodStatus{}.SwaggerDoc()
	return &table{resource: gr, row: podRow, columns: columns{
		nameColumn(),
		text("Ready", "The aggregate readiness state of this pod for accepting traffic."),
		text("Status", "The aggregate status of the containers in this pod."),
		text("Restarts", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
		ageColumn(),
		wide(text("IP", doc["podIP"])),
		wide(text("Node", corev1.PodSpec{}.SwaggerDoc()["nodeName"])),
		wide(text("Nominated Node", doc["nominatedNodeName"])),
		wide(text("Readiness Gates", corev1.PodSpec{}.SwaggerDoc()["readinessGates"])),
	}}
}

// podRow marks the rows of pods that have ended, so that kubectl can leave
// them out.
func podRow(o runtime.Object, now time.Time) (metav1.TableRow, bool) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return metav1.TableRow{}, false
	}
	row := metav1.TableRow{Cells: podCells(pod, now)}
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		row.Conditions = []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(corev1.PodSucceeded), Message: "The pod has completed successfully."}}
	case corev1.PodFailed:
		row.Conditions = []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(corev1.PodFailed), Message: "The pod failed."}}
	}
	return row, true
}

func podCells(pod *corev1.Pod, now time.Time) []any {
	s := summarize(pod)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, age(s.lastRestart, now))
	}
	ip := pod.Status.PodIP
	if ip == "" && len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	return []any{
		pod.Name,
		fmt.Sprintf("%d/%d", s.ready, s.total),
		s.status,
		restarts,
		age(pod.CreationTimestamp, now),
		or(ip, none),
		or(pod.Spec.NodeName, none),
		or(pod.Status.NominatedNodeName, none),
		readinessGates(pod),
	}
}

// readinessGates counts the extra conditions of a pod that hold.
func readinessGates(pod *corev1.Pod) string {
	if len(pod.Spec.ReadinessGates) == 0 {
		return none
	}
	met := 0
	for _, g := range pod.Spec.ReadinessGates {
		if hasCondition(pod, g.ConditionType) {
			met++
		}
	}
	return fmt.Sprintf("%d/%d", met, len(pod.Spec.ReadinessGates))
}

func hasCondition(pod *corev1.Pod, t corev1.PodConditionType) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// A podSummary is what a pod's containers come to.
type podSummary struct {
	status       string
	ready, total int
	restarts     int
	lastRestart  metav1.Time
}

// restart counts the restarts of one container.
func (s *podSummary) restart(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.lastRestart.Before(&t.FinishedAt) {
		s.lastRestart = t.FinishedAt
	}
}

// summarize finds the one word that tells most about a pod: its phase, unless
// a reason of the pod, of an init container or of a container says more. While
// a pod initializes, the restarts are those of the init containers up to the
// current one; after that, those of the sidecars and containers.
func summarize(pod *corev1.Pod) podSummary {
	s := podSummary{status: or(pod.Status.Reason, string(pod.Status.Phase)), total: len(pod.Spec.Containers)}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.status = corev1.PodReasonSchedulingGated
		}
	}
	sidecars := map[string]bool{}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars[c.Name] = true
			s.total++
		}
	}
	sidecarRestarts, initializing := s.initContainers(pod, sidecars)
	if !initializing || hasCondition(pod, corev1.PodInitialized) {
		s.restarts, s.lastRestart = sidecarRestarts.restarts, sidecarRestarts.lastRestart
		s.containers(pod)
	}
	terminal := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	switch {
	case pod.DeletionTimestamp == nil:
	case pod.Status.Reason == nodeLost:
		s.status = "Unknown"
	case !terminal:
		s.status = "Terminating"
	}
	return s
}

// initContainers looks for the first init container that is not done. It
// returns the restarts of sidecars alone and whether there is such a one.
func (s *podSummary) initContainers(pod *corev1.Pod, sidecars map[string]bool) (podSummary, bool) {
	var sidecarRestarts podSummary
	for i := range pod.Status.InitContainerStatuses {
		c := &pod.Status.InitContainerStatuses[i]
		s.restart(c)
		if sidecars[c.Name] {
			sidecarRestarts.restart(c)
		}
		terminated, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case terminated != nil && terminated.ExitCode == 0:
			continue
		case sidecars[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case terminated != nil:
			s.status = "Init:" + terminatedReason(terminated)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.status = "Init:" + waiting.Reason
		default:
			s.status = fmt.Sprintf("Init:%d/%d", i, len(pod.Spec.InitContainers))
		}
		return sidecarRestarts, true
	}
	return sidecarRestarts, false
}

// containers lets the first container with something to say speak for the pod.
func (s *podSummary) containers(pod *corev1.Pod) {
	running := false
	for i := len(pod.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &pod.Status.ContainerStatuses[i]
		s.restart(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.status = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.status = terminatedReason(c.State.Terminated)
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	// One container that ended well does not end the pod.
	if s.status == "Completed" && running {
		s.status = "NotReady"
		if hasCondition(pod, corev1.PodReady) {
			s.status = "Running"
		}
	}
}

func terminatedReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", t.ExitCode)
	}
}
