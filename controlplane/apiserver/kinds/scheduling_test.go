package kinds

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestTolerations(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	tol := func(o ...corev1.Toleration) func(pod) { return func(p pod) { p.Spec.Tolerations = o } }
	const at = "spec.tolerations[0]"
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"of everything", tol(corev1.Toleration{Operator: "Exists"}), nil},
		{"as Kubernetes adds them", tol(
			corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: ptr[int64](300)},
			corev1.Toleration{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: ptr[int64](300)}), nil},
		{"of a value", tol(corev1.Toleration{Key: "a", Value: "b", Effect: "NoSchedule"}), nil},
		{"negative seconds", tol(corev1.Toleration{Key: "a", Effect: "NoExecute", TolerationSeconds: ptr[int64](-1)}), nil},
		{"no key", tol(corev1.Toleration{Operator: "Equal", Value: "b"}), bad(at + `.operator: Invalid value: "Equal": operator must be Exists when ` + "`key` is empty")},
		{"key", tol(corev1.Toleration{Key: "a b", Operator: "Exists"}), bad(at + `.key: Invalid value: "a b"`)},
		{"exists with value", tol(corev1.Toleration{Key: "a", Operator: "Exists", Value: "b"}), bad(at + ".operator: Invalid value")},
		{"value", tol(corev1.Toleration{Key: "a", Value: "b c"}), bad(at + `.operator: Invalid value: "b c"`)},
		{"operator", tol(corev1.Toleration{Key: "a", Operator: "In"}), bad(at + `.operator: Unsupported value: "In"`)},
		{"number", tol(corev1.Toleration{Key: "a", Operator: "Gt", Value: "5"}), nil},
		{"no number", tol(corev1.Toleration{Key: "a", Operator: "Lt", Value: "x"}), bad(at + `.value: Invalid value: "x"`)},
		{"negative number", tol(corev1.Toleration{Key: "a", Operator: "Lt", Value: "-5"}), nil},
		{"number that matches nothing", tol(corev1.Toleration{Key: "a", Operator: "Gt", Value: "+5"}), bad(at + `.value: Invalid value: "+5"`)},
		{"number with a zero before it", tol(corev1.Toleration{Key: "a", Operator: "Gt", Value: "05"}), bad(at + `.value: Invalid value: "05"`)},
		{"number that is too large", tol(corev1.Toleration{Key: "a", Operator: "Gt", Value: "9223372036854775808"}), bad(at + `.value: Invalid value`)},
		{"effect", tol(corev1.Toleration{Key: "a", Effect: "Never"}), bad(at + `.effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`)},
		{
			"seconds without eviction", tol(corev1.Toleration{Key: "a", Effect: "NoSchedule", TolerationSeconds: ptr[int64](1)}),
			bad(at + `.effect: Invalid value: "NoSchedule": effect must be 'NoExecute' when ` + "`tolerationSeconds` is set"),
		},
		{"seconds of any effect", tol(corev1.Toleration{Key: "a", TolerationSeconds: ptr[int64](1)}), bad(at + `.effect: Invalid value: ""`)},
	})
}

