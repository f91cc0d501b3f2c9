package kinds

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const onlyThese = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`," +
	"`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations)," +
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"

func TestValidatePodUpdate(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	fresh := func() pod {
		p := goodPod(t)()
		p.Spec.NodeName = "node-1"
		p.Spec.Tolerations = []corev1.Toleration{{Key: "a", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: ptr[int64](300)}}
		p.Spec.ActiveDeadlineSeconds = ptr[int64](100)
		return p
	}
	mutateUpdate(t, fresh, validatePodUpdate, []mutation[pod]{
		{"label", func(p pod) { p.Labels = map[string]string{"a": "b"} }, nil},
		{"image", func(p pod) { web(p).Image = "nginx:2" }, nil},
		{"init image", func(p pod) { p.Spec.InitContainers[0].Image = "busybox:2" }, nil},
		{"no image", func(p pod) { web(p).Image = "" }, bad("spec.containers[0].image: Required value")},
		{"add a container", func(p pod) {
			c := *web(p)
			c.Name = "other"
			p.Spec.Containers = append(p.Spec.Containers, c)
		}, bad("spec.containers: Forbidden: pod updates may not add or remove containers")},
		{"remove an init container", func(p pod) { p.Spec.InitContainers = nil }, bad("spec.initContainers: Forbidden")},
		{"command", func(p pod) { web(p).Command = []string{"x"} }, bad(onlyThese + "spec.containers[0].command")},
		{"two fields", func(p pod) { web(p).Env[0].Value = "c"; p.Spec.Hostname = "h" }, bad(onlyThese + "spec.containers[0].env[0].value\nspec.hostname")},
		{"node", func(p pod) { p.Spec.NodeName = "node-2" }, bad(onlyThese + "spec.nodeName")},
		{"node selector", func(p pod) { p.Spec.NodeSelector["a.b/c"] = "b" }, bad(onlyThese + "spec.nodeSelector[a.b/c]")},
		{"affinity", func(p pod) { p.Spec.Affinity = &corev1.Affinity{} }, bad(onlyThese + "spec.affinity")},
		{"ephemeral container", func(p pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "dbg", Image: "busybox", ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}}}
		}, bad(onlyThese + "spec.ephemeralContainers")},
		{"earlier deadline", func(p pod) { p.Spec.ActiveDeadlineSeconds = ptr[int64](50) }, nil},
		{
			"later deadline", func(p pod) { p.Spec.ActiveDeadlineSeconds = ptr[int64](101) },
			bad("spec.activeDeadlineSeconds: Invalid value: 101: must be less than or equal to previous value"),
		},
		{"no deadline", func(p pod) { p.Spec.ActiveDeadlineSeconds = nil }, bad("spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value")},
		{"add a toleration", func(p pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "b", Operator: "Exists"})
		}, nil},
		{"toleration seconds", func(p pod) { p.Spec.Tolerations[0].TolerationSeconds = ptr[int64](1) }, nil},
		{"remove a toleration", func(p pod) { p.Spec.Tolerations = nil }, bad("spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds")},
		{"change a toleration", func(p pod) { p.Spec.Tolerations[0].Key = "b" }, bad("spec.tolerations: Forbidden")},
		{"grace", func(p pod) { p.Spec.TerminationGracePeriodSeconds = ptr[int64](1) }, bad(onlyThese + "spec.terminationGracePeriodSeconds")},
		{
			"add a gate", func(p pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} },
			bad("spec.schedulingGates[0]: Forbidden: only deletion is allowed, but found new scheduling gate 'g'"),
		},
		{
			"become a mirror", func(p pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
			bad("metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation"),
		},
	})
}

func TestValidatePodUpdateFromNegativeGrace(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	fresh := func() pod {
		p := goodPod(t)()
		p.Spec.TerminationGracePeriodSeconds = ptr[int64](-1)
		p.Spec.NodeName = "n"
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		return p
	}
	mutateUpdate(t, fresh, validatePodUpdate, []mutation[pod]{
		{"to one", func(p pod) { p.Spec.TerminationGracePeriodSeconds = ptr[int64](1) }, nil},
		{"to two", func(p pod) { p.Spec.TerminationGracePeriodSeconds = ptr[int64](2) }, bad(onlyThese)},
		{"stop being a mirror", func(p pod) { p.Annotations = nil }, bad("metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not remove")},
		{"be another mirror", func(p pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "y" }, bad("metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not update")},
	})
}

