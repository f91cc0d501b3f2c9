// This file computes the status of a pod. Everything in it is pure.

package pods

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

// Reasons of containers that wait or have ended.
const (
	reasonCreating      = "ContainerCreating"
	reasonInitializing  = "PodInitializing"
	reasonConfigError   = "CreateContainerConfigError"
	reasonRunError      = "RunContainerError"
	reasonStartError    = "StartError"
	reasonCompleted     = "Completed"
	reasonError         = "Error"
	reasonOOMKilled     = "OOMKilled"
	reasonStatusUnknown = "ContainerStatusUnknown"
)

// surroundings are the facts of a status that are not about containers.
type surroundings struct {
	runtimeName     string
	recursive       bool // runtime.Info.RecursiveReadOnly
	podIPs, hostIPs []string
	// prepared is whether volumes and sandbox exist, as checked by this run of the agent
	// or, before that, by an earlier one.
	prepared bool
	ipsKnown bool
	// conditions are those of the API's status, for readiness gates.
	conditions []corev1.PodCondition
}

// statusOf computes the pod's status. base is the one before, whose start time and
// transition times are kept.
func statusOf(s situation, in intent, base *corev1.PodStatus, around surroundings) corev1.PodStatus {
	st := corev1.PodStatus{
		Phase:              phaseOf(s, in),
		StartTime:          base.StartTime,
		QOSClass:           base.QOSClass,
		HostIP:             first(around.hostIPs),
		ObservedGeneration: s.pod.Generation,
	}
	if st.StartTime == nil {
		now := metav1.NewTime(s.now).Rfc3339Copy()
		st.StartTime = &now
	}
	for _, ip := range around.hostIPs {
		st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
	}
	if around.ipsKnown {
		st.PodIP = first(around.podIPs)
		for _, ip := range around.podIPs {
			st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
		}
	} else {
		st.PodIP, st.PodIPs = base.PodIP, base.PodIPs
	}
	if s.kill != nil && terminal(st.Phase) {
		st.Reason, st.Message = s.kill.reason, s.kill.message
	}
	withMounts := mountBytes(s.facts) <= maxStatusMounts
	for i := range s.facts {
		if s.kill != nil && s.kill.refused && s.facts[i].newest == nil {
			continue // it was never tried
		}
		cs := containerStatus(&s.facts[i], s, in, around)
		if withMounts {
			cs.VolumeMounts = mountStatuses(s.facts[i].spec, around.recursive)
		}
		if terminal(st.Phase) && in.initialized && cs.State.Terminated == nil && s.facts[i].kind != ephemeral {
			cs.State = lostState("The container could not be located when the pod was terminated")
		}
		switch s.facts[i].kind {
		case mainContainer:
			st.ContainerStatuses = append(st.ContainerStatuses, cs)
		case ephemeral:
			st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, cs)
		default:
			st.InitContainerStatuses = append(st.InitContainerStatuses, held(s.pod, &s.facts[i], cs, base))
		}
	}
	st.Conditions = transition(base.Conditions, conditionsOf(s, in, &st, around), metav1.NewTime(s.now).Rfc3339Copy())
	return st
}

// held returns the status of an init container or sidecar, or the one before where the API
// refuses the change: an init container that has succeeded does not run again for the API,
// unless the policy is Always. After a reboot it does run, and until it has ended its old
// status stays.
func held(pod *corev1.Pod, f *fact, cs corev1.ContainerStatus, base *corev1.PodStatus) corev1.ContainerStatus {
	if f.kind != initContainer || cs.State.Terminated != nil || pod.Spec.RestartPolicy == corev1.RestartPolicyAlways && f.spec.RestartPolicy == nil {
		return cs
	}
	for i := range base.InitContainerStatuses {
		old := &base.InitContainerStatuses[i]
		if t := old.State.Terminated; old.Name == cs.Name && t != nil && t.ExitCode == 0 {
			return *old
		}
	}
	return cs
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func terminal(p corev1.PodPhase) bool {
	return p == corev1.PodSucceeded || p == corev1.PodFailed
}

// lostState is the state of a container whose end is not known.
func lostState(message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: reasonStatusUnknown, Message: message, ExitCode: 137,
	}}
}

