package kinds

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestNamespaces(t *testing.T) {
	t.Parallel()
	type ns = *corev1.Namespace
	fresh := func() ns {
		return defaulted[corev1.Namespace](t, `{metadata: {name: n}, spec: {finalizers: [kubernetes, example.com/x]}}`)
	}
	mutate(t, fresh, validateNamespace, []mutation[ns]{
		{"standard", func(n ns) { n.Spec.Finalizers = []corev1.FinalizerName{"orphan", "foregroundDeletion"} }, nil},
		{
			"not standard", func(n ns) { n.Spec.Finalizers = []corev1.FinalizerName{"mine"} },
			bad(`spec.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified`),
		},
		{"not a name", func(n ns) { n.Spec.Finalizers = []corev1.FinalizerName{"a/b/c"} }, bad("spec.finalizers[0]: Invalid value")},
	})
	mutateUpdate(t, fresh, validateNamespaceStatusUpdate, []mutation[ns]{
		{"terminating", func(n ns) { n.Status.Phase = corev1.NamespaceTerminating }, bad(`status.Phase: Invalid value: "Terminating": may only be 'Active' if`)},
		{"deleted", func(n ns) { n.DeletionTimestamp = &metav1.Time{} }, bad(`status.Phase: Invalid value: "Active": may only be 'Terminating' if`)},
		{"deleted and terminating", func(n ns) { n.DeletionTimestamp = &metav1.Time{}; n.Status.Phase = corev1.NamespaceTerminating }, nil},
	})
	mutateUpdate(t, fresh, validateNamespaceUpdate, []mutation[ns]{
		{"done", func(n ns) { n.Spec.Finalizers = nil }, nil},
		{"bad", func(n ns) { n.Spec.Finalizers = []corev1.FinalizerName{"x"} }, bad("spec.finalizers[0]: Invalid value")},
	})
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	type secret = *corev1.Secret
	fresh := func() secret {
		return defaulted[corev1.Secret](t, `{metadata: {name: s}, stringData: {a.b-c_d: v}}`)
	}
	of := func(typ corev1.SecretType, keys ...string) func(secret) {
		return func(s secret) {
			s.Type = typ
			s.Data = map[string][]byte{}
			for _, k := range keys {
				s.Data[k] = []byte("{}")
			}
		}
	}
	mutate(t, fresh, validateSecret, []mutation[secret]{
		{"key", func(s secret) { s.Data = map[string][]byte{"a/b": nil} }, bad(`data[a/b]: Invalid value: "a/b"`)},
		{"key of dots", func(s secret) { s.Data = map[string][]byte{"..": nil} }, bad(`data[..]: Invalid value`)},
		{"largest", func(s secret) { s.Data = map[string][]byte{"a": make([]byte, corev1.MaxSecretSize)} }, nil},
		{"too large", func(s secret) { s.Data = map[string][]byte{"a": make([]byte, corev1.MaxSecretSize), "b": {0}} }, bad("data: Too long: may not be more than 1048576 bytes")},
		{"tls", of(corev1.SecretTypeTLS, "tls.crt", "tls.key"), nil},
		{"tls without key", of(corev1.SecretTypeTLS, "tls.crt"), bad("data[tls.key]: Required value")},
		{"basic", of(corev1.SecretTypeBasicAuth, "username"), nil},
		{"basic empty", of(corev1.SecretTypeBasicAuth), bad("data[username]: Required value", "data[password]: Required value")},
		{"ssh", of(corev1.SecretTypeSSHAuth), bad("data[ssh-privatekey]: Required value")},
		{"docker", of(corev1.SecretTypeDockerConfigJson, ".dockerconfigjson"), nil},
		{"docker without config", of(corev1.SecretTypeDockerConfigJson), bad("data[.dockerconfigjson]: Required value")},
		{"old docker with rubbish", func(s secret) {
			s.Type, s.Data = corev1.SecretTypeDockercfg, map[string][]byte{".dockercfg": []byte("hunter2")}
		}, bad(`data[.dockercfg]: Invalid value: "<secret contents redacted>"`)},
		{"token without account", of(corev1.SecretTypeServiceAccountToken), bad("metadata.annotations[kubernetes.io/service-account.name]: Required value")},
		{"bootstrap token", of(corev1.SecretTypeBootstrapToken, "token-id"), nil},
		{"own type", of("example.com/x"), nil},
	})
	mutateUpdate(t, fresh, validateSecretUpdate, []mutation[secret]{
		{"data", func(s secret) { s.Data["b"] = nil }, nil},
		{"type", func(s secret) { s.Type = "example.com/x" }, bad(`type: Invalid value: "example.com/x": field is immutable`)},
		{"freeze", func(s secret) { s.Immutable = ptr(true) }, nil},
	})
	frozen := func() secret {
		s := fresh()
		s.Immutable = ptr(true)
		return s
	}
	mutateUpdate(t, frozen, validateSecretUpdate, []mutation[secret]{
		{"label of a frozen one", func(s secret) { s.Labels = map[string]string{"a": "b"} }, nil},
		{"thaw", func(s secret) { s.Immutable = nil }, bad("immutable: Forbidden: field is immutable when `immutable` is set")},
		{"data of a frozen one", func(s secret) { s.Data["b"] = nil }, bad("data: Forbidden: field is immutable when `immutable` is set")},
	})
}