func TestValidatePodUpdateWhileGated(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	term := func(r ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: r}
	}
	a, b := corev1.NodeSelectorRequirement{Key: "a", Operator: "Exists"}, corev1.NodeSelectorRequirement{Key: "b", Operator: "Exists"}
	affinity := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
	fresh := func() pod {
		p := goodPod(t)()
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}, {Name: "h"}}
		p.Spec.Affinity = affinity(term(a))
		return p
	}
	const at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
	mutateUpdate(t, fresh, validatePodUpdate, []mutation[pod]{
		{"open a gate", func(p pod) { p.Spec.SchedulingGates = p.Spec.SchedulingGates[1:] }, nil},
		{"open all", func(p pod) { p.Spec.SchedulingGates = nil }, nil},
		{"swap a gate", func(p pod) { p.Spec.SchedulingGates[0].Name = "x" }, bad("spec.schedulingGates[0]: Forbidden")},
		{"add to the node selector", func(p pod) { p.Spec.NodeSelector["zone"] = "z" }, nil},
		{"change the node selector", func(p pod) { p.Spec.NodeSelector["disk"] = "hdd" }, bad("spec.nodeSelector: Invalid value")},
		{"drop the node selector", func(p pod) { p.Spec.NodeSelector = nil }, bad("spec.nodeSelector: Invalid value")},
		{"tighten a term", func(p pod) { p.Spec.Affinity = affinity(term(a, b)) }, nil},
		{"change a term", func(p pod) { p.Spec.Affinity = affinity(term(b, a)) }, bad(at + "[0]: Invalid value")},
		{"add a term", func(p pod) { p.Spec.Affinity = affinity(term(a), term(b)) }, bad(at + ": Invalid value")},
		{"drop the affinity", func(p pod) { p.Spec.Affinity = nil }, bad(at + ": Invalid value")},
		{"something else", func(p pod) { p.Spec.Hostname = "h" }, bad(onlyThese)},
	})
	bare := func() pod {
		p := fresh()
		p.Spec.Affinity = nil
		return p
	}
	mutateUpdate(t, bare, validatePodUpdate, []mutation[pod]{
		{"first affinity", func(p pod) { p.Spec.Affinity = affinity(term(a)) }, nil},
		{"first pod affinity", func(p pod) { p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}} }, bad(onlyThese)},
	})
}