func TestAffinity(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	required := func(terms ...corev1.NodeSelectorTerm) func(pod) {
		return func(p pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
			}}
		}
	}
	expr := func(key string, op corev1.NodeSelectorOperator, values ...string) func(pod) {
		return required(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}})
	}
	fields := func(key string, op corev1.NodeSelectorOperator, values ...string) func(pod) {
		return required(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}})
	}
	pods := func(term corev1.PodAffinityTerm) func(pod) {
		return func(p pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
		}
	}
	const node = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
	const anti = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"empty", func(p pod) { p.Spec.Affinity = &corev1.Affinity{} }, nil},
		{"in", expr("a", "In", "b"), nil},
		{"exists", expr("a", "Exists"), nil},
		{"greater", expr("a", "Gt", "1"), nil},
		{"no terms", required(), bad(node + ": Required value: must have at least one node selector term")},
		{"in nothing", expr("a", "In"), bad(node + "[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'")},
		{"in bad value", expr("a", "NotIn", "ok", "b c"), bad(node + `[0].matchExpressions[0].values[1]: Invalid value: "b c"`)},
		{"exists with value", expr("a", "DoesNotExist", "b"), bad(node + "[0].matchExpressions[0].values: Forbidden")},
		{"greater than two", expr("a", "Lt", "1", "2"), bad(node + "[0].matchExpressions[0].values: Required value: must be specified single value")},
		{"operator", expr("a", "Like", "1"), bad(node + `[0].matchExpressions[0].operator: Invalid value: "Like": not a valid selector operator`)},
		{"key", expr("a b", "Exists"), bad(node + `[0].matchExpressions[0].key: Invalid value: "a b"`)},
		{"by name", fields("metadata.name", "In", "node-1"), nil},
		{"by two names", fields("metadata.name", "In", "a", "b"), bad(node + "[0].matchFields[0].values: Required value: must be only one value")},
		{"by bad name", fields("metadata.name", "In", "A"), bad(node + `[0].matchFields[0].values[0]: Invalid value: "A"`)},
		{"by another field", fields("spec.providerID", "In", "a"), bad(node + `[0].matchFields[0].key: Invalid value: "spec.providerID": not a valid field selector key`)},
		{"by existence of a field", fields("metadata.name", "Exists"), bad(node + `[0].matchFields[0].operator: Invalid value: "Exists"`)},
		{"preferred", func(p pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
				{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"b c"}}}}},
				{Weight: 0},
				{Weight: 101},
			}}}
		}, bad("spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[1].weight: Invalid value: 0: must be in the range 1-100",
			"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[2].weight: Invalid value: 101: must be in the range 1-100")},
		{"pods", pods(corev1.PodAffinityTerm{TopologyKey: "kubernetes.io/hostname", LabelSelector: selector("a=b"), Namespaces: []string{"x"}}), nil},
		{"pods without topology", pods(corev1.PodAffinityTerm{}), bad(anti + ".topologyKey: Required value: can not be empty")},
		{"pods of bad topology", pods(corev1.PodAffinityTerm{TopologyKey: "a b"}), bad(anti + ".topologyKey: Invalid value")},
		{"pods of bad namespace", pods(corev1.PodAffinityTerm{TopologyKey: "a", Namespaces: []string{"X"}}), bad(anti + `.namespace: Invalid value: "X"`)},
		{"pods by a bad selector", pods(corev1.PodAffinityTerm{
			TopologyKey: "a", LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In"}}},
		}), bad(anti + ".labelSelector.matchExpressions[0].values: Required value")},
		{"pods by keys", pods(corev1.PodAffinityTerm{TopologyKey: "a", MatchLabelKeys: []string{"b"}}), bad(anti + ".matchLabelKeys: Forbidden: must not be specified when labelSelector is not set")},
		{"weighted pods", func(p pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: -1}}}}
		}, bad("spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: -1",
			"spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey: Required value")},
	})
}

func TestTopologySpread(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	good := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector("a=b")}
	with := func(change func(*corev1.TopologySpreadConstraint)) func(pod) {
		return func(p pod) {
			c := good
			change(&c)
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{c}
		}
	}
	type constraint = *corev1.TopologySpreadConstraint
	const at = "spec.topologySpreadConstraints[0]"
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"good", with(func(constraint) {}), nil},
		{"skew", with(func(c constraint) { c.MaxSkew = 0 }), bad(at + ".maxSkew: Invalid value: 0: must be greater than zero")},
		{"no key", with(func(c constraint) { c.TopologyKey = "" }), bad(at + ".topologyKey: Required value: can not be empty")},
		{"action", with(func(c constraint) { c.WhenUnsatisfiable = "" }), bad(at + `.whenUnsatisfiable: Unsupported value: ""`)},
		{"domains", with(func(c constraint) { c.MinDomains = ptr[int32](2) }), nil},
		{"no domains", with(func(c constraint) { c.MinDomains = ptr[int32](0) }), bad(at + ".minDomains: Invalid value: 0")},
		{
			"domains anyway", with(func(c constraint) { c.MinDomains, c.WhenUnsatisfiable = ptr[int32](2), corev1.ScheduleAnyway }),
			bad(at + ".minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway"),
		},
		{"node policies", with(func(c constraint) {
			c.NodeAffinityPolicy, c.NodeTaintsPolicy = ptr(corev1.NodeInclusionPolicy("x")), ptr(corev1.NodeInclusionPolicy("y"))
		}), bad(at+".nodeAffinityPolicy: Unsupported value", at+".nodeTaintsPolicy: Unsupported value")},
		{"keys without selector", with(func(c constraint) { c.LabelSelector, c.MatchLabelKeys = nil, []string{"a"} }), bad(at + ".matchLabelKeys: Forbidden")},
		{
			"twice", func(p pod) { p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{good, good} },
			bad(`spec.topologySpreadConstraints[1].{topologyKey, whenUnsatisfiable}: Duplicate value: "{zone, DoNotSchedule}"`),
		},
	})
}