func TestConfigMaps(t *testing.T) {
	t.Parallel()
	type cm = *corev1.ConfigMap
	fresh := func() cm {
		return defaulted[corev1.ConfigMap](t, `{metadata: {name: c}, immutable: true, data: {a: b}, binaryData: {c: AAAA}}`)
	}
	mutate(t, fresh, validateConfigMap, []mutation[cm]{
		{"key", func(c cm) { c.Data["a b"] = "" }, bad(`data[a b]: Invalid value: "a b"`)},
		{"binary key", func(c cm) { c.BinaryData["a b"] = nil }, bad(`binaryData[a b]: Invalid value: "a b"`)},
		{"in both", func(c cm) { c.Data["c"] = "" }, bad(`data[c]: Invalid value: "c": duplicate of key present in binaryData`)},
		{"too large", func(c cm) { c.Data["a"] = long(corev1.MaxSecretSize) }, bad("[]: Too long: may not be more than 1048576 bytes")},
	})
	mutateUpdate(t, fresh, validateConfigMapUpdate, []mutation[cm]{
		{"thaw", func(c cm) { c.Immutable = ptr(false) }, bad("immutable: Forbidden")},
		{"data", func(c cm) { c.Data = nil }, bad("data: Forbidden")},
		{"binary data", func(c cm) { c.BinaryData = nil }, bad("binaryData: Forbidden")},
	})
	account := func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} }
	mutate(t, account, validateServiceAccount, nil)
}