func TestValidatePodStatusUpdate(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	done := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	at := func(policy corev1.RestartPolicy, state corev1.ContainerState) func() pod {
		return func() pod {
			p := goodPod(t)()
			p.Spec.RestartPolicy = policy
			p.Spec.NodeName = "node-1"
			p.Status.QOSClass = corev1.PodQOSBestEffort
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", State: state}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "setup", State: state}}
			return p
		}
	}
	mutateUpdate(t, at(corev1.RestartPolicyAlways, running), validatePodStatusUpdate, []mutation[pod]{
		{"addresses", func(p pod) {
			p.Status.PodIP, p.Status.PodIPs = "10.0.0.1", []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
			p.Status.HostIP, p.Status.HostIPs = "10.0.0.2", []corev1.HostIP{{IP: "10.0.0.2"}}
		}, nil},
		{"bad address", func(p pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "x"}} }, bad("status.podIPs[0]: Invalid value")},
		{
			"two of a family", func(p pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}} },
			bad("status.podIPs: Invalid value: [\"10.0.0.1\",\"10.0.0.2\"]: may specify no more than one IP for each IP family"),
		},
		{"three addresses", func(p pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "::1"}, {IP: "::2"}} }, bad("status.podIPs: Invalid value")},
		{"host addresses", func(p pod) { p.Status.HostIP, p.Status.HostIPs = "10.0.0.1", []corev1.HostIP{{IP: "10.0.0.2"}} }, bad("status.hostIPs[0].ip: Invalid value")},
		{"quality of service", func(p pod) { p.Status.QOSClass = corev1.PodQOSGuaranteed }, bad("status.qosClass: Invalid value: \"Guaranteed\": field is immutable")},
		{"nominated node", func(p pod) { p.Status.NominatedNodeName = "A" }, bad("status.nominatedNodeName: Invalid value")},
		{"node", func(p pod) { p.Spec.NodeName = "node-2" }, bad("spec.nodeName: Forbidden: may not be changed directly")},
		{"condition", func(p pod) { p.Status.Conditions = []corev1.PodCondition{{Type: "a b"}} }, bad("status.conditions[0].type: Invalid value")},
		{"generation", func(p pod) { p.Status.ObservedGeneration = -1 }, bad("status.observedGeneration: Invalid value: -1")},
	})
	again := func(p pod) {
		p.Status.ContainerStatuses[0].State, p.Status.InitContainerStatuses[0].State = running, running
	}
	const no = ": Forbidden: may not be transitioned to non-terminated state"
	both := bad("status.containerStatuses[0].state"+no, "status.initContainerStatuses[0].state"+no)
	for _, c := range []struct {
		policy corev1.RestartPolicy
		state  corev1.ContainerState
		want   []string
	}{
		{corev1.RestartPolicyAlways, ended, nil},
		{corev1.RestartPolicyAlways, done, nil},
		{corev1.RestartPolicyOnFailure, ended, nil},
		{corev1.RestartPolicyOnFailure, done, both},
		{corev1.RestartPolicyNever, ended, both},
		{corev1.RestartPolicyNever, done, both},
		{corev1.RestartPolicyNever, running, nil},
	} {
		mutateUpdate(t, at(c.policy, c.state), validatePodStatusUpdate, []mutation[pod]{
			{fmt.Sprintf("%s from %s", c.policy, toJSON(t, c.state)), again, c.want},
		})
	}
	sidecar := func() pod {
		p := at(corev1.RestartPolicyNever, done)()
		p.Spec.InitContainers[0].RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
		return p
	}
	mutateUpdate(t, sidecar, validatePodStatusUpdate, []mutation[pod]{
		{"sidecar runs again", func(p pod) { p.Status.InitContainerStatuses[0].State = running }, nil},
	})
}

