package kinds

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestContainers(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	ports := func(list ...corev1.ContainerPort) func(pod) {
		return func(p pod) {
			for i := range list {
				if list[i].Protocol == "" {
					list[i].Protocol = corev1.ProtocolTCP
				}
			}
			web(p).Ports = list
		}
	}
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"no name", func(p pod) { web(p).Name = "" }, bad("spec.containers[0].name: Required value")},
		{"upper case name", func(p pod) { web(p).Name = "Web" }, bad(`spec.containers[0].name: Invalid value: "Web": a lowercase RFC 1123 label`)},
		{"long name", func(p pod) { web(p).Name = long(64) }, bad("spec.containers[0].name: Invalid value")},
		{"name twice", func(p pod) { p.Spec.Containers = append(p.Spec.Containers, *web(p)) }, bad(`spec.containers[1].name: Duplicate value: "web"`)},
		{"name of an init container", func(p pod) { web(p).Name = "setup" }, bad(`spec.initContainers[0].name: Duplicate value: "setup"`)},
		{"no image", func(p pod) { web(p).Image = "" }, bad("spec.containers[0].image: Required value")},
		{
			"pull policy", func(p pod) { web(p).ImagePullPolicy = "x" },
			bad(`spec.containers[0].imagePullPolicy: Unsupported value: "x": supported values: "Always", "IfNotPresent", "Never"`),
		},
		{"no pull policy", func(p pod) { web(p).ImagePullPolicy = "" }, bad("spec.containers[0].imagePullPolicy: Required value")},
		{"message policy", func(p pod) { web(p).TerminationMessagePolicy = "x" }, bad("spec.containers[0].terminationMessagePolicy: Unsupported value")},
		{"no message policy", func(p pod) { web(p).TerminationMessagePolicy = "" }, bad("spec.containers[0].terminationMessagePolicy: Required value")},

		{"no port", ports(corev1.ContainerPort{}), bad("spec.containers[0].ports[0].containerPort: Required value")},
		{
			"port too big", ports(corev1.ContainerPort{ContainerPort: 65536}),
			bad("spec.containers[0].ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive"),
		},
		{"negative port", ports(corev1.ContainerPort{ContainerPort: -1}), bad("spec.containers[0].ports[0].containerPort: Invalid value: -1")},
		{"host port", ports(corev1.ContainerPort{ContainerPort: 1, HostPort: 70000}), bad("spec.containers[0].ports[0].hostPort: Invalid value: 70000")},
		{"port name", ports(corev1.ContainerPort{ContainerPort: 1, Name: "-"}), bad(
			"spec.containers[0].ports[0].name: Invalid value: \"-\": must contain at least one letter",
			"spec.containers[0].ports[0].name: Invalid value: \"-\": must not begin or end with a hyphen")},
		{"long port name", ports(corev1.ContainerPort{ContainerPort: 1, Name: long(16)}), bad("spec.containers[0].ports[0].name: Invalid value")},
		{
			"port name twice", ports(corev1.ContainerPort{ContainerPort: 1, Name: "a"}, corev1.ContainerPort{ContainerPort: 2, Name: "a"}),
			bad(`spec.containers[0].ports[1].name: Duplicate value: "a"`),
		},
		{"port twice", ports(corev1.ContainerPort{ContainerPort: 1}, corev1.ContainerPort{ContainerPort: 1}), nil},
		{
			"protocol", ports(corev1.ContainerPort{ContainerPort: 1, Protocol: "tcp"}),
			bad(`spec.containers[0].ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP"`),
		},
		{
			"host port twice", ports(corev1.ContainerPort{ContainerPort: 1, HostPort: 1}, corev1.ContainerPort{ContainerPort: 2, HostPort: 1}),
			bad(`spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//1"`),
		},
		{"host port of two protocols", ports(corev1.ContainerPort{ContainerPort: 1, HostPort: 1}, corev1.ContainerPort{ContainerPort: 1, HostPort: 1, Protocol: "UDP"}), nil},
		{"host address", ports(corev1.ContainerPort{ContainerPort: 1, HostIP: "x"}), bad("spec.containers[0].ports[0].hostIP: Invalid value")},
		{
			"host network port", func(p pod) { p.Spec.HostNetwork = true; ports(corev1.ContainerPort{ContainerPort: 1, HostPort: 2})(p) },
			bad("spec.containers[0].ports[0].containerPort: Invalid value: 1: must match `hostPort` when `hostNetwork` is true"),
		},

		{"restart policy", func(p pod) { web(p).RestartPolicy = ptr(corev1.ContainerRestartPolicyNever) }, nil},
		{
			"unknown container restart policy", func(p pod) { web(p).RestartPolicy = ptr(corev1.ContainerRestartPolicy("x")) },
			bad("spec.containers[0].restartPolicy: Unsupported value"),
		},
		{"restart rules without policy", func(p pod) {
			web(p).RestartPolicyRules = []corev1.ContainerRestartRule{{Action: "Restart", ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: "In", Values: []int32{1}}}}
		}, bad("spec.containers[0].restartPolicy: Required value")},
		{"restart rules", func(p pod) {
			web(p).RestartPolicy = ptr(corev1.ContainerRestartPolicyNever)
			web(p).RestartPolicyRules = []corev1.ContainerRestartRule{{Action: "x"}, {Action: "Restart", ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: "x"}}}
		}, bad("spec.containers[0].restartPolicyRules[0].action: Unsupported value", "spec.containers[0].restartPolicyRules[0].exitCodes: Required value",
			"spec.containers[0].restartPolicyRules[1].exitCodes.operator: Unsupported value")},
		{"too many restart rules", func(p pod) {
			web(p).RestartPolicy = ptr(corev1.ContainerRestartPolicyNever)
			for range 21 {
				web(p).RestartPolicyRules = append(web(p).RestartPolicyRules, corev1.ContainerRestartRule{
					Action: "Restart", ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: "In", Values: []int32{1}},
				})
			}
		}, bad("spec.containers[0].restartPolicyRules: Too many: 21: must have at most 20 items")},
		{"resize policy", func(p pod) {
			web(p).ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: "NotRequired"}, {ResourceName: "cpu", RestartPolicy: "x"}, {ResourceName: "disk", RestartPolicy: "NotRequired"}}
		}, bad("spec.containers[0].resizePolicy[1].restartPolicy: Unsupported value", "spec.containers[0].resizePolicy[1]: Duplicate value: \"cpu\"",
			"spec.containers[0].resizePolicy[2].resourceName: Unsupported value: \"disk\"")},
	})
}