func TestServices(t *testing.T) {
	t.Parallel()
	type svc = *corev1.Service
	fresh := func() svc {
		return defaulted[corev1.Service](t, `
metadata: {name: s}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`)
	}
	port := func(p ...corev1.ServicePort) func(svc) {
		return func(s svc) {
			for i := range p {
				if p[i].Protocol == "" {
					p[i].Protocol = corev1.ProtocolTCP
				}
				if p[i].TargetPort == (intstr.IntOrString{}) {
					p[i].TargetPort = intstr.FromInt32(1)
				}
			}
			s.Spec.Ports = p
		}
	}
	typed := func(typ corev1.ServiceType, more func(svc)) func(svc) {
		return func(s svc) {
			s.Spec.Type = typ
			if typ == corev1.ServiceTypeLoadBalancer || typ == corev1.ServiceTypeNodePort {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
			}
			if typ == corev1.ServiceTypeExternalName {
				s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.ExternalName = "", nil, "example.com."
			}
			if more != nil {
				more(s)
			}
		}
	}
	headless := func(s svc) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }
	annotatedSources := func(text string) func(svc) {
		return func(s svc) { s.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: text} }
	}
	healthPort := func(port int32) func(svc) { return func(s svc) { s.Spec.HealthCheckNodePort = port } }
	local := func(more func(svc)) func(svc) {
		return typed("LoadBalancer", func(s svc) { s.Spec.ExternalTrafficPolicy = "Local"; more(s) })
	}
	mutate(t, fresh, validateService, []mutation[svc]{
		{"type", func(s svc) { s.Spec.Type = "x" }, bad(`spec.type: Unsupported value: "x": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`)},
		{"no ports", port(), bad("spec.ports: Required value")},
		{"headless without ports", func(s svc) { headless(s); s.Spec.Ports = nil }, nil},
		{"unnamed port", port(corev1.ServicePort{Port: 1}), nil},
		{"unnamed ports", port(corev1.ServicePort{Port: 1}, corev1.ServicePort{Port: 2, Name: "a"}), bad("spec.ports[0].name: Required value")},
		{"port name", port(corev1.ServicePort{Port: 1, Name: "A"}), bad("spec.ports[0].name: Invalid value")},
		{"port name twice", port(corev1.ServicePort{Port: 1, Name: "a"}, corev1.ServicePort{Port: 2, Name: "a"}), bad(`spec.ports[1].name: Duplicate value: "a"`)},
		{"port twice", port(corev1.ServicePort{Port: 1, Name: "a"}, corev1.ServicePort{Port: 1, Name: "b"}), bad("spec.ports[1]: Duplicate value")},
		{"port of two protocols", port(corev1.ServicePort{Port: 1, Name: "a"}, corev1.ServicePort{Port: 1, Name: "b", Protocol: "UDP"}), nil},
		{"port", port(corev1.ServicePort{Port: 0}), bad("spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive")},
		{"protocol", port(corev1.ServicePort{Port: 1, Protocol: "ICMP"}), bad("spec.ports[0].protocol: Unsupported value")},
		{"target port", port(corev1.ServicePort{Port: 1, TargetPort: intstr.FromString("A b")}), bad("spec.ports[0].targetPort: Invalid value")},
		{"application protocol", port(corev1.ServicePort{Port: 1, AppProtocol: ptr("a b")}), bad("spec.ports[0].appProtocol: Invalid value")},
		{"node port of a cluster address", port(corev1.ServicePort{Port: 1, NodePort: 30000}), bad("spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'")},
		{"node port", typed("NodePort", port(corev1.ServicePort{Port: 1, NodePort: 30000})), nil},
		{
			"node port twice", typed("NodePort", port(corev1.ServicePort{Port: 1, Name: "a", NodePort: 30000}, corev1.ServicePort{Port: 2, Name: "b", NodePort: 30000})),
			bad("spec.ports[1].nodePort: Duplicate value: 30000"),
		},
		{"headless node port", typed("NodePort", headless), bad("spec.clusterIPs[0]: Invalid value: [\"None\"]: may not be set to 'None' for NodePort services")},
		{"headless balancer", typed("LoadBalancer", headless), bad("spec.clusterIPs[0]: Invalid value")},
		{"external name", typed("ExternalName", nil), nil},
		{"no external name", typed("ExternalName", func(s svc) { s.Spec.ExternalName = "" }), bad("spec.externalName: Required value")},
		{"bad external name", typed("ExternalName", func(s svc) { s.Spec.ExternalName = "a_b" }), bad(`spec.externalName: Invalid value: "a_b"`)},
		{"external name with address", typed("ExternalName", headless), bad("spec.clusterIPs: Forbidden: may not be set when `type` is 'ExternalName'")},
		{"selector", func(s svc) { s.Spec.Selector = map[string]string{"a b": ""} }, bad("spec.selector: Invalid value")},
		{"affinity", func(s svc) { s.Spec.SessionAffinity = "Cookie" }, bad(`spec.sessionAffinity: Unsupported value: "Cookie": supported values: "ClientIP", "None"`)},
		{"affinity config", func(s svc) { s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{} }, bad("spec.sessionAffinityConfig: Forbidden: must not be set when session affinity is None")},
		{"affinity without config", func(s svc) { s.Spec.SessionAffinity = "ClientIP" }, bad("spec.sessionAffinityConfig: Required value")},
		{"affinity timeout", func(s svc) {
			s.Spec.SessionAffinity = "ClientIP"
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr[int32](86401)}}
		}, bad("spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400")},
		{"address", func(s svc) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "x", []string{"x"} }, bad("spec.clusterIPs[0]: Invalid value")},
		{"addresses disagree", func(s svc) { s.Spec.ClusterIP = "10.96.0.11" }, bad("spec.clusterIPs[0]: Invalid value: [\"10.96.0.10\"]: first value must match `clusterIP`")},
		{"three addresses", func(s svc) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "10.0.0.1", "10.0.0.2") }, bad("spec.clusterIPs: Invalid value")},
		{"none and more", func(s svc) { headless(s); s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "10.0.0.1") }, bad("spec.clusterIPs: Invalid value")},
		{
			"families", func(s svc) { s.Spec.IPFamilies = []corev1.IPFamily{"IPv4", "IPv4", "IPv5"} },
			bad("spec.ipFamilies[1]: Duplicate value", `spec.ipFamilies[2]: Unsupported value: "IPv5"`),
		},
		{"family policy", func(s svc) { s.Spec.IPFamilyPolicy = ptr(corev1.IPFamilyPolicy("x")) }, bad("spec.ipFamilyPolicy: Unsupported value")},
		{"external addresses", func(s svc) {
			s.Spec.ExternalIPs = []string{"192.0.2.1", "x", "127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "010.0.0.1"}
			s.Spec.ExternalTrafficPolicy = "Local"
		}, bad("spec.externalIPs[1]: Invalid value", "spec.externalIPs[2]: Invalid value: \"127.0.0.1\": may not be in the loopback range",
			"spec.externalIPs[3]: Invalid value: \"0.0.0.0\": may not be unspecified", "spec.externalIPs[4]: Invalid value: \"169.254.1.1\": may not be in the link-local range",
			"spec.externalIPs[5]: Invalid value: \"224.0.0.1\": may not be in the link-local multicast range",
			"spec.externalIPs[6]: Invalid value: \"010.0.0.1\": must not have leading 0s")},
		{
			"external policy", func(s svc) { s.Spec.ExternalTrafficPolicy = "Local" },
			bad(`spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services`),
		},
		{"unknown external policy", typed("NodePort", func(s svc) { s.Spec.ExternalTrafficPolicy = "x" }), bad("spec.externalTrafficPolicy: Unsupported value")},
		{"internal policy", func(s svc) { s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicy("x")) }, bad("spec.internalTrafficPolicy: Unsupported value")},
		{"distribution", func(s svc) { s.Spec.TrafficDistribution = ptr("x") }, bad("spec.trafficDistribution: Unsupported value")},
		{"what only a balancer has", func(s svc) {
			s.Spec.LoadBalancerSourceRanges, s.Spec.AllocateLoadBalancerNodePorts, s.Spec.LoadBalancerClass = []string{"10.0.0.0/8"}, ptr(true), ptr("a/b")
		}, bad("spec.loadBalancerSourceRanges: Forbidden", "spec.allocateLoadBalancerNodePorts: Forbidden", "spec.loadBalancerClass: Forbidden")},
		{"source range", typed("LoadBalancer", func(s svc) { s.Spec.LoadBalancerSourceRanges = []string{"x"} }), bad("spec.loadBalancerSourceRanges[0]: Invalid value")},
		{"source range as an annotation", typed("LoadBalancer", annotatedSources(" 10.0.0.0/8, 2001:db8::/32 ")), nil},
		{"no source range as an annotation", typed("LoadBalancer", annotatedSources(" ")), nil},
		{"bad source range as an annotation", typed("LoadBalancer", annotatedSources("10.0.0.0/8,x")), bad(`metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Invalid value: "x"`)},
		{
			"source range of another type as an annotation", annotatedSources("10.0.0.0/8"),
			bad("metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Forbidden: may only be used when `type` is 'LoadBalancer'"),
		},
		{"health check port", typed("LoadBalancer", healthPort(70000)), bad("spec.healthCheckNodePort: Invalid value")},
		{"local health check port", local(healthPort(30001)), nil},
		{"bad local health check port", local(healthPort(70000)), bad("spec.healthCheckNodePort: Invalid value: 70000: must be between 1 and 65535")},
		{
			"health check port of a cluster", typed("LoadBalancer", healthPort(30001)),
			bad("spec.healthCheckNodePort: Invalid value: 30001: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"),
		},
	})
	mutateUpdate(t, fresh, validateServiceUpdate, []mutation[svc]{
		{"ports", port(corev1.ServicePort{Port: 81}), nil},
		{
			"address", func(s svc) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.11", []string{"10.96.0.11"} },
			bad(`spec.clusterIPs[0]: Invalid value: ["10.96.0.11"]: may not change once set`),
		},
		{"no address", func(s svc) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }, bad("spec.clusterIPs[0]: Invalid value: null: may not change once set")},
		{"become a name", typed("ExternalName", nil), nil},
		{"family", func(s svc) { s.Spec.IPFamilies = []corev1.IPFamily{"IPv6"} }, bad("spec.ipFamilies[0]: Invalid value")},
	})
	mutateUpdate(t, func() svc {
		s := fresh()
		local(healthPort(30001))(s)
		annotatedSources("x")(s) // it was stored before there was a rule
		return s
	}, validateServiceUpdate, []mutation[svc]{
		{"health check port", healthPort(30002), bad("spec.healthCheckNodePort: Invalid value: 30002: cannot change healthCheckNodePort on loadBalancer service with externalTraffic=Local during update")},
		{"no longer local", func(s svc) { s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = "Cluster", 0 }, nil},
		{"source range as an annotation", annotatedSources("y"), bad(`metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Invalid value: "y"`)},
	})
	balancer := func() svc {
		s := fresh()
		typed("LoadBalancer", func(s svc) { s.Spec.LoadBalancerClass = ptr("a/b") })(s)
		return s
	}
	mutateUpdate(t, balancer, validateServiceUpdate, []mutation[svc]{
		{"class", func(s svc) { s.Spec.LoadBalancerClass = nil }, bad("spec.loadBalancerClass: Invalid value: null: field is immutable")},
	})
	mutateUpdate(t, balancer, validateServiceStatusUpdate, []mutation[svc]{
		{"ingress", func(s svc) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {Hostname: "a.b"}}
		}, nil},
		{"bad ingress", func(s svc) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "x"}, {Hostname: "1.2.3.4"}, {IPMode: ptr(corev1.LoadBalancerIPModeVIP)}}
		}, bad("status.loadBalancer.ingress[0].ip: Invalid value", "status.loadBalancer.ingress[1].hostname: Invalid value", "status.loadBalancer.ingress[2].ipMode: Forbidden")},
		{"ingress of another type", func(s svc) {
			s.Spec.Type = corev1.ServiceTypeClusterIP
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}, bad("status.loadBalancer.ingress: Forbidden")},
	})
}