// phaseOf sums the containers up. A pod is Succeeded or Failed only when nothing
// of it runs any more.
func phaseOf(s situation, in intent) corev1.PodPhase {
	waiting, started, succeeded := false, false, true
	for i := range s.facts {
		f := &s.facts[i]
		if f.kind != mainContainer {
			continue
		}
		waiting = waiting || f.newest == nil
		started = started || f.newest != nil
		succeeded = succeeded && f.succeeded()
	}
	switch {
	case in.finished && s.quiet():
		if in.failed || s.kill != nil && s.kill.failed || !succeeded {
			return corev1.PodFailed
		}
		return corev1.PodSucceeded
	case !in.initialized || waiting || !started:
		return corev1.PodPending
	}
	return corev1.PodRunning
}

func containerStatus(f *fact, s situation, in intent, around surroundings) corev1.ContainerStatus {
	cs := corev1.ContainerStatus{Name: f.spec.Name, Image: cut(f.spec.Image, maxStatusImage)}
	if s := stopSignal(f.spec); s != "" {
		cs.StopSignal = &s
	}
	started := f.running() && f.started && !f.starting
	cs.Started = &started
	if n := f.newest; n != nil {
		cs.RestartCount = int32(n.Attempt) //nolint:gosec // counted up from 0
		cs.ContainerID = containerID(n, around)
		image := cut(n.Image, maxStatusImage)
		cs.Image, cs.ImageID = image, image
		if p := f.previous; p != nil {
			cs.LastTerminationState.Terminated = terminatedState(p, s.pod, around)
		}
	}
	wait, waits := in.waiting[f.spec.Name]
	switch {
	case f.newest == nil, f.running() && f.starting:
		if !waits {
			wait = blocked{reason: defaultWait(s.pod)}
		}
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: wait.reason, Message: wait.message}
	case f.running():
		cs.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(f.newest.StartedAt).Rfc3339Copy()}
	default:
		ended := terminatedState(f.newest, s.pod, around)
		if !waits && f.newest.ID == "" && f.newest.Reason == reasonStartError && !in.finished && f.restarts(s.pod) {
			wait, waits = blocked{reason: reasonRunError, message: f.newest.Message}, true
		}
		if !waits && f.replaced && !in.finished {
			// The API takes no container back that has ended for good by the policy of its pod.
			wait, waits = blocked{reason: defaultWait(s.pod)}, true
		}
		if !waits {
			cs.State.Terminated = ended
			break
		}
		cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: wait.reason, Message: wait.message}
		cs.LastTerminationState.Terminated = ended
	}
	switch f.kind {
	case mainContainer, sidecar:
		cs.Ready = started && f.ready
	case initContainer:
		cs.Ready = f.succeeded()
	}
	return cs
}

// mountStatuses lists the mounts of a container. recursive is whether the mounts below a read-only
// one are, too.
func mountStatuses(spec *corev1.Container, recursive bool) []corev1.VolumeMountStatus {
	mode := corev1.RecursiveReadOnlyDisabled
	if recursive {
		mode = corev1.RecursiveReadOnlyEnabled
	}
	var list []corev1.VolumeMountStatus
	for _, m := range spec.VolumeMounts {
		st := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			st.RecursiveReadOnly = &mode
		}
		list = append(list, st)
	}
	return list
}

// mountBytes is about the size of all mounts of a pod in its status.
func mountBytes(facts []fact) int {
	n := 0
	for i := range facts {
		for _, m := range facts[i].spec.VolumeMounts {
			n += len(m.Name) + len(m.MountPath) + 100 // with the names of the fields
		}
	}
	return n
}

// defaultWait is the waiting reason of a container that has not started yet and is not
// blocked.
func defaultWait(pod *corev1.Pod) string {
	if len(pod.Spec.InitContainers) > 0 {
		return reasonInitializing
	}
	return reasonCreating
}