func TestInitContainers(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	probe := func() *corev1.Probe {
		return &corev1.Probe{SuccessThreshold: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}}
	}
	setup := func(p pod) *corev1.Container { return &p.Spec.InitContainers[0] }
	resizing := func(p pod, policy corev1.ResourceResizeRestartPolicy) {
		setup(p).ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "cpu", RestartPolicy: policy}}
	}
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"no name", func(p pod) { setup(p).Name = "" }, bad("spec.initContainers[0].name: Required value")},
		{
			"liveness probe", func(p pod) { setup(p).LivenessProbe = probe() },
			bad("spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always"),
		},
		{"readiness probe", func(p pod) { setup(p).ReadinessProbe = probe() }, bad("spec.initContainers[0].readinessProbe: Forbidden")},
		{"startup probe", func(p pod) { setup(p).StartupProbe = probe() }, bad("spec.initContainers[0].startupProbe: Forbidden")},
		{
			"lifecycle", func(p pod) { setup(p).Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{}} },
			bad("spec.initContainers[0].lifecycle: Forbidden"),
		},
		{"sidecar with probes", func(p pod) {
			setup(p).RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
			setup(p).LivenessProbe, setup(p).ReadinessProbe, setup(p).StartupProbe = probe(), probe(), probe()
		}, nil},
		{"sidecar with a bad probe", func(p pod) {
			setup(p).RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
			setup(p).LivenessProbe = &corev1.Probe{SuccessThreshold: 2, ProbeHandler: probe().ProbeHandler}
		}, bad("spec.initContainers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1")},
		{"resize policy", func(p pod) { resizing(p, corev1.NotRequired) }, nil},
		{
			"restart to resize", func(p pod) { resizing(p, corev1.RestartContainer) },
			bad("spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\": must not be set to 'RestartContainer' for non-sidecar initContainers"),
		},
		{"sidecar that restarts to resize", func(p pod) {
			setup(p).RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
			resizing(p, corev1.RestartContainer)
		}, nil},
		{"host port twice", func(p pod) {
			setup(p).Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: 1, Protocol: "TCP"}, {ContainerPort: 1, HostPort: 1, Protocol: "TCP"}}
		}, bad("spec.initContainers[0].ports[1].hostPort: Duplicate value")},
	})
}