func TestEvents(t *testing.T) {
	t.Parallel()
	type event = *corev1.Event
	fresh := func() event {
		return defaulted[corev1.Event](t, `{metadata: {name: e, namespace: default}, involvedObject: {kind: Pod, name: p, namespace: default}, reason: R, message: M, type: Normal}`)
	}
	mutate(t, fresh, validateEvent, []mutation[event]{
		{"of a node", func(e event) { e.InvolvedObject = corev1.ObjectReference{Kind: "Node", Name: "n"} }, nil},
		{
			"of a node elsewhere", func(e event) { e.Namespace = "x"; e.InvolvedObject.Namespace = "" },
			bad(`involvedObject.namespace: Invalid value: "": does not match event.namespace`),
		},
		{"elsewhere", func(e event) { e.Namespace = "x" }, bad(`involvedObject.namespace: Invalid value: "default": does not match event.namespace`)},
		{"long message", func(e event) { e.Message = long(2000) }, nil},
	})
	timed := func() event {
		e := fresh()
		e.EventTime = metav1.NowMicro()
		e.ReportingController, e.ReportingInstance, e.Action = "example.com/c", "c-1", "Act"
		return e
	}
	mutate(t, timed, validateEvent, []mutation[event]{
		{"no reporter", func(e event) { e.ReportingController, e.ReportingInstance = "", "" }, bad("reportingComponent: Required value", "reportingInstance: Required value")},
		{"reporter", func(e event) { e.ReportingController = "a b" }, bad("reportingComponent: Invalid value")},
		{"long texts", func(e event) {
			e.ReportingInstance, e.Action, e.Reason, e.Message = long(129), long(129), long(129), long(1025)
		}, bad("reportingInstance: Invalid value", "action: Invalid value", "reason: Invalid value", "message: Invalid value: \"\": can have at most 1024 characters")},
		{"no action", func(e event) { e.Action, e.Reason = "", "" }, bad("action: Required value", "reason: Required value")},
	})
	mutate(t, timed, validateNewerEvent, []mutation[event]{
		{"no time", func(e event) { e.EventTime = metav1.MicroTime{} }, bad("eventTime: Required value")},
		{"no reporter", func(e event) { e.ReportingController, e.ReportingInstance = "", "" }, bad("reportingController: Required value", "reportingInstance: Required value")},
		{"type", func(e event) { e.Type = "x" }, bad(`type: Invalid value: "": has invalid value: x`)},
		{"series", func(e event) { e.Series = &corev1.EventSeries{Count: 1} }, bad(`series.count: Invalid value: "": should be at least 2`, "series.lastObservedTime: Required value")},
		{"deprecated", func(e event) {
			e.Source.Component, e.Count, e.FirstTimestamp, e.LastTimestamp = "c", 1, metav1.Now(), metav1.Now()
		}, bad(`count: Invalid value: "": needs to be unset`, `firstTimestamp: Invalid value: "": needs`, `lastTimestamp: Invalid value: "": needs`, `source: Invalid value: "": needs`)},
	})
	mutateUpdate(t, func() event { e := timed(); e.EventTime = metav1.MicroTime{Time: time.Unix(1, 0)}; return e }, validateNewerEventUpdate, []mutation[event]{
		{"series goes on", func(e event) { e.Series = &corev1.EventSeries{Count: 3, LastObservedTime: metav1.NowMicro()} }, nil},
		{"series of one", func(e event) { e.Series = &corev1.EventSeries{Count: 1, LastObservedTime: metav1.NowMicro()} }, bad("series.count: Invalid value")},
		{"note", func(e event) { e.Message = "x" }, bad("message: Invalid value: \"x\": field is immutable")},
		{"time", func(e event) { e.EventTime = metav1.NewMicroTime(e.EventTime.Add(time.Second)) }, bad("eventTime: Invalid value")},
		{"deprecated", func(e event) { e.Count = 2 }, bad("count: Invalid value: 2: field is immutable")},
	})
}