func TestValidatePodEphemeralContainersUpdate(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	container := func(name string) corev1.EphemeralContainer {
		return corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: name, Image: "busybox", ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}}
	}
	fresh := func() pod {
		p := goodPod(t)()
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{container("first")}
		return p
	}
	add := func(change func(*corev1.EphemeralContainer)) func(pod) {
		return func(p pod) {
			c := container("second")
			change(&c)
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, c)
		}
	}
	type ec = *corev1.EphemeralContainer
	const at = "spec.ephemeralContainers[1]"
	const no = ": Forbidden: cannot be set for an Ephemeral Container"
	mutateUpdate(t, fresh, validatePodEphemeralContainersUpdate, []mutation[pod]{
		{"add", add(func(ec) {}), nil},
		{"add with target", add(func(c ec) { c.TargetContainerName = "web" }), nil},
		{"add with unknown target", add(func(c ec) { c.TargetContainerName = "nope" }), bad(at + `.targetContainerName: Not found: "nope"`)},
		{"add with a name in use", add(func(c ec) { c.Name = "web" }), bad(at + `.name: Duplicate value: "web"`)},
		{"add without image", add(func(c ec) { c.Image = "" }), bad(at + ".image: Required value")},
		{"add with ports", add(func(c ec) { c.Ports = []corev1.ContainerPort{{ContainerPort: 1, Protocol: "TCP"}} }), bad(at + ".ports" + no)},
		{"add with resources", add(func(c ec) { c.Resources.Limits = list("cpu", "1") }), bad(at + ".resources" + no)},
		{"add with probes", add(func(c ec) {
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = &corev1.Probe{}, &corev1.Probe{}, &corev1.Probe{}
		}), bad(at+".livenessProbe"+no, at+".readinessProbe"+no, at+".startupProbe"+no)},
		{"add with lifecycle", add(func(c ec) { c.Lifecycle = &corev1.Lifecycle{} }), bad(at + ".lifecycle" + no)},
		{"add with restart policy", add(func(c ec) { c.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways) }), bad(at + ".restartPolicy" + no)},
		{"add with sub path", add(func(c ec) { c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/x", SubPath: "y"}} }), bad(at + ".volumeMounts[0].subPath" + no)},
		{"remove", func(p pod) { p.Spec.EphemeralContainers = nil }, bad(`spec.ephemeralContainers: Forbidden: existing ephemeral containers "first" may not be removed`)},
		{"change", func(p pod) { p.Spec.EphemeralContainers[0].Image = "x" }, bad(`spec.ephemeralContainers[0]: Forbidden: existing ephemeral containers "first" may not be changed`)},
	})
	static := fresh()
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	check(t, validatePodEphemeralContainersUpdate(static, static), "[]: Forbidden: static pods do not support ephemeral containers")
}

func TestValidatePodBinding(t *testing.T) {
	t.Parallel()
	type binding = *corev1.Binding
	fresh := func() binding {
		return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	}
	mutate(t, fresh, validatePodBinding, []mutation[binding]{
		{"no kind", func(b binding) { b.Target.Kind = "" }, nil},
		{"kind", func(b binding) { b.Target.Kind = "Pod" }, bad(`target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>"`)},
		{"no name", func(b binding) { b.Target.Name = "" }, bad("target.name: Required value")},
		{"annotations", func(b binding) { b.Annotations = map[string]string{"a": "b"} }, nil},
		{"a mirror pod", func(b binding) { b.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, bad("metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation")},
	})
}

// TestChangesAreBounded makes a message of a fixed length from however many
// differences.
func TestChangesAreBounded(t *testing.T) {
	t.Parallel()
	a, b := map[string]string{}, map[string]string{}
	for i := range 1000 {
		a[fmt.Sprint("k", i)], b[fmt.Sprint("k", i)] = "x", "y"
	}
	got := changes(a, b, "spec")
	if len(got) != maxChanges+1 || got[0] != "spec.k0" || got[maxChanges] != "and 990 more" {
		t.Errorf("changes = %q", got)
	}
	if got := changes(a, a, "spec"); len(got) != 0 {
		t.Errorf("changes of nothing = %q", got)
	}
	deep := func(leaf string) any {
		var v any = leaf
		for range 20 {
			v = map[string]any{"a": v}
		}
		return v
	}
	if got, want := changes(deep("x"), deep("y"), "s"), "s"+strings.Repeat(".a", maxChangeDepth); len(got) != 1 || got[0] != want {
		t.Errorf("changes of something deep = %q, want %q", got, want)
	}
}

// The resources of a pod as a whole.
func TestValidatePodLevelResize(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	fresh := func() pod {
		p := goodPod(t)()
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu", "3", "memory", "3Gi"), Limits: list("cpu", "4", "memory", "4Gi", "hugepages-2Mi", "2Mi")}
		p.Status.Resources = &corev1.ResourceRequirements{}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Resources: &corev1.ResourceRequirements{}}}
		return p
	}
	more := func(p pod) { p.Spec.Resources.Requests = list("cpu", "3500m", "memory", "3Gi") }
	mutateUpdate(t, fresh, validatePodResize, []mutation[pod]{
		{"more", more, nil},
		{"no request", func(p pod) { delete(p.Spec.Resources.Requests, "cpu") }, bad("spec.resources.requests: Forbidden: resource requests cannot be removed")},
		{"nothing", func(p pod) { p.Spec.Resources = nil }, bad("spec.resources.requests: Forbidden", "spec.resources.limits: Forbidden", "spec.resources: Forbidden")},
		{"huge pages", func(p pod) { p.Spec.Resources.Limits["hugepages-2Mi"] = resource.MustParse("4Mi") }, bad("spec.resources: Forbidden: only cpu and memory resources are mutable")},
	})
	for _, on := range []bool{true, false} {
		old := fresh()
		old.Status.Resources = nil // the node does not know of pods' resources
		if on {
			old.Spec.NodeName = "n"
		} else {
			old.Status.ContainerStatuses = nil
		}
		p := old.DeepCopy()
		more(p)
		want := ""
		if on {
			want = "spec.resources: Forbidden: Pod running on node without support for resize of pod-level resources"
		}
		if got := validatePodResize(p, old).ToAggregate(); (got == nil) != (want == "") || got != nil && got.Error() != want {
			t.Errorf("running %v: %v, want %q", on, got, want)
		}
	}
}