// TestLabelKeys: a label by which pods are matched to the pod itself is named once.
func TestLabelKeys(t *testing.T) {
	t.Parallel()
	const (
		spread   = "spec.topologySpreadConstraints[0]"
		required = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]"
		weighted = "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm"
		selects  = `: Invalid value: "a": exists in both matchLabelKeys and labelSelector`
	)
	expression := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Exists"}}}
	for _, c := range []struct {
		name            string
		match, mismatch []string
		selector        *metav1.LabelSelector
		labels          map[string]string
		pod, template   string // what is wrong, behind the term
	}{
		{"once", []string{"a"}, []string{"c"}, selector("b=c"), map[string]string{"a": "x"}, "", ""},
		{"selected", []string{"b", "a"}, nil, selector("a=x"), map[string]string{"a": "x"}, "[1]" + selects, ""},
		{"selected by an expression", []string{"a"}, nil, expression, map[string]string{"a": "x"}, "[0]" + selects, ""},
		{"selected, but no label of the pod", []string{"a"}, nil, selector("a=x"), nil, "", ""},
		{"selected twice", []string{"a"}, nil, &metav1.LabelSelector{MatchLabels: map[string]string{"a": "x"}, MatchExpressions: expression.MatchExpressions}, nil, "[0]" + selects, "[0]" + selects},
		{"twice", []string{"a", "a"}, nil, selector("b=c"), map[string]string{"a": "x"}, "[1]" + selects, ""},
		{"mismatched and selected", nil, []string{"a"}, selector("a=x"), map[string]string{"a": "x"}, "", ""},
		{"both", []string{"b", "a"}, []string{"a"}, selector("d=e"), nil, `.matchLabelKeys[1]: Invalid value: "a": exists in both matchLabelKeys and mismatchLabelKeys`, `.matchLabelKeys[1]: Invalid value`},
	} {
		pod := goodPod(t)()
		pod.Labels = c.labels
		term := corev1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: c.selector, MatchLabelKeys: c.match, MismatchLabelKeys: c.mismatch}
		pod.Spec.Affinity = &corev1.Affinity{
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}},
			PodAffinity:     &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}},
		}
		places := []string{required, weighted}
		if len(c.mismatch) == 0 {
			places = append(places, spread)
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: c.selector, MatchLabelKeys: c.match,
			}}
		}
		at := func(prefix, wrong string) (all []string) {
			for _, p := range places {
				if wrong != "" {
					all = append(all, prefix+p+wrong)
				}
			}
			return all
		}
		t.Run(c.name, func(t *testing.T) {
			check(t, validatePod(pod), at("", c.pod)...)
			template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}, Spec: pod.Spec}
			check(t, validatePodTemplateSpec(template, field.NewPath("template")), at("template.", c.template)...)
			relabelled := pod.DeepCopy()
			relabelled.Labels, relabelled.ResourceVersion = map[string]string{"a": "x"}, "1"
			check(t, For(schema.GroupKind{Kind: "Pod"}).Update(relabelled, pod))
		})
	}
}