func TestLeases(t *testing.T) {
	t.Parallel()
	type lease = *coordinationv1.Lease
	fresh := func() lease {
		return defaulted[coordinationv1.Lease](t, `{metadata: {name: n}, spec: {holderIdentity: n, leaseDurationSeconds: 40, renewTime: "2026-01-01T00:00:00.000000Z"}}`)
	}
	mutate(t, fresh, validateLease, []mutation[lease]{
		{"nobody's", func(l lease) { l.Spec = coordinationv1.LeaseSpec{} }, nil},
		{"no time", func(l lease) { l.Spec.LeaseDurationSeconds = ptr[int32](0) }, bad("spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0")},
		{"transitions", func(l lease) { l.Spec.LeaseTransitions = ptr[int32](-1) }, bad("spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0")},
		{"preferred", func(l lease) { l.Spec.PreferredHolder = ptr("m") }, bad("spec.preferredHolder: Forbidden")},
		{"preferred with an empty strategy", func(l lease) {
			l.Spec.PreferredHolder, l.Spec.Strategy = ptr("m"), ptr(coordinationv1.CoordinatedLeaseStrategy(""))
		}, bad("spec.preferredHolder: Forbidden", "spec.strategy: Invalid value", "spec.strategy: Invalid value")},
		{"strategy", func(l lease) { l.Spec.Strategy = ptr(coordinationv1.CoordinatedLeaseStrategy("a b")) }, bad("spec.strategy: Invalid value")},
	})
}