func TestValidatePodResize(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	of := func(cpu, memory, storage string) corev1.ResourceList {
		return list("cpu", cpu, "memory", memory, "ephemeral-storage", storage)
	}
	fresh := func() pod {
		p := goodPod(t)()
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "dbg", Image: "busybox", ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}}}
		web(p).Resources = corev1.ResourceRequirements{Requests: of("1", "1Gi", "1Gi"), Limits: of("2", "2Gi", "2Gi")}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Resources: &corev1.ResourceRequirements{}}}
		return p
	}
	const at = "spec.containers[0].resources"
	mutateUpdate(t, fresh, validatePodResize, []mutation[pod]{
		{"more", func(p pod) { web(p).Resources.Requests = of("1.5", "1.5Gi", "1Gi") }, nil},
		{"more than the limit", func(p pod) { web(p).Resources.Requests = of("3", "1Gi", "1Gi") }, bad(at + ".requests: Invalid value")},
		{"no request", func(p pod) { delete(web(p).Resources.Requests, "cpu") }, bad(at + ".requests: Forbidden: resource requests cannot be removed")},
		{"no limit", func(p pod) { delete(web(p).Resources.Limits, "memory") }, bad(at + ".limits: Forbidden: resource limits cannot be removed")},
		{"storage", func(p pod) { web(p).Resources.Requests = of("1", "1Gi", "2Gi") }, bad(at + ": Forbidden: only cpu and memory resources are mutable")},
		{"init container", func(p pod) { p.Spec.InitContainers[0].Resources.Requests = list("cpu", "1", "memory", "1Gi") }, nil},
		{
			"storage of an init container", func(p pod) { p.Spec.InitContainers[0].Resources.Requests = list("ephemeral-storage", "1Gi") },
			bad("spec.initContainers[0].resources: Forbidden: only cpu and memory resources are mutable"),
		},
	})
	restarted := func() pod {
		p := fresh()
		p.Spec.InitContainers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: corev1.NotRequired}, {ResourceName: "memory", RestartPolicy: corev1.RestartContainer}}
		return p
	}
	mutateUpdate(t, restarted, validatePodResize, []mutation[pod]{
		{"another", func(p pod) { web(p).Resources.Requests = of("1.5", "1Gi", "1Gi") }, nil},
		{
			"init container that would restart", func(p pod) { p.Spec.InitContainers[0].Resources.Requests = list("cpu", "1") },
			bad("spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"),
		},
	})
	for name, tt := range map[string]struct {
		change func(pod)
		want   string
	}{
		"a node that does not resize": {func(p pod) { p.Status.ContainerStatuses[0].Resources = nil }, "spec: Forbidden: Pod running on node without support for resize"},
		"a static pod":                {func(p pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, "static pods cannot be resized"},
		"a pod of windows":            {func(p pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, "windows pods cannot be resized"},
		"a pod without a node":        {func(p pod) { p.Status = corev1.PodStatus{} }, ""},
		"a pod that initializes": {func(p pod) {
			p.Spec.NodeName, p.Status = "n", corev1.PodStatus{InitContainerStatuses: p.Status.ContainerStatuses}
		}, ""},
		"a pod that waits on its node": {func(p pod) {
			p.Spec.NodeName, p.Status = "n", corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web"}}}
		}, "spec: Forbidden: Pod running on node without support for resize"},
	} {
		old := fresh()
		tt.change(old)
		if got := validatePodResize(old.DeepCopy(), old).ToAggregate(); (got == nil) != (tt.want == "") || got != nil && !strings.Contains(got.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, got, tt.want)
		}
	}
}
