package kinds

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func defaultsScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// asMap is o as maps and lists, without what the zero value of its type prints.
func asMap(t testing.TB, o any) map[string]any {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// compareDefaults wants o to come out of YAML and defaults as want, in YAML too.
func compareDefaults(t *testing.T, o, want runtime.Object, in, out string) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(in), o); err != nil {
		t.Fatalf("decode input: %v", err)
	}
	if err := yaml.UnmarshalStrict([]byte(out), want); err != nil {
		t.Fatalf("decode output: %v", err)
	}
	s := defaultsScheme(t)
	s.Default(o)
	if d := cmp.Diff(asMap(t, want), asMap(t, o)); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
	once := o.DeepCopyObject()
	s.Default(o)
	if d := cmp.Diff(asMap(t, once), asMap(t, o)); d != "" {
		t.Errorf("defaults of defaults (-once +twice):\n%s", d)
	}
}

const containerRest = "terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, imagePullPolicy: IfNotPresent"

const podRest = "restartPolicy: Always, dnsPolicy: ClusterFirst, schedulerName: default-scheduler, terminationGracePeriodSeconds: 30, securityContext: {}"

func TestDefaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		o, want runtime.Object
		in, out string
	}{
		{
			"pod", &corev1.Pod{}, &corev1.Pod{},
			`{spec: {serviceAccount: sa, containers: [{name: c, image: "i:1", ports: [{containerPort: 80}], resources: {limits: {cpu: "1", memory: 1Gi}, requests: {cpu: 500m}}}]}}`,
			`{spec: {serviceAccount: sa, serviceAccountName: sa, enableServiceLinks: true, ` + podRest + `,
				containers: [{name: c, image: "i:1", ports: [{containerPort: 80, protocol: TCP}], resources: {limits: {cpu: "1", memory: 1Gi}, requests: {cpu: 500m, memory: 1Gi}}, ` + containerRest + `}]}}`,
		},
		{
			"pod in the node's network", &corev1.Pod{}, &corev1.Pod{},
			`{spec: {hostNetwork: true, initContainers: [{image: "i:1", ports: [{containerPort: 1}]}], containers: [{image: "i:1", ports: [{containerPort: 80}, {containerPort: 81, hostPort: 82, protocol: UDP}]}]}}`,
			`{spec: {hostNetwork: true, enableServiceLinks: true, ` + podRest + `, initContainers: [{image: "i:1", ports: [{containerPort: 1, hostPort: 1, protocol: TCP}], ` + containerRest + `}],
				containers: [{image: "i:1", ports: [{containerPort: 80, hostPort: 80, protocol: TCP}, {containerPort: 81, hostPort: 82, protocol: UDP}], ` + containerRest + `}]}}`,
		},
		{
			"pod with resources of its own", &corev1.Pod{}, &corev1.Pod{},
			`{spec: {resources: {limits: {cpu: "2", memory: 1Gi}}, containers: [{image: "i:1", resources: {requests: {cpu: 500m}}}, {image: "i:1", resources: {requests: {cpu: 250m}}}]}}`,
			`{spec: {enableServiceLinks: true, ` + podRest + `, resources: {limits: {cpu: "2", memory: 1Gi}},
				containers: [{image: "i:1", resources: {requests: {cpu: 500m}}, ` + containerRest + `}, {image: "i:1", resources: {requests: {cpu: 250m}}, ` + containerRest + `}]}}`,
		},
		{
			"probes", &corev1.Pod{}, &corev1.Pod{},
			`{spec: {containers: [{image: "i:1", livenessProbe: {httpGet: {port: 80}}, readinessProbe: {grpc: {port: 1}, periodSeconds: 5}, startupProbe: {exec: {command: [x]}, timeoutSeconds: 9},
				lifecycle: {preStop: {httpGet: {port: 1, path: /x}}}}]}}`,
			`{spec: {enableServiceLinks: true, ` + podRest + `, containers: [{image: "i:1", ` + containerRest + `,
				livenessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3},
				readinessProbe: {grpc: {port: 1, service: ""}, timeoutSeconds: 1, periodSeconds: 5, successThreshold: 1, failureThreshold: 3},
				startupProbe: {exec: {command: [x]}, timeoutSeconds: 9, periodSeconds: 10, successThreshold: 1, failureThreshold: 3},
				lifecycle: {preStop: {httpGet: {port: 1, path: /x, scheme: HTTP}}}}]}}`,
		},
		{
			"volumes", &corev1.Pod{}, &corev1.Pod{},
			`{spec: {volumes: [{name: a}, {name: b, secret: {secretName: s}}, {name: c, configMap: {name: m, defaultMode: 256}}, {name: d, downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}},
				{name: e, projected: {sources: [{serviceAccountToken: {path: t}}]}}, {name: f, hostPath: {path: /x}}, {name: g, image: {reference: "i"}}, {name: h, ephemeral: {volumeClaimTemplate: {spec: {}}}}]}}`,
			`{spec: {enableServiceLinks: true, ` + podRest + `, containers: null, volumes: [{name: a, emptyDir: {}}, {name: b, secret: {secretName: s, defaultMode: 420}}, {name: c, configMap: {name: m, defaultMode: 256}},
				{name: d, downwardAPI: {defaultMode: 420, items: [{path: p, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}},
				{name: e, projected: {defaultMode: 420, sources: [{serviceAccountToken: {path: t, expirationSeconds: 3600}}]}}, {name: f, hostPath: {path: /x, type: ""}},
				{name: g, image: {reference: "i", pullPolicy: Always}}, {name: h, ephemeral: {volumeClaimTemplate: {spec: {volumeMode: Filesystem}}}}]}}`,
		},
		{
			"environment", &corev1.Pod{}, &corev1.Pod{},
			`{spec: {containers: [{image: "i:1", env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}], ephemeralContainers: [{name: e, image: i}]}}`,
			`{spec: {enableServiceLinks: true, ` + podRest + `, containers: [{image: "i:1", ` + containerRest + `, env: [{name: A, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: status.podIP}}}]}],
				ephemeralContainers: [{name: e, image: i, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, imagePullPolicy: Always}]}}`,
		},
		{
			"pod addresses", &corev1.Pod{}, &corev1.Pod{},
			`{status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.2}], hostIPs: [{ip: 10.0.0.3}]}}`,
			`{spec: {enableServiceLinks: true, containers: null, ` + podRest + `}, status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}], hostIP: 10.0.0.3, hostIPs: [{ip: 10.0.0.3}]}}`,
		},
		{
			"rounding", &corev1.Pod{}, &corev1.Pod{},
			`{spec: {overhead: {cpu: 100u}, containers: [{image: "i:1", resources: {requests: {cpu: 1500u}}}]}}`,
			`{spec: {overhead: {cpu: 1m}, enableServiceLinks: true, ` + podRest + `, containers: [{image: "i:1", resources: {requests: {cpu: 2m}}, ` + containerRest + `}]}}`,
		},

		{
			"node", &corev1.Node{}, &corev1.Node{}, `{spec: {podCIDR: 10.0.0.0/24}, status: {capacity: {cpu: "4"}}}`,
			`{spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24]}, status: {capacity: {cpu: "4"}, allocatable: {cpu: "4"}}}`,
		},
		{
			"node with ranges", &corev1.Node{}, &corev1.Node{}, `{spec: {podCIDRs: [10.0.0.0/24, "fd00::/64"]}, status: {capacity: {cpu: "4"}, allocatable: {cpu: "3"}}}`,
			`{spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24, "fd00::/64"]}, status: {capacity: {cpu: "4"}, allocatable: {cpu: "3"}}}`,
		},
		{
			"namespace", &corev1.Namespace{}, &corev1.Namespace{}, `{metadata: {name: n, labels: {a: b, kubernetes.io/metadata.name: x}}}`,
			`{metadata: {name: n, labels: {a: b, kubernetes.io/metadata.name: n}}, status: {phase: Active}}`,
		},
		{"namespace to be named", &corev1.Namespace{}, &corev1.Namespace{}, `{metadata: {generateName: n}}`, `{metadata: {generateName: n}, status: {phase: Active}}`},
		{"secret", &corev1.Secret{}, &corev1.Secret{}, `{data: {a: YQ==, b: YQ==}, stringData: {b: c}}`, `{type: Opaque, data: {a: YQ==, b: Yw==}}`},
		{
			"service", &corev1.Service{}, &corev1.Service{}, `{spec: {ports: [{port: 80}, {port: 81, targetPort: x, protocol: UDP}]}}`,
			`{spec: {type: ClusterIP, sessionAffinity: None, internalTrafficPolicy: Cluster, ports: [{port: 80, protocol: TCP, targetPort: 80}, {port: 81, protocol: UDP, targetPort: x}]}}`,
		},
		{
			"balancer", &corev1.Service{}, &corev1.Service{}, `{spec: {type: LoadBalancer, sessionAffinity: ClientIP}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: x}]}}}`,
			`{spec: {type: LoadBalancer, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}, externalTrafficPolicy: Cluster, internalTrafficPolicy: Cluster,
				allocateLoadBalancerNodePorts: true}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1, ipMode: VIP}, {hostname: x}]}}}`,
		},
		{"external name", &corev1.Service{}, &corev1.Service{}, `{spec: {type: ExternalName, externalName: x}}`, `{spec: {type: ExternalName, externalName: x, sessionAffinity: None}}`},
		{
			"external addresses", &corev1.Service{}, &corev1.Service{}, `{spec: {externalIPs: [192.0.2.1]}}`,
			`{spec: {type: ClusterIP, externalIPs: [192.0.2.1], sessionAffinity: None, externalTrafficPolicy: Cluster, internalTrafficPolicy: Cluster}}`,
		},
		{"endpoints", &corev1.Endpoints{}, &corev1.Endpoints{}, `{subsets: [{ports: [{port: 1}]}]}`, `{subsets: [{ports: [{port: 1, protocol: TCP}]}]}`},
		{
			"limit range", &corev1.LimitRange{}, &corev1.LimitRange{}, `{spec: {limits: [{type: Container, max: {cpu: "2"}, min: {memory: 1Mi}}, {type: Pod, max: {cpu: "2"}}]}}`,
			`{spec: {limits: [{type: Container, max: {cpu: "2"}, min: {memory: 1Mi}, default: {cpu: "2"}, defaultRequest: {cpu: "2", memory: 1Mi}}, {type: Pod, max: {cpu: "2"}}]}}`,
		},
		{"claim", &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolumeClaim{}, `{}`, `{spec: {volumeMode: Filesystem}, status: {phase: Pending}}`},
		{
			"volume", &corev1.PersistentVolume{}, &corev1.PersistentVolume{}, `{spec: {hostPath: {path: /x}}}`,
			`{spec: {hostPath: {path: /x, type: ""}, volumeMode: Filesystem, persistentVolumeReclaimPolicy: Retain}, status: {phase: Pending}}`,
		},
		{
			"replication controller", &corev1.ReplicationController{}, &corev1.ReplicationController{}, `{spec: {template: {metadata: {labels: {a: b}}}}}`,
			`{metadata: {labels: {a: b}}, spec: {replicas: 1, selector: {a: b}, template: {metadata: {labels: {a: b}}, spec: {containers: null, ` + podRest + `}}}}`,
		},

		{
			"deployment", &appsv1.Deployment{}, &appsv1.Deployment{}, `{spec: {template: {spec: {containers: [{image: "i:1", resources: {limits: {cpu: "1"}}}]}}}}`,
			`{spec: {replicas: 1, strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 25%, maxSurge: 25%}}, revisionHistoryLimit: 10, progressDeadlineSeconds: 600, selector: null,
				template: {spec: {containers: [{image: "i:1", resources: {limits: {cpu: "1"}}, ` + containerRest + `}], ` + podRest + `}}}}`,
		},
		{
			"recreated deployment", &appsv1.Deployment{}, &appsv1.Deployment{}, `{spec: {replicas: 0, strategy: {type: Recreate}}}`,
			`{spec: {replicas: 0, strategy: {type: Recreate}, revisionHistoryLimit: 10, progressDeadlineSeconds: 600, selector: null, template: {spec: {containers: null, ` + podRest + `}}}}`,
		},
		{
			"daemon set", &appsv1.DaemonSet{}, &appsv1.DaemonSet{}, `{}`,
			`{spec: {updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1, maxSurge: 0}}, revisionHistoryLimit: 10, selector: null, template: {spec: {containers: null, ` + podRest + `}}}}`,
		},
		{"replica set", &appsv1.ReplicaSet{}, &appsv1.ReplicaSet{}, `{}`, `{spec: {replicas: 1, selector: null, template: {spec: {containers: null, ` + podRest + `}}}}`},
		{
			"stateful set", &appsv1.StatefulSet{}, &appsv1.StatefulSet{}, `{spec: {volumeClaimTemplates: [{metadata: {name: d}}]}}`,
			`{spec: {replicas: 1, podManagementPolicy: OrderedReady, updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0, maxUnavailable: 1}}, revisionHistoryLimit: 10, selector: null, serviceName: "",
				persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}, template: {spec: {containers: null, ` + podRest + `}},
				volumeClaimTemplates: [{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: d}, spec: {volumeMode: Filesystem}, status: {phase: Pending}}]}}`,
		},
		{
			"job", &batchv1.Job{}, &batchv1.Job{}, `{spec: {template: {metadata: {labels: {a: b}}}}}`,
			`{metadata: {labels: {a: b}}, spec: {completions: 1, parallelism: 1, backoffLimit: 6, completionMode: NonIndexed, suspend: false, manualSelector: false, podReplacementPolicy: TerminatingOrFailed,
				template: {metadata: {labels: {a: b}}, spec: {containers: null, ` + podRest + `}}}}`,
		},
		{
			"work queue", &batchv1.Job{}, &batchv1.Job{}, `{spec: {parallelism: 3, podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}}}`,
			`{spec: {parallelism: 3, backoffLimit: 6, completionMode: NonIndexed, suspend: false, manualSelector: false, podReplacementPolicy: Failed,
				podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}]}, template: {spec: {containers: null, ` + podRest + `}}}}`,
		},
		{
			"indexed job", &batchv1.Job{}, &batchv1.Job{}, `{spec: {completions: 5, completionMode: Indexed, backoffLimitPerIndex: 1}}`,
			`{spec: {completions: 5, parallelism: 1, backoffLimit: 2147483647, backoffLimitPerIndex: 1, completionMode: Indexed, suspend: false, manualSelector: false, podReplacementPolicy: TerminatingOrFailed,
				template: {spec: {containers: null, ` + podRest + `}}}}`,
		},
		{
			"cron job", &batchv1.CronJob{}, &batchv1.CronJob{}, `{}`,
			`{spec: {concurrencyPolicy: Allow, suspend: false, successfulJobsHistoryLimit: 3, failedJobsHistoryLimit: 1, schedule: "", jobTemplate: {spec: {template: {spec: {containers: null, ` + podRest + `}}}}}}`,
		},

		{"token request", &authenticationv1.TokenRequest{}, &authenticationv1.TokenRequest{}, `{}`, `{spec: {expirationSeconds: 3600}}`},
		{"endpoint slice", &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSlice{}, `{ports: [{port: 1}]}`, `{ports: [{name: "", port: 1, protocol: TCP}]}`},
		{
			"network policy", &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicy{}, `{spec: {egress: [{ports: [{port: 1}]}]}}`,
			`{spec: {egress: [{ports: [{port: 1, protocol: TCP}]}], policyTypes: [Ingress, Egress]}}`,
		},
		{
			"ingress policy", &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicy{}, `{spec: {ingress: [{ports: [{port: 1}]}]}}`,
			`{spec: {ingress: [{ports: [{port: 1, protocol: TCP}]}], policyTypes: [Ingress]}}`,
		},
		{"ingress class", &networkingv1.IngressClass{}, &networkingv1.IngressClass{}, `{spec: {parameters: {kind: K, name: n}}}`, `{spec: {parameters: {kind: K, name: n, scope: Cluster}}}`},
		{"runtime class", &nodev1.RuntimeClass{}, &nodev1.RuntimeClass{}, `{handler: x, overhead: {podFixed: {cpu: 1u}}}`, `{handler: x, overhead: {podFixed: {cpu: 1m}}}`},
		{
			"role binding", &rbacv1.RoleBinding{}, &rbacv1.RoleBinding{}, `{roleRef: {kind: Role, name: r}, subjects: [{kind: User, name: u}, {kind: ServiceAccount, name: s}]}`,
			`{roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: u}, {kind: ServiceAccount, name: s}]}`,
		},
		{"flow schema", &flowcontrolv1.FlowSchema{}, &flowcontrolv1.FlowSchema{}, `{}`, `{spec: {matchingPrecedence: 1000}}`},
		{
			"priority level", &flowcontrolv1.PriorityLevelConfiguration{}, &flowcontrolv1.PriorityLevelConfiguration{},
			`{spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {queues: 8}}}}}`,
			`{spec: {type: Limited, limited: {nominalConcurrencyShares: 30, lendablePercent: 0, limitResponse: {type: Queue, queuing: {queues: 8, handSize: 8, queueLengthLimit: 50}}}}}`,
		},
		{
			"exempt level", &flowcontrolv1.PriorityLevelConfiguration{}, &flowcontrolv1.PriorityLevelConfiguration{},
			`{spec: {type: Exempt, exempt: {}}}`, `{spec: {type: Exempt, exempt: {nominalConcurrencyShares: 0, lendablePercent: 0}}}`,
		},
		{"priority class", &schedulingv1.PriorityClass{}, &schedulingv1.PriorityClass{}, `{}`, `{preemptionPolicy: PreemptLowerPriority}`},
		{"storage class", &storagev1.StorageClass{}, &storagev1.StorageClass{}, `{}`, `{reclaimPolicy: Delete, volumeBindingMode: Immediate}`},
		{
			"csi driver", &storagev1.CSIDriver{}, &storagev1.CSIDriver{}, `{}`,
			`{spec: {attachRequired: true, podInfoOnMount: false, storageCapacity: false, fsGroupPolicy: ReadWriteOnceWithFSType, volumeLifecycleModes: [Persistent], requiresRepublish: false, seLinuxMount: false}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			compareDefaults(t, c.o, c.want, c.in, c.out)
		})
	}
}

func TestPullPolicy(t *testing.T) {
	t.Parallel()
	digest := "@sha256:" + strings.Repeat("0", 64)
	for image, want := range map[string]corev1.PullPolicy{
		"nginx":                          corev1.PullAlways,
		"nginx:latest":                   corev1.PullAlways,
		"nginx:1.27":                     corev1.PullIfNotPresent,
		"registry:5000/nginx":            corev1.PullAlways,
		"registry:5000/nginx:1":          corev1.PullIfNotPresent,
		"nginx" + digest:                 corev1.PullIfNotPresent,
		"nginx:1.27" + digest:            corev1.PullIfNotPresent,
		"nginx:latest" + digest:          corev1.PullAlways,
		"registry:5000/a/nginx" + digest: corev1.PullIfNotPresent,
		"":                               corev1.PullIfNotPresent,
	} {
		if got := pullPolicy(image); got != want {
			t.Errorf("pullPolicy(%q) = %s, want %s", image, got, want)
		}
	}
}

func TestJobSelector(t *testing.T) {
	t.Parallel()
	j := &batchv1.Job{}
	j.Name, j.UID = "j", "u"
	selectJob(j)
	want := map[string]string{"controller-uid": "u", "batch.kubernetes.io/controller-uid": "u", "job-name": "j", "batch.kubernetes.io/job-name": "j"}
	if d := cmp.Diff(want, j.Spec.Template.Labels); d != "" {
		t.Errorf("labels (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"batch.kubernetes.io/controller-uid": "u"}, j.Spec.Selector.MatchLabels); d != "" {
		t.Errorf("selector (-want +got):\n%s", d)
	}
	manual := &batchv1.Job{}
	manual.Spec.ManualSelector = new(bool)
	*manual.Spec.ManualSelector = true
	selectJob(manual)
	if manual.Spec.Selector != nil || manual.Spec.Template.Labels != nil {
		t.Errorf("a manual selector was touched: %+v", manual.Spec)
	}
}

func TestServiceAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, in, out string }{
		{"nothing yet", `{spec: {type: ClusterIP}}`, `{spec: {type: ClusterIP, ipFamilies: [IPv6], ipFamilyPolicy: SingleStack}}`},
		{"singular", `{spec: {clusterIP: 10.0.0.1, ipFamilies: [IPv4]}}`, `{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack}}`},
		{"plural", `{spec: {clusterIPs: [None], selector: {a: b}}}`, `{spec: {clusterIP: None, clusterIPs: [None], selector: {a: b}, ipFamilies: [IPv6], ipFamilyPolicy: SingleStack}}`},
		{"of anybody's endpoints", `{spec: {clusterIP: None}}`, `{spec: {clusterIP: None, clusterIPs: [None], ipFamilies: [IPv6, IPv4], ipFamilyPolicy: RequireDualStack}}`},
		{"of one family's endpoints", `{spec: {clusterIP: None, ipFamilyPolicy: SingleStack}}`, `{spec: {clusterIP: None, clusterIPs: [None], ipFamilies: [IPv6], ipFamilyPolicy: SingleStack}}`},
		{"of IPv4 first", `{spec: {clusterIP: None, ipFamilies: [IPv4]}}`, `{spec: {clusterIP: None, clusterIPs: [None], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack}}`},
		{"external name", `{spec: {type: ExternalName}}`, `{spec: {type: ExternalName}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got, want corev1.Service
			if err := yaml.UnmarshalStrict([]byte(c.in), &got); err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict([]byte(c.out), &want); err != nil {
				t.Fatal(err)
			}
			ServiceAddresses(&got, corev1.IPv6Protocol)
			if d := cmp.Diff(asMap(t, &want), asMap(t, &got)); d != "" {
				t.Errorf("addresses (-want +got):\n%s", d)
			}
		})
	}
}

func TestAddToSchemeRefusesNil(t *testing.T) {
	t.Parallel()
	if err := AddToScheme(nil); err == nil {
		t.Error("no error")
	}
}