// TestElectedLeases: what a lease says of who is to be elected is not kept, unless it was stored.
func TestElectedLeases(t *testing.T) {
	t.Parallel()
	k := leases()
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{PreferredHolder: ptr("m"), Strategy: ptr(coordinationv1.OldestEmulationVersion)}}
	stored, first := l.DeepCopy(), l.DeepCopy()
	k.onCreate(t.Context(), first)
	if first.Spec.PreferredHolder != nil || first.Spec.Strategy != nil {
		t.Errorf("made: %+v", first.Spec)
	}
	second := l.DeepCopy()
	k.onUpdate(t.Context(), second, first)
	if second.Spec.PreferredHolder != nil || second.Spec.Strategy != nil {
		t.Errorf("updated: %+v", second.Spec)
	}
	third := l.DeepCopy()
	k.onUpdate(t.Context(), third, stored)
	if third.Spec.PreferredHolder == nil || third.Spec.Strategy == nil {
		t.Errorf("updated as it was stored: %+v", third.Spec)
	}
}

func TestLimitsAndQuotas(t *testing.T) {
	t.Parallel()
	type limits = *corev1.LimitRange
	fresh := func() limits {
		return defaulted[corev1.LimitRange](t, `{metadata: {name: l}, spec: {limits: [{type: Container, min: {cpu: 100m}, max: {cpu: "2"}, default: {cpu: "1"}, defaultRequest: {cpu: 500m}, maxLimitRequestRatio: {cpu: "4"}}]}}`)
	}
	item := func(change func(*corev1.LimitRangeItem)) func(limits) {
		return func(l limits) { change(&l.Spec.Limits[0]) }
	}
	type it = *corev1.LimitRangeItem
	const at = "spec.limits[0]"
	mutate(t, fresh, validateLimitRange, []mutation[limits]{
		{"no type", item(func(i it) { i.Type = "" }), bad(at + ".type: Required value")},
		{"type", item(func(i it) { i.Type = "Node" }), bad(at + ".type: Unsupported value")},
		{"own type", item(func(i it) { i.Type = "example.com/Disk" }), nil},
		{"type twice", func(l limits) { l.Spec.Limits = append(l.Spec.Limits, l.Spec.Limits[0]) }, bad(`spec.limits[1].type: Duplicate value: "Container"`)},
		{"pod with defaults", item(func(i it) { i.Type = corev1.LimitTypePod }), bad(at+".default: Forbidden", at+".defaultRequest: Forbidden")},
		{"claim without bound", item(func(i it) { *i = corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim} }), bad(at + ".limits: Required value")},
		{"claim", item(func(i it) {
			*i = corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Max: list("storage", "1Gi")}
		}), nil},
		{
			"min over max", item(func(i it) { *i = corev1.LimitRangeItem{Type: i.Type, Min: list("cpu", "3"), Max: list("cpu", "2")} }),
			bad(at + `.min[cpu]: Invalid value: "3": min value 3 is greater than max value 2`),
		},
		{"default over max", item(func(i it) { i.Default = list("cpu", "3") }), bad(at + `.default[cpu]: Invalid value: "2": default value 3 is greater than max value 2`)},
		{"negative", item(func(i it) { i.Min = list("cpu", "-1") }), bad(at+".min[cpu]: Invalid value", at+".maxLimitRequestRatio[cpu]: Invalid value")},
		{"resource", item(func(i it) { i.Max = list("cpu", "2", "disk", "1") }), bad(at + ".max[disk]: Invalid value")},
		{"default request over default", item(func(i it) { i.DefaultRequest = list("cpu", "1500m") }), bad(at + `.defaultRequest[cpu]: Invalid value: "1500m": default request value 1500m is greater than default limit value 1`)},
		{"ratio out of reach", item(func(i it) { i.MaxLimitRequestRatio = list("cpu", "21") }), bad(at + `.maxLimitRequestRatio[cpu]: Invalid value: "21": ratio 21 is greater than max/min = 20.000000`)},
		{"ratio at the bound", item(func(i it) { i.MaxLimitRequestRatio = list("cpu", "20") }), nil},
		{"ratio of a resource", item(func(i it) { i.MaxLimitRequestRatio = list("disk", "2") }), bad(at + ".maxLimitRequestRatio[disk]: Invalid value")},
		{"a device by halves", item(func(i it) { i.Default, i.DefaultRequest = list("a.b/gpu", "2"), list("a.b/gpu", "1") }), bad(at + `.defaultRequest[a.b/gpu]: Invalid value: "1": default value 2 must equal to defaultRequest value 1 in a.b/gpu`)},
		{"ratio", item(func(i it) { i.MaxLimitRequestRatio = list("cpu", "500m") }), bad(at + `.maxLimitRequestRatio[cpu]: Invalid value: "500m": ratio 500m is less than 1`)},
	})
}