func containerID(c *runtime.ContainerStatus, around surroundings) string {
	if c.ID == "" {
		return ""
	}
	return around.runtimeName + "://" + c.ID
}

const (
	// maxStatusMessages bounds the termination messages of a pod in its status, in bytes; each
	// container has an equal share, as in the kubelet.
	maxStatusMessages = 12 << 10
	// maxStatusImage bounds an image's name in a status, which has it twice: a specification whose
	// image is as long as an object may be would have a status that cannot be stored.
	maxStatusImage = 1 << 10
	// maxStatusMounts bounds the mounts of a pod in its status, in bytes: a status with more has none.
	maxStatusMounts = 64 << 10
)

// cut is at most the first n bytes of s, without a part of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func terminatedState(c *runtime.ContainerStatus, pod *corev1.Pod, around surroundings) *corev1.ContainerStateTerminated {
	share := maxStatusMessages / max(1, len(pod.Spec.InitContainers)+len(pod.Spec.Containers)+len(pod.Spec.EphemeralContainers))
	t := &corev1.ContainerStateTerminated{
		ExitCode:    int32(c.ExitCode), //nolint:gosec // at most 255
		Reason:      c.Reason,
		Message:     cut(c.Message, share),
		ContainerID: containerID(c, around),
	}
	if !c.StartedAt.IsZero() {
		t.StartedAt = metav1.NewTime(c.StartedAt).Rfc3339Copy()
	}
	if !c.EndedAt.IsZero() {
		t.FinishedAt = metav1.NewTime(c.EndedAt).Rfc3339Copy()
	}
	switch {
	case c.OOMKilled:
		t.Reason = reasonOOMKilled
	case t.Reason != "":
	case c.ExitCode == 0:
		t.Reason = reasonCompleted
	default:
		t.Reason = reasonError
	}
	return t
}

// conditionsOf returns the conditions that are the node's to set.
func conditionsOf(s situation, in intent, st *corev1.PodStatus, around surroundings) []corev1.PodCondition {
	is := func(t corev1.PodConditionType, ok bool, reason, message string) corev1.PodCondition {
		c := corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: s.pod.Generation}
		if !ok {
			c.Status = corev1.ConditionFalse
		}
		return c
	}
	list := []corev1.PodCondition{
		sandboxCondition(s, st, around, is),
		initializedCondition(s, in, st, is),
	}
	var containers corev1.PodCondition
	unready := names(s.facts, func(f *fact) bool {
		return (f.kind == mainContainer || f.kind == sidecar) && !readyOf(st, f.spec.Name)
	})
	switch {
	case st.Phase == corev1.PodSucceeded:
		containers = is(corev1.ContainersReady, false, "PodCompleted", "")
	case st.Phase == corev1.PodFailed:
		containers = is(corev1.ContainersReady, false, "PodFailed", "")
	case len(unready) > 0:
		containers = is(corev1.ContainersReady, false, "ContainersNotReady", fmt.Sprintf("containers with unready status: %v", unready))
	default:
		containers = is(corev1.ContainersReady, true, "", "")
	}
	ready := containers
	ready.Type = corev1.PodReady
	if ready.Status == corev1.ConditionTrue {
		if why := closedGates(s.pod, around.conditions); why != "" {
			ready = is(corev1.PodReady, false, "ReadinessGatesNotReady", why)
		}
	}
	list = append(list, ready, containers)
	if s.kill != nil && s.kill.disrupted && terminal(st.Phase) {
		list = append(list, shutdownCondition(s.pod.Generation))
	}
	return append(list, is(corev1.PodScheduled, true, "", ""))
}