func TestProbes(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	live := func(h corev1.ProbeHandler) func(pod) {
		return func(p pod) { web(p).LivenessProbe = &corev1.Probe{ProbeHandler: h, SuccessThreshold: 1} }
	}
	exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}
	stops := func(os corev1.OSName, s corev1.Signal) func(pod) {
		return func(p pod) {
			p.Spec.OS, web(p).Lifecycle = &corev1.PodOS{Name: os}, &corev1.Lifecycle{StopSignal: &s}
		}
	}
	const at = "spec.containers[0].livenessProbe"
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"exec", live(exec), nil},
		{"exec nothing", live(corev1.ProbeHandler{Exec: &corev1.ExecAction{}}), bad(at + ".exec.command: Required value")},
		{"nothing", live(corev1.ProbeHandler{}), bad(at + ": Required value: must specify a handler type")},
		{
			"two handlers", live(corev1.ProbeHandler{Exec: exec.Exec, TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}),
			bad(at + ".tcpSocket: Forbidden: may not specify more than 1 handler type"),
		},
		{"tcp", live(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}}), nil},
		{"tcp port", live(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}), bad(at + ".tcpSocket.port: Invalid value: 0")},
		{"tcp port name", live(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("a b")}}), bad(at + `.tcpSocket.port: Invalid value: "a b"`)},
		{"grpc", live(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1}}), nil},
		{"grpc port", live(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}), bad(at + ".grpc.port: Invalid value: 0")},
		{"http", live(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(1), Scheme: "HTTPS"}}), nil},
		{
			"http empty", live(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{}}),
			bad(at+".httpGet.path: Required value", at+".httpGet.port: Invalid value: 0", at+".httpGet.scheme: Required value"),
		},
		{
			"http scheme", live(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(1), Scheme: "http"}}),
			bad(at + `.httpGet.scheme: Unsupported value: "http": supported values: "HTTP", "HTTPS"`),
		},
		{"http header", live(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: "/", Port: intstr.FromInt32(1), Scheme: "HTTP", HTTPHeaders: []corev1.HTTPHeader{{Name: "X-Ok"}, {Name: "a b"}},
		}}), bad(at + `.httpGet.httpHeaders: Invalid value: "a b"`)},
		{"negative numbers", func(p pod) {
			web(p).ReadinessProbe = &corev1.Probe{ProbeHandler: exec, InitialDelaySeconds: -1, TimeoutSeconds: -2, PeriodSeconds: -3, SuccessThreshold: -4, FailureThreshold: -5}
		}, bad("spec.containers[0].readinessProbe.initialDelaySeconds: Invalid value: -1: must be greater than or equal to 0",
			"spec.containers[0].readinessProbe.timeoutSeconds: Invalid value: -2", "spec.containers[0].readinessProbe.periodSeconds: Invalid value: -3",
			"spec.containers[0].readinessProbe.successThreshold: Invalid value: -4", "spec.containers[0].readinessProbe.failureThreshold: Invalid value: -5")},
		{"readiness successes", func(p pod) { web(p).ReadinessProbe = &corev1.Probe{ProbeHandler: exec, SuccessThreshold: 3} }, nil},
		{
			"liveness successes", func(p pod) { web(p).LivenessProbe = &corev1.Probe{ProbeHandler: exec, SuccessThreshold: 3} },
			bad(at + ".successThreshold: Invalid value: 3: must be 1"),
		},
		{
			"startup successes", func(p pod) { web(p).StartupProbe = &corev1.Probe{ProbeHandler: exec, SuccessThreshold: 3} },
			bad("spec.containers[0].startupProbe.successThreshold: Invalid value: 3: must be 1"),
		},
		{
			"liveness grace", func(p pod) { live(exec)(p); web(p).LivenessProbe.TerminationGracePeriodSeconds = ptr[int64](0) },
			bad(at + ".terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0"),
		},
		{"readiness grace", func(p pod) {
			web(p).ReadinessProbe = &corev1.Probe{ProbeHandler: exec, TerminationGracePeriodSeconds: ptr[int64](1)}
		}, bad("spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes")},

		{
			"hook without handler", func(p pod) { web(p).Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}} },
			bad("spec.containers[0].lifecycle.postStart: Required value: must specify a handler type"),
		},
		{"hook sleeps", func(p pod) {
			web(p).Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 30}}}
		}, nil},
		{"hook oversleeps", func(p pod) {
			web(p).Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 31}}}
		}, bad("spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)")},
		{"stop signal of no system", func(p pod) { web(p).Lifecycle = &corev1.Lifecycle{StopSignal: ptr(corev1.SIGUSR1)} }, nil},
		{"stop signal", stops(corev1.Linux, corev1.SIGUSR1), nil},
		{"stop signal of real time", stops(corev1.Linux, "SIGRTMIN+15"), nil},
		{"last stop signal", stops(corev1.Linux, corev1.SIGRTMAX), nil},
		{"short stop signal", stops(corev1.Linux, "KILL"), bad("spec.containers[0].lifecycle.stopSignal: Invalid value")},
		{"unknown stop signal", stops(corev1.Linux, "SIGSTOPIT"), bad("spec.containers[0].lifecycle.stopSignal: Invalid value")},
		{"stop signal beyond the last", stops(corev1.Linux, "SIGRTMIN+16"), bad("spec.containers[0].lifecycle.stopSignal: Invalid value")},
	})
}