func TestSecurity(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	type psc = *corev1.PodSecurityContext
	whole := func(change func(psc)) func(pod) { return func(p pod) { change(p.Spec.SecurityContext) } }
	one := func(c corev1.SecurityContext) func(pod) { return func(p pod) { web(p).SecurityContext = &c } }
	sysctls := func(names ...string) func(pod) {
		return whole(func(s psc) {
			for _, n := range names {
				s.Sysctls = append(s.Sysctls, corev1.Sysctl{Name: n, Value: "1"})
			}
		})
	}
	const at = "spec.securityContext"
	const in = "spec.containers[0].securityContext"
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{
			"ids", whole(func(s psc) { s.RunAsUser, s.RunAsGroup, s.FSGroup = ptr[int64](-1), ptr[int64](-2), ptr[int64](1<<31) }),
			bad(at+".runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive", at+".runAsGroup: Invalid value: -2", at+".fsGroup: Invalid value: 2147483648"),
		},
		{"groups", whole(func(s psc) { s.SupplementalGroups = []int64{1, -1} }), bad(at + ".supplementalGroups[1]: Invalid value: -1")},
		{"policies", whole(func(s psc) {
			s.SupplementalGroupsPolicy, s.FSGroupChangePolicy, s.SELinuxChangePolicy = ptr(corev1.SupplementalGroupsPolicy("x")), ptr(corev1.PodFSGroupChangePolicy("x")), ptr(corev1.PodSELinuxChangePolicy("x"))
		}), bad(at+".supplementalGroupsPolicy: Unsupported value", at+".fsGroupChangePolicy: Unsupported value", at+".seLinuxChangePolicy: Unsupported value")},
		{"sysctl", sysctls("net.core.somaxconn", "kernel/shm_rmid_forced"), nil},
		{"no sysctl name", sysctls(""), bad(at + ".sysctls[0].name: Required value")},
		{"sysctl name", sysctls("A.b"), bad(at + `.sysctls[0].name: Invalid value: "A.b": must have at most 253 characters and match regex`)},
		{"sysctl twice", sysctls("net.a", "net/a"), bad(at + `.sysctls[1].name: Duplicate value: "net/a"`)},
		{"sysctl of the node's network", func(p pod) { sysctls("net.a")(p); p.Spec.HostNetwork = true }, bad(at + `.sysctls[0].name: Invalid value: "net.a": may not be specified when 'hostNetwork' is true`)},
		{
			"sysctl of the node's ipc", func(p pod) { sysctls("kernel.shmmax", "kernel.x")(p); p.Spec.HostIPC = true },
			bad(at + `.sysctls[0].name: Invalid value: "kernel.shmmax": may not be specified when 'hostIPC' is true`),
		},
		{"seccomp", whole(func(s psc) { s.SeccompProfile = &corev1.SeccompProfile{Type: "RuntimeDefault"} }), nil},
		{"seccomp type", whole(func(s psc) { s.SeccompProfile = &corev1.SeccompProfile{} }), bad(at + ".seccompProfile.type: Required value")},
		{"seccomp local", whole(func(s psc) { s.SeccompProfile = &corev1.SeccompProfile{Type: "Localhost"} }), bad(at + ".seccompProfile.localhostProfile: Required value")},
		{"seccomp path", whole(func(s psc) { s.SeccompProfile = &corev1.SeccompProfile{Type: "Localhost", LocalhostProfile: ptr("/x")} }), bad(at + ".seccompProfile.localhostProfile: Invalid value")},
		{
			"seccomp path of another type", whole(func(s psc) { s.SeccompProfile = &corev1.SeccompProfile{Type: "Unconfined", LocalhostProfile: ptr("x")} }),
			bad(at + ".seccompProfile.localhostProfile: Invalid value"),
		},
		{"apparmor", whole(func(s psc) { s.AppArmorProfile = &corev1.AppArmorProfile{Type: "x"} }), bad(at + ".appArmorProfile.type: Unsupported value")},
		{"apparmor padded", whole(func(s psc) {
			s.AppArmorProfile = &corev1.AppArmorProfile{Type: "Localhost", LocalhostProfile: ptr(" x")}
		}), bad(at + ".appArmorProfile.localhostProfile: Invalid value")},
		{"apparmor empty", whole(func(s psc) { s.AppArmorProfile = &corev1.AppArmorProfile{Type: "Localhost", LocalhostProfile: ptr("")} }), bad(at + ".appArmorProfile.localhostProfile: Required value")},
		{"shared processes of the node", func(p pod) { p.Spec.ShareProcessNamespace, p.Spec.HostPID = ptr(true), true }, bad("spec.shareProcessNamespace: Invalid value: true")},
		{
			"own users in the node's namespaces", func(p pod) {
				p.Spec.HostUsers, p.Spec.HostNetwork, p.Spec.HostPID, p.Spec.HostIPC = ptr(false), true, true, true
			},
			bad("spec.hostIPC: Forbidden", "spec.hostNetwork: Forbidden", "spec.hostPID: Forbidden"),
		},
		{"container ids", one(corev1.SecurityContext{RunAsUser: ptr[int64](-1), RunAsGroup: ptr[int64](-1)}), bad(in+".runAsUser: Invalid value", in+".runAsGroup: Invalid value")},
		{"proc mount", one(corev1.SecurityContext{ProcMount: ptr(corev1.ProcMountType("x"))}), bad(in + ".procMount: Unsupported value")},
		{"unmasked proc", one(corev1.SecurityContext{ProcMount: ptr(corev1.UnmaskedProcMount)}), bad(in + ".procMount: Invalid value: \"Unmasked\": `hostUsers` must be false")},
		{"unmasked proc of own users", func(p pod) {
			one(corev1.SecurityContext{ProcMount: ptr(corev1.UnmaskedProcMount)})(p)
			p.Spec.HostUsers = ptr(false)
		}, nil},
		{"privileged without escalation", one(corev1.SecurityContext{Privileged: ptr(true), AllowPrivilegeEscalation: ptr(false)}), bad(in + ": Invalid value")},
		{"admin without escalation", one(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"CAP_SYS_ADMIN"}}, AllowPrivilegeEscalation: ptr(false)}), bad(in + ": Invalid value")},
		{"os", func(p pod) { p.Spec.OS = &corev1.PodOS{Name: "plan9"} }, bad(`spec.os.name: Unsupported value: "plan9": supported values: "linux", "windows"`)},
		{"no os", func(p pod) { p.Spec.OS = &corev1.PodOS{} }, bad("spec.os.name: Required value")},
		{"linux with windows options", func(p pod) {
			p.Spec.OS = &corev1.PodOS{Name: corev1.Linux}
			p.Spec.SecurityContext.WindowsOptions = &corev1.WindowsSecurityContextOptions{}
			one(corev1.SecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{}})(p)
		}, bad("spec.securityContext.windowsOptions: Forbidden", in+".windowsOptions: Forbidden")},
		{"windows with linux options", func(p pod) {
			p.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
			p.Spec.HostPID = true
			p.Spec.SecurityContext.RunAsUser = ptr[int64](1)
			web(p).SecurityContext = &corev1.SecurityContext{Privileged: ptr(true), RunAsUser: ptr[int64](1)}
		}, bad("spec.hostPID: Forbidden: cannot be set for a windows pod", "spec.securityContext.runAsUser: Forbidden", in+".privileged: Forbidden", in+".runAsUser: Forbidden")},
	})
}