// sandboxCondition is PodReadyToStartContainers: whether the sandbox exists.
func sandboxCondition(s situation, st *corev1.PodStatus, around surroundings,
	is func(corev1.PodConditionType, bool, string, string) corev1.PodCondition,
) corev1.PodCondition {
	switch {
	case around.prepared && !terminal(st.Phase):
		return is(corev1.PodReadyToStartContainers, true, "", "")
	case slices.ContainsFunc(s.facts, func(f fact) bool { return f.newest != nil }):
		return is(corev1.PodReadyToStartContainers, false, "PodSandboxNotReady", "pod sandbox is not ready")
	}
	return is(corev1.PodReadyToStartContainers, false, "PodSandboxNotReady", "no pod sandbox exists")
}

func initializedCondition(s situation, in intent, st *corev1.PodStatus,
	is func(corev1.PodConditionType, bool, string, string) corev1.PodCondition,
) corev1.PodCondition {
	if in.initialized {
		if st.Phase == corev1.PodSucceeded {
			return is(corev1.PodInitialized, true, "PodCompleted", "")
		}
		return is(corev1.PodInitialized, true, "", "")
	}
	left := names(s.facts, func(f *fact) bool {
		return f.kind == initContainer && !f.passed(s.pod) || f.kind == sidecar && (!f.running() || !f.started)
	})
	return is(corev1.PodInitialized, false, "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %v", left))
}

func names(facts []fact, want func(*fact) bool) []string {
	var list []string
	for i := range facts {
		if want(&facts[i]) {
			list = append(list, facts[i].spec.Name)
		}
	}
	return list
}

func readyOf(st *corev1.PodStatus, name string) bool {
	for _, list := range [][]corev1.ContainerStatus{st.ContainerStatuses, st.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return list[i].Ready
			}
		}
	}
	return false
}

// closedGates names the readiness gates that are not true.
func closedGates(pod *corev1.Pod, conditions []corev1.PodCondition) string {
	var why []string
	for _, g := range pod.Spec.ReadinessGates {
		switch c := conditionOf(conditions, g.ConditionType); {
		case c == nil:
			why = append(why, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", g.ConditionType))
		case c.Status != corev1.ConditionTrue:
			why = append(why, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %s", g.ConditionType, c.Status))
		}
	}
	return strings.Join(why, ", ")
}

func conditionOf(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(list, func(c corev1.PodCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// transition gives each condition the time at which its status last changed.
func transition(old, list []corev1.PodCondition, now metav1.Time) []corev1.PodCondition {
	for i := range list {
		list[i].LastTransitionTime = now
		if c := conditionOf(old, list[i].Type); c != nil && c.Status == list[i].Status {
			list[i].LastTransitionTime = c.LastTransitionTime
		}
	}
	return list
}

// merged returns the API's status after ours is written: conditions of other writers
// stay. An ended pod stays ended, and keeps the API's reason if ours is empty. If another
// writer has changed one of our conditions, it is changed back, with now as its transition
// time.
func merged(api, ours *corev1.PodStatus, now metav1.Time) *corev1.PodStatus {
	out := ours.DeepCopy()
	if terminal(api.Phase) {
		out.Phase = api.Phase
		out.Reason, out.Message = cmp.Or(ours.Reason, api.Reason), cmp.Or(ours.Message, api.Message)
	}
	if api.QOSClass != "" {
		out.QOSClass = api.QOSClass
	}
	if api.StartTime != nil {
		out.StartTime = api.StartTime
	}
	out.NominatedNodeName = api.NominatedNodeName
	out.Resize = api.Resize
	out.ResourceClaimStatuses = api.ResourceClaimStatuses
	out.ExtendedResourceClaimStatus = api.ExtendedResourceClaimStatus
	out.Conditions = slices.Clone(api.Conditions)
	for _, c := range ours.Conditions {
		old := conditionOf(out.Conditions, c.Type)
		switch {
		case old == nil:
			out.Conditions = append(out.Conditions, c)
			continue
		case old.Status == c.Status:
			c.LastTransitionTime = old.LastTransitionTime
		case !c.LastTransitionTime.After(old.LastTransitionTime.Time):
			c.LastTransitionTime = now
		}
		*old = c
	}
	return out
}