func TestResources(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	resources := func(limits, requests corev1.ResourceList) func(pod) {
		return func(p pod) { web(p).Resources = corev1.ResourceRequirements{Limits: limits, Requests: requests} }
	}
	const at = "spec.containers[0].resources"
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"below limit", resources(list("cpu", "1", "memory", "1Gi"), list("cpu", "500m", "memory", "1Gi")), nil},
		{"request without limit", resources(nil, list("cpu", "500m")), nil},
		{"over limit", resources(list("cpu", "1"), list("cpu", "2")), bad(at + `.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`)},
		{"negative limit", resources(list("memory", "-1"), nil), bad(at + `.limits[memory]: Invalid value: "-1": must be greater than or equal to 0`)},
		{"negative request", resources(nil, list("memory", "-1Mi")), bad(at + `.requests[memory]: Invalid value: "-1Mi"`)},
		{"unknown name", resources(list("disk", "1"), nil), bad(at + `.limits[disk]: Invalid value: "disk": must be a standard resource for containers`)},
		{"name not qualified", resources(list("a b", "1"), nil), bad(at + `.limits[a b]: Invalid value: "a b": name part must consist of`)},
		{"extended", resources(list("example.com/gpu", "2"), list("example.com/gpu", "2")), nil},
		{
			"extended in part", resources(list("example.com/gpu", "500m"), list("example.com/gpu", "500m")),
			bad(at+`.limits[example.com/gpu]: Invalid value: "500m": must be an integer`, at+`.requests[example.com/gpu]: Invalid value: "500m": must be an integer`),
		},
		{
			"extended overcommitted", resources(list("example.com/gpu", "2"), list("example.com/gpu", "1")),
			bad(at + `.requests: Invalid value: "1": must be equal to example.com/gpu limit of 2`),
		},
		{
			"extended without limit", resources(nil, list("example.com/gpu", "1")),
			bad(at + ".limits: Required value: Limit must be set for non overcommitable resources"),
		},
		{
			"extended with the quota's prefix", resources(list("requests.example.com/gpu", "1"), nil),
			bad(at + `.limits[requests.example.com/gpu]: Invalid value: "requests.example.com/gpu": doesn't follow extended resource name standard`),
		},
		{"huge pages", resources(list("hugepages-2Mi", "2Mi", "cpu", "1"), list("hugepages-2Mi", "2Mi")), nil},
		{"huge pages alone", resources(list("hugepages-2Mi", "2Mi"), list("hugepages-2Mi", "2Mi")), bad(at + ": Forbidden: HugePages require cpu or memory")},
		{
			"huge pages and a half", resources(list("hugepages-2Mi", "3Mi", "cpu", "1"), list("hugepages-2Mi", "3Mi")),
			bad(at+`.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi`,
				at+`.requests[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi`),
		},
		{"huge pages of no size", resources(list("hugepages-x", "2Mi", "cpu", "1"), nil), bad(at + `.limits[hugepages-x]: Invalid value: "2Mi"`)},
		{
			"huge pages overcommitted", resources(list("hugepages-2Mi", "4Mi", "cpu", "1"), list("hugepages-2Mi", "2Mi")),
			bad(at + `.requests: Invalid value: "2Mi": must be equal to hugepages-2Mi limit of 4Mi`),
		},
		{"claim not declared", func(p pod) { web(p).Resources.Claims = []corev1.ResourceClaim{{Name: "x"}} }, bad(at + `.claims[0]: Not found: "x"`)},
		{"claim twice", func(p pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x", ResourceClaimName: ptr("y")}}
			web(p).Resources.Claims = []corev1.ResourceClaim{{Name: "x"}, {Name: "x"}, {Name: "x", Request: "r"}, {}}
		}, bad(at+`.claims[1]: Duplicate value: "x"`, at+".claims[3]: Required value")},
	})
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	env := func(v ...corev1.EnvVar) func(pod) { return func(p pod) { web(p).Env = v } }
	from := func(s corev1.EnvVarSource) func(pod) { return env(corev1.EnvVar{Name: "A", ValueFrom: &s}) }
	fieldRef := func(path string) func(pod) {
		return from(corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}})
	}
	resource := func(name, divisor string) func(pod) {
		return from(corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: name, Divisor: quantity(divisor)}})
	}
	key := &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}, Key: "k"}
	const at = "spec.containers[0].env[0]"
	cases := []mutation[pod]{
		{"no name", env(corev1.EnvVar{}), bad(at + ".name: Required value")},
		{"dotted and odd names", env(corev1.EnvVar{Name: "a.b-c"}, corev1.EnvVar{Name: "1 x"}), nil},
		{"name with an equals sign", env(corev1.EnvVar{Name: "a=b"}), bad(at + `.name: Invalid value: "a=b"`)},
		{"source of nothing", from(corev1.EnvVarSource{}), bad(at + `.valueFrom: Invalid value: "": must specify one of: ` + "`fieldRef`")},
		{
			"two sources", from(corev1.EnvVarSource{ConfigMapKeyRef: key, FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}),
			bad(at + `.valueFrom: Invalid value: "": may not have more than one field specified at a time`),
		},
		{
			"value and source", env(corev1.EnvVar{Name: "A", Value: "b", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: key}}),
			bad(at + `.valueFrom: Invalid value: "": may not be specified when ` + "`value` is not empty"),
		},
		{"config map key", from(corev1.EnvVarSource{ConfigMapKeyRef: key}), nil},
		{
			"config map key empty", from(corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{}}),
			bad(at+".valueFrom.configMapKeyRef.name: Required value", at+".valueFrom.configMapKeyRef.key: Required value"),
		},
		{
			"secret key", from(corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "a/b"}}),
			bad(at + `.valueFrom.secretKeyRef.key: Invalid value: "a/b"`),
		},
		{"file key of no volume", from(corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "x", Path: "x", Key: "k"}}), bad(at + `.valueFrom.fileKeyRef.volumeName: Not found: "x"`)},
		{"file key of an empty directory", from(corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "data", Path: "x", Key: "k"}}), nil},
		{"file key of another volume", func(p pod) {
			from(corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "data", Path: "x", Key: "k"}})(p)
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}
		}, bad(at + `.valueFrom.fileKeyRef.volumeName: Invalid value: "data": referenced volume must be of type emptyDir`)},
		{
			"file key", from(corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "data", Path: "../x", Key: "k"}}),
			bad(at + `.valueFrom.fileKeyRef.path: Invalid value: "../x": must not contain '..'`),
		},
		{"field version", from(corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}), bad(at + ".valueFrom.fieldRef.apiVersion: Required value")},
		{"no field", fieldRef(""), bad(at + ".valueFrom.fieldRef.fieldPath: Required value")},
		{
			"unknown field", fieldRef("metadata.whatever"),
			bad(at + `.valueFrom.fieldRef.fieldPath: Invalid value: "metadata.whatever": error converting fieldPath: field label not supported: metadata.whatever`),
		},
		{"field not for environments", fieldRef("metadata.labels"), bad(at + `.valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels"`)},
		{"phase", fieldRef("status.phase"), bad(at + `.valueFrom.fieldRef.fieldPath: Unsupported value: "status.phase"`)},
		{"label", fieldRef("metadata.labels['a.b/c']"), nil},
		{"label key", fieldRef("metadata.labels['a b']"), bad(at + `.valueFrom.fieldRef.fieldPath: Invalid value: "a b"`)},
		{"annotation", fieldRef("metadata.annotations['A/b']"), nil},
		{"subscript of a name", fieldRef("metadata.name['x']"), bad(at + `.valueFrom.fieldRef.fieldPath: Invalid value: "metadata.name['x']": does not support subscript`)},
		{"limits", resource("limits.cpu", "1m"), nil},
		{"requests of huge pages", resource("requests.hugepages-2Mi", "1Mi"), nil},
		{"no divisor", resource("limits.memory", "0"), nil},
		{"no resource", resource("", "1"), bad(at + ".valueFrom.resourceFieldRef.resource: Required value")},
		{"unknown resource", resource("limits.disk", "1"), bad(at + `.valueFrom.resourceFieldRef.resource: Unsupported value: "limits.disk"`)},
		{"neither limit nor request", resource("cpu", "1"), bad(at + `.valueFrom.resourceFieldRef.resource: Unsupported value: "cpu"`)},
		{"cpu divisor", resource("limits.cpu", "1Ki"), bad(at + `.valueFrom.resourceFieldRef.divisor: Invalid value: "1Ki": only divisor's values 1m and 1 are supported with the cpu resource`)},
		{"memory divisor", resource("requests.memory", "2"), bad(at + `.valueFrom.resourceFieldRef.divisor: Invalid value: "2": only divisor's values 1, 1k, 1M`)},
		{"storage divisor", resource("limits.ephemeral-storage", "5"), bad(at + `.valueFrom.resourceFieldRef.divisor: Invalid value: "5"`)},
		{"env from", func(p pod) {
			web(p).EnvFrom = []corev1.EnvFromSource{{Prefix: "X_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
		}, nil},
		{
			"env from nothing", func(p pod) { web(p).EnvFrom = []corev1.EnvFromSource{{}} },
			bad("spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"),
		},
		{"env from two", func(p pod) {
			web(p).EnvFrom = []corev1.EnvFromSource{{Prefix: "=", ConfigMapRef: &corev1.ConfigMapEnvSource{}, SecretRef: &corev1.SecretEnvSource{}}}
		}, bad("spec.containers[0].envFrom: Invalid value: \"\": may not have more than one field specified at a time",
			"spec.containers[0].envFrom[0].configMapRef.name: Required value", "spec.containers[0].envFrom[0].prefix: Invalid value",
			"spec.containers[0].envFrom[0].secretRef.name: Required value")},
	}
	for _, f := range envFields() {
		cases = append(cases, mutation[pod]{"field " + f, fieldRef(f), nil})
	}
	mutate(t, goodPod(t), validatePod, cases)
}

func TestSubscript(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"a['b']", "a['b", "['b']", "a", "", "']", "a['']", strings.Repeat("['", 100)} {
		base, key, ok := subscript(s)
		if ok != (base+"['"+key+"']" == s && base != "") {
			t.Errorf("subscript(%q) = %q, %q, %t", s, base, key, ok)
		}
	}
}