func TestVolumesAndClaims(t *testing.T) {
	t.Parallel()
	type pv = *corev1.PersistentVolume
	fresh := func() pv {
		return defaulted[corev1.PersistentVolume](t, `{metadata: {name: v}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], csi: {driver: d.example, volumeHandle: h}}}`)
	}
	mutate(t, fresh, validatePersistentVolume, []mutation[pv]{
		{"no capacity", func(v pv) { v.Spec.Capacity = nil }, bad("spec.capacity: Required value")},
		{"capacity of another kind", func(v pv) { v.Spec.Capacity = list("cpu", "1") }, bad("spec.capacity: Unsupported value")},
		{"capacity zero", func(v pv) { v.Spec.Capacity = list("storage", "0") }, bad(`spec.capacity[storage]: Invalid value: "0": must be greater than zero`)},
		{"no mode", func(v pv) { v.Spec.AccessModes = nil }, bad("spec.accessModes: Required value")},
		{"mode", func(v pv) { v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"x"} }, bad("spec.accessModes: Unsupported value")},
		{"single pod and more", func(v pv) { v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadWriteOncePod) }, bad("spec.accessModes: Forbidden")},
		{"no source", func(v pv) { v.Spec.CSI = nil }, bad("spec: Required value: must specify a volume type")},
		{"two sources", func(v pv) { v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/x"} }, bad("spec.csi: Forbidden")},
		{"reclaim policy", func(v pv) { v.Spec.PersistentVolumeReclaimPolicy = "x" }, bad("spec.persistentVolumeReclaimPolicy: Unsupported value")},
		{"class", func(v pv) { v.Spec.StorageClassName = "A" }, bad("spec.storageClassName: Invalid value")},
		{"mode of volume", func(v pv) { v.Spec.VolumeMode = ptr(corev1.PersistentVolumeMode("x")) }, bad("spec.volumeMode: Unsupported value")},
		{
			"handle and secret", func(v pv) { v.Spec.CSI.VolumeHandle, v.Spec.CSI.NodeStageSecretRef = "", &corev1.SecretReference{} },
			bad("spec.csi.volumeHandle: Required value", "spec.csi.nodeStageSecretRef.name: Required value", "spec.csi.nodeStageSecretRef.namespace: Required value"),
		},
		{"local without node", func(v pv) { v.Spec.CSI, v.Spec.Local = nil, &corev1.LocalVolumeSource{Path: "/d"} }, bad("spec.nodeAffinity: Required value: Local volume requires node affinity")},
		{"affinity", func(v pv) { v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{} }, bad("spec.nodeAffinity.required: Required value")},
		{"recycle the root", func(v pv) {
			v.Spec.CSI, v.Spec.HostPath, v.Spec.PersistentVolumeReclaimPolicy = nil, &corev1.HostPathVolumeSource{Path: "/"}, corev1.PersistentVolumeReclaimRecycle
		}, bad("spec.persistentVolumeReclaimPolicy: Forbidden")},
	})
	mutateUpdate(t, fresh, validatePersistentVolumeUpdate, []mutation[pv]{
		{"claim ref", func(v pv) { v.Spec.ClaimRef = &corev1.ObjectReference{Name: "c"} }, nil},
		{"expansion secret", func(v pv) { v.Spec.CSI.ControllerExpandSecretRef = &corev1.SecretReference{Name: "a", Namespace: "b"} }, nil},
		{"handle", func(v pv) { v.Spec.CSI.VolumeHandle = "x" }, bad("spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation")},
		{"volume mode", func(v pv) { v.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock) }, bad("spec.volumeMode: Invalid value")},
	})
	type pvc = *corev1.PersistentVolumeClaim
	claim := func() pvc {
		return defaulted[corev1.PersistentVolumeClaim](t, `{metadata: {name: c}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}, status: {phase: Bound, capacity: {storage: 2Gi}}}`)
	}
	mutate(t, claim, validatePersistentVolumeClaim, []mutation[pvc]{
		{"no mode", func(c pvc) { c.Spec.AccessModes = nil }, bad("spec.accessModes: Required value: at least 1 access mode is required")},
		{"no size", func(c pvc) { c.Spec.Resources.Requests = nil }, bad("spec.resources[storage]: Required value")},
		{"size", func(c pvc) { c.Spec.Resources.Requests = list("storage", "-1") }, bad("spec.resources.requests[storage]: Invalid value")},
		{"selector", func(c pvc) { c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a b": ""}} }, bad("spec.selector.matchLabels: Invalid value")},
		{
			"classes", func(c pvc) { c.Spec.StorageClassName, c.Spec.VolumeAttributesClassName = ptr("A"), ptr("A") },
			bad("spec.storageClassName: Invalid value", "spec.volumeAttributesClassName: Invalid value"),
		},
		{"no class", func(c pvc) { c.Spec.StorageClassName = ptr("") }, nil},
		{
			"sources", func(c pvc) {
				c.Spec.DataSource, c.Spec.DataSourceRef = &corev1.TypedLocalObjectReference{}, &corev1.TypedObjectReference{}
			},
			bad("spec.dataSource.kind: Required value", "spec.dataSource.name: Required value", "spec.dataSourceRef.kind: Required value", "spec.dataSourceRef.name: Required value"),
		},
	})
	const frozen = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
	mutateUpdate(t, claim, validatePersistentVolumeClaimUpdate, []mutation[pvc]{
		{"bind", func(c pvc) { c.Spec.VolumeName = "v" }, nil},
		{"class of a claim without", func(c pvc) { c.Spec.StorageClassName = ptr("gold") }, nil},
		{"grow", func(c pvc) { c.Spec.Resources.Requests = list("storage", "3Gi") }, nil},
		{"shrink", func(c pvc) { c.Spec.Resources.Requests = list("storage", "1Gi") }, bad("spec.resources.requests[storage]: Forbidden: field can not be less than status.capacity")},
		{"drop the size", func(c pvc) { c.Spec.Resources.Requests = nil }, bad("spec.resources[storage]: Required value", "spec.resources.requests[storage]: Forbidden", frozen)},
		{"modes", func(c pvc) { c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany} }, bad(frozen)},
	})
	mutate(t, claim, validatePersistentVolumeClaimStatus, []mutation[pvc]{
		{
			"negative", func(c pvc) {
				c.Status.Capacity, c.Status.AllocatedResources = list("storage", "-1"), list("storage", "-1")
			},
			bad("status.allocatedResources[storage]: Invalid value", "status.capacity[storage]: Invalid value"),
		},
		{"no modes", func(c pvc) { c.Spec.AccessModes = nil }, bad("spec.accessModes: Required value")},
	})
}

// TestWrongKind makes a mistake of the caller an error and not a panic.
func TestWrongKind(t *testing.T) {
	t.Parallel()
	r := pods().rules
	for _, errs := range []string{
		r.Create(&corev1.Node{}).ToAggregate().Error(),
		r.Update(&corev1.Node{}, &corev1.Pod{}).ToAggregate().Error(),
		r.Update(&corev1.Pod{}, &corev1.Node{}).ToAggregate().Error(),
	} {
		if !strings.Contains(errs, "Internal error: validate: unexpected object *v1.Node") {
			t.Error(errs)
		}
	}
}
