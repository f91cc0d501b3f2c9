package kinds

import (
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const podYAML = `
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: default}
spec:
  nodeSelector: {disk: ssd}
  initContainers:
  - {name: setup, image: busybox}
  containers:
  - name: web
    image: nginx:1.27
    env:
    - {name: A, value: b}
    ports:
    - {name: http, containerPort: 80}
    volumeMounts:
    - {name: data, mountPath: /data}
  volumes:
  - {name: data, emptyDir: {}}
`

func goodPod(t testing.TB) func() *corev1.Pod {
	return func() *corev1.Pod { return defaulted[corev1.Pod](t, podYAML) }
}

func web(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }

func TestValidatePod(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"no containers", func(p pod) { p.Spec.Containers = nil }, bad("spec.containers: Required value")},
		{"no restart policy", func(p pod) { p.Spec.RestartPolicy = "" }, bad("spec.restartPolicy: Required value")},
		{
			"unknown restart policy", func(p pod) { p.Spec.RestartPolicy = "Sometimes" },
			bad(`spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"`),
		},
		{"dns policy", func(p pod) { p.Spec.DNSPolicy = "x" }, bad(`spec.dnsPolicy: Unsupported value: "x"`)},
		{"no dns policy", func(p pod) { p.Spec.DNSPolicy = "" }, bad("spec.dnsPolicy: Required value")},
		{
			"deadline zero", func(p pod) { p.Spec.ActiveDeadlineSeconds = ptr[int64](0) },
			bad("spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"),
		},
		{"deadline too big", func(p pod) { p.Spec.ActiveDeadlineSeconds = ptr[int64](math.MaxInt32 + 1) }, bad("spec.activeDeadlineSeconds: Invalid value")},
		{"deadline largest", func(p pod) { p.Spec.ActiveDeadlineSeconds = ptr[int64](math.MaxInt32) }, nil},
		{"negative grace", func(p pod) { p.Spec.TerminationGracePeriodSeconds = ptr[int64](-1) }, nil},
		{"node name", func(p pod) { p.Spec.NodeName = "Node_1" }, bad(`spec.nodeName: Invalid value: "Node_1": a lowercase RFC 1123 subdomain`)},
		{"node name as an address", func(p pod) { p.Spec.NodeName = "10.240.79.157" }, nil},
		{"node selector key", func(p pod) { p.Spec.NodeSelector = map[string]string{"a b": "c"} }, bad(`spec.nodeSelector: Invalid value: "a b"`)},
		{"node selector value", func(p pod) { p.Spec.NodeSelector = map[string]string{"a": "c d"} }, bad(`spec.nodeSelector: Invalid value: "c d"`)},
		{"hostname", func(p pod) { p.Spec.Hostname = "a.b" }, bad(`spec.hostname: Invalid value: "a.b": must not contain dots`)},
		{"subdomain", func(p pod) { p.Spec.Subdomain = "A" }, bad(`spec.subdomain: Invalid value: "A"`)},
		{"hostname override", func(p pod) { p.Spec.HostnameOverride = ptr("web.example") }, nil},
		{"hostname override too long", func(p pod) { p.Spec.HostnameOverride = ptr(long(60) + "." + long(60)) }, bad("spec.hostnameOverride: Too long")},
		{
			"hostname override with host network", func(p pod) { p.Spec.HostnameOverride = ptr("a"); p.Spec.HostNetwork = true },
			bad("spec.hostnameOverride: Forbidden"),
		},
		{"service account", func(p pod) { p.Spec.ServiceAccountName = "a_b" }, bad(`spec.serviceAccountName: Invalid value: "a_b"`)},
		{"priority class", func(p pod) { p.Spec.PriorityClassName = "a b" }, bad(`spec.priorityClassName: Invalid value`)},
		{"runtime class", func(p pod) { p.Spec.RuntimeClassName = ptr("-x") }, bad(`spec.runtimeClassName: Invalid value`)},
		{"pull secret", func(p pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{}} }, nil},
		{"preemption policy", func(p pod) { p.Spec.PreemptionPolicy = ptr(corev1.PreemptionPolicy("x")) }, bad("spec.preemptionPolicy: Unsupported value")},
		{"overhead", func(p pod) { p.Spec.Overhead = list("cpu", "-1") }, bad(`spec.overhead[cpu]: Invalid value: "-1": must be greater than or equal to 0`)},
		{"overhead name", func(p pod) { p.Spec.Overhead = list("pods", "1") }, bad("spec.overhead[pods]: Invalid value")},
		{"scheduling gate name", func(p pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a b"}} }, bad("spec.schedulingGates[0]: Invalid value")},
		{
			"scheduling gate twice", func(p pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}, {Name: "a"}} },
			bad(`spec.schedulingGates[1]: Duplicate value: "a"`),
		},
		{"gate and node", func(p pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}}
			p.Spec.NodeName = "n"
		}, bad("spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared")},
		{
			"readiness gate", func(p pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "-"}} },
			bad("spec.readinessGates[0].conditionType: Invalid value"),
		},
		{"ephemeral container", func(p pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "dbg", Image: "busybox", ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}}}
		}, bad("spec.ephemeralContainers: Forbidden: cannot be set on create")},
		{
			"mirror without node", func(p pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
			bad("metadata.annotations[kubernetes.io/config.mirror]: Invalid value"),
		},
		{"deletion cost", func(p pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "-5"} }, nil},
		{
			"deletion cost with a plus", func(p pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "+1"} },
			bad(`metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "+1": must be a 32bit integer`),
		},
		{"deletion cost of three zeros", func(p pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "008"} }, bad("metadata.annotations[controller")},
		{"deletion cost too large", func(p pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "2147483648"} }, bad("metadata.annotations[controller")},
		{"mirror", func(p pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			p.Spec.NodeName = "n"
		}, nil},
		{"resource claim", func(p pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr("x")}}
		}, nil},
		{
			"resource claim of nothing", func(p pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c"}} },
			bad("spec.resourceClaims[0]: Invalid value"),
		},
		{"resource claim twice", func(p pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: ptr("x")}, {Name: "c", ResourceClaimName: ptr("x")}}
		}, bad("spec.resourceClaims[1].name: Duplicate value")},
		{
			"resource claim without name", func(p pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{ResourceClaimName: ptr("x")}} },
			bad("spec.resourceClaims[0].name: Required value"),
		},
		{"blank around image", func(p pod) { web(p).Image = " nginx" }, bad("spec.containers[0].image: Invalid value: \" nginx\": must not have leading or trailing whitespace")},
		{"pod level resources", func(p pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("cpu", "1"), Requests: list("cpu", "1")}
		}, nil},
		{
			"pod level storage", func(p pod) { p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("ephemeral-storage", "1")} },
			bad("spec.resources.limits[ephemeral-storage]: Unsupported value"),
		},
		{"container over pod limit", func(p pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("cpu", "1")}
			web(p).Resources.Limits = list("cpu", "2")
		}, bad("spec.containers[0].resources.limits[cpu]: Invalid value: \"2\": must be less than or equal to pod limits of 1")},
		{"containers over pod request", func(p pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu", "1")}
			web(p).Resources.Requests = list("cpu", "2")
		}, bad("spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 2")},
	})
}