// TestMuchSelected: a selector and the tolerations of a pod have a bound, since all that
// happens to others' objects is compared with them.
func TestMuchSelected(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	values := func(n int) []string { return slices.Repeat([]string{"123456789"}, n) } // of 11 bytes each
	selector := func(n int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "NotIn", Values: values(n)}}}
	}
	term := func(n int) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "NotIn", Values: values(n)}}}
	}
	tolerations := func(n int) func(pod) {
		return func(p pod) { p.Spec.Tolerations = slices.Repeat([]corev1.Toleration{{Operator: "Exists"}}, n) }
	}
	affinity := func(a corev1.Affinity) func(pod) { return func(p pod) { p.Spec.Affinity = &a } }
	required := func(n int) func(pod) {
		return affinity(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term(n)}}}})
	}
	preferred := func(n int) func(pod) {
		one := corev1.PreferredSchedulingTerm{Weight: 1, Preference: term(1)}
		return affinity(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: slices.Repeat([]corev1.PreferredSchedulingTerm{one}, n)}})
	}
	pods := func(n int) func(pod) {
		one := corev1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: selector(n)}
		return affinity(corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{one}}})
	}
	const few, many, most = 1400, 1600, ": Too long: may not be more than 16384 bytes"
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"tolerations", tolerations(1000), nil},
		{"too many tolerations", tolerations(1001), bad("spec.tolerations: Too many: 1001: must have at most 1000 items")},
		{"values", required(few), nil},
		{"too many values", required(many), bad("spec.affinity.nodeAffinity" + most)},
		{"preferences", preferred(few / 4), nil},
		{"too many preferences", preferred(many), bad("spec.affinity.nodeAffinity" + most)},
		{"namespaces", pods(few), nil},
		{"too many namespaces", pods(many), bad("spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector" + most)},
	})
	type pdb = *policyv1.PodDisruptionBudget
	selecting := func(n int) func(pdb) { return func(b pdb) { b.Spec.Selector = selector(n) } }
	mutate(t, func() pdb {
		return defaulted[policyv1.PodDisruptionBudget](t, `{metadata: {name: b}, spec: {minAvailable: 50%, selector: {matchLabels: {a: b}}}}`)
	}, validatePodDisruptionBudget, []mutation[pdb]{
		{"selector", selecting(few), nil},
		{"selector of too much", selecting(many), bad("spec.selector" + most)},
	})
}