func TestValidatePodNetwork(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	config := func(c corev1.PodDNSConfig) func(pod) { return func(p pod) { p.Spec.DNSConfig = &c } }
	searches := strings.Split(strings.Repeat("a,", 32)+"a", ",")
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"host alias", func(p pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"a.b"}}} }, nil},
		{"host alias address", func(p pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "x"}} }, bad(`spec.hostAliases[0].ip: Invalid value: "x": must be a valid IP address`)},
		{
			"host alias name", func(p pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "::1", Hostnames: []string{"a", "b_c"}}} },
			bad(`spec.hostAliases[0].hostnames[1]: Invalid value: "b_c"`),
		},
		{"none without config", func(p pod) { p.Spec.DNSPolicy = corev1.DNSNone }, bad("spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None")},
		{
			"none without server", func(p pod) { p.Spec.DNSPolicy = corev1.DNSNone; p.Spec.DNSConfig = &corev1.PodDNSConfig{} },
			bad("spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None"),
		},
		{"none with server", func(p pod) {
			p.Spec.DNSPolicy = corev1.DNSNone
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}}
		}, nil},
		{
			"four servers", config(corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"}}),
			bad("spec.dnsConfig.nameservers: Invalid value"),
		},
		{"server name", config(corev1.PodDNSConfig{Nameservers: []string{"one.one"}}), bad("spec.dnsConfig.nameservers[0]: Invalid value")},
		{"33 searches", config(corev1.PodDNSConfig{Searches: searches}), bad("spec.dnsConfig.searches: Invalid value")},
		{"long searches", config(corev1.PodDNSConfig{Searches: []string{
			long(60) + strings.Repeat("."+long(60), 3), long(60) + strings.Repeat("."+long(60), 3), long(60) + strings.Repeat("."+long(60), 3),
			long(60) + strings.Repeat("."+long(60), 3), long(60) + strings.Repeat("."+long(60), 3), long(60) + strings.Repeat("."+long(60), 3),
			long(60) + strings.Repeat("."+long(60), 3), long(60) + strings.Repeat("."+long(60), 3), long(60) + strings.Repeat("."+long(60), 3),
		}}), bad("spec.dnsConfig.searches: Invalid value")},
		{"search of a dot", config(corev1.PodDNSConfig{Searches: []string{".", "a.b.", "_tcp.a"}}), nil},
		{"search", config(corev1.PodDNSConfig{Searches: []string{"a b"}}), bad("spec.dnsConfig.searches[0]: Invalid value")},
		{"option", config(corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{}}}), bad("spec.dnsConfig.options[0]: Required value: must not be empty")},
	})
}

// TestPodTemplate has what differs between a template and a pod.
func TestPodTemplate(t *testing.T) {
	t.Parallel()
	type template = *corev1.PodTemplate
	fresh := func() template {
		o := &corev1.PodTemplate{}
		p := goodPod(t)()
		o.Template.Spec = p.Spec
		o.Template.Labels = map[string]string{"app": "web"}
		return o
	}
	mutate(t, fresh, validatePodTemplate, []mutation[template]{
		{"label", func(o template) { o.Template.Labels["a"] = "b c" }, bad(`template.labels: Invalid value: "b c"`)},
		{"annotation", func(o template) { o.Template.Annotations = map[string]string{"a b": ""} }, bad(`template.annotations: Invalid value: "a b"`)},
		{"blank around image", func(o template) { o.Template.Spec.Containers[0].Image = " " }, nil},
		{"no image", func(o template) { o.Template.Spec.Containers[0].Image = "" }, bad("template.spec.containers[0].image: Required value")},
		{"ephemeral container", func(o template) {
			o.Template.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "dbg", Image: "busybox", ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}}}
		}, bad("template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template")},
	})
}
