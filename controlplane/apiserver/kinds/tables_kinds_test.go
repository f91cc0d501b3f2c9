package kinds

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
)

const named = "metadata: {name: x, " + dayBefore + "}"

func TestNodes(t *testing.T) {
	t.Parallel()
	lines(t, "nodes", "NAME | STATUS | ROLES | AGE | VERSION | INTERNAL-IP* | EXTERNAL-IP* | OS-IMAGE* | KERNEL-VERSION* | CONTAINER-RUNTIME*", []line[corev1.Node]{
		{"bare", "{" + named + "}", "x | Unknown | <none> | 24h |  | <none> | <none> | <unknown> | <unknown> | <unknown>"},
		{
			"ready", "{" + named + `, status: {conditions: [{type: MemoryPressure, status: "False"}, {type: Ready, status: "True"}], addresses: [{type: Hostname, address: h}, {type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 192.0.2.1}],
				nodeInfo: {kubeletVersion: v1.37.2, osImage: Debian, kernelVersion: 6.12.0, containerRuntimeVersion: "process://1", machineID: "", systemUUID: "", bootID: "", kubeProxyVersion: "", operatingSystem: linux, architecture: amd64}}}`,
			"x | Ready | <none> | 24h | v1.37.2 | 10.0.0.1 | 192.0.2.1 | Debian | 6.12.0 | process://1",
		},
		{"not ready", "{" + named + `, status: {conditions: [{type: Ready, status: "False"}]}}`, "x | NotReady | <none> | 24h |  | <none> | <none> | <unknown> | <unknown> | <unknown>"},
		{"lost", "{" + named + `, status: {conditions: [{type: Ready, status: "Unknown"}]}}`, "x | NotReady | <none> | 24h |  | <none> | <none> | <unknown> | <unknown> | <unknown>"},
		{
			"cordoned", "{" + named + `, spec: {unschedulable: true}, status: {conditions: [{type: Ready, status: "True"}]}}`,
			"x | Ready,SchedulingDisabled | <none> | 24h |  | <none> | <none> | <unknown> | <unknown> | <unknown>",
		},
		{
			"roles", `{metadata: {name: x, labels: {node-role.kubernetes.io/worker: "", node-role.kubernetes.io/control-plane: "", node-role.kubernetes.io/: "", kubernetes.io/role: edge, other: y}}}`,
			"x | Unknown | control-plane,edge,worker | <unknown> |  | <none> | <none> | <unknown> | <unknown> | <unknown>",
		},
	})
}

func TestEventTables(t *testing.T) {
	t.Parallel()
	const head = "LAST SEEN | TYPE | REASON | OBJECT | SUBOBJECT* | SOURCE* | MESSAGE | FIRST SEEN* | COUNT* | NAME*"
	lines(t, "events", head, []line[corev1.Event]{
		{
			"old style", `{metadata: {name: x}, type: Normal, reason: R, message: " m\n", involvedObject: {kind: Pod, name: p, fieldPath: "spec.containers{a}"}, source: {component: kubelet, host: n1},
				firstTimestamp: "1999-12-31T23:00:00Z", lastTimestamp: "1999-12-31T23:59:00Z", count: 5}`,
			"60s | Normal | R | pod/p | spec.containers{a} | kubelet, n1 | m | 60m | 5 | x",
		},
		{
			"once", `{metadata: {name: x}, type: Warning, reason: R, message: m, involvedObject: {kind: Node}, reportingComponent: c, reportingInstance: c-1, eventTime: "1999-12-31T23:59:55.000000Z"}`,
			"5s | Warning | R | node |  | c, c-1 | m | 5s | 1 | x",
		},
		{
			"series", `{metadata: {name: x}, involvedObject: {kind: Pod, name: p}, eventTime: "1999-12-31T23:59:00.000000Z", series: {count: 3, lastObservedTime: "1999-12-31T23:59:58.000000Z"}}`,
			"2s |  |  | pod/p |  |  |  | 60s | 3 | x",
		},
		{"timeless", `{metadata: {name: x}, involvedObject: {}}`, "<unknown> |  |  |  |  |  |  | <unknown> | 1 | x"},
	})
	lines(t, "events.events.k8s.io", head, []line[eventsv1.Event]{
		{
			"new style", `{metadata: {name: x}, type: Normal, reason: R, note: m, regarding: {kind: Pod, name: p}, reportingController: c, eventTime: "1999-12-31T23:59:00.000000Z", series: {count: 3, lastObservedTime: "1999-12-31T23:59:58.000000Z"}}`,
			"2s | Normal | R | pod/p |  | c | m | 60s | 3 | x",
		},
	})
}

func TestServicesAndEndpoints(t *testing.T) {
	t.Parallel()
	lines(t, "services", "NAME | TYPE | CLUSTER-IP | EXTERNAL-IP | PORT(S) | AGE | SELECTOR*", []line[corev1.Service]{
		{
			"cluster", "{" + named + ", spec: {type: ClusterIP, clusterIP: 10.96.0.1, selector: {b: c, a: b}, ports: [{port: 443, protocol: TCP}, {port: 53, protocol: UDP}]}}",
			"x | ClusterIP | 10.96.0.1 | <none> | 443/TCP,53/UDP | 24h | a=b,b=c",
		},
		{"headless", "{" + named + ", spec: {type: ClusterIP, clusterIPs: [None]}}", "x | ClusterIP | None | <none> | <none> | 24h | <none>"},
		{
			"node port", "{" + named + ", spec: {type: NodePort, clusterIP: 10.96.0.1, externalIPs: [192.0.2.1, 192.0.2.2], ports: [{port: 80, nodePort: 30080, protocol: TCP}]}}",
			"x | NodePort | 10.96.0.1 | 192.0.2.1,192.0.2.2 | 80:30080/TCP | 24h | <none>",
		},
		{"balancer waiting", "{" + named + ", spec: {type: LoadBalancer}}", "x | LoadBalancer | <none> | <pending> | <none> | 24h | <none>"},
		{
			"balancer", "{" + named + ", spec: {type: LoadBalancer, externalIPs: [192.0.2.9]}, status: {loadBalancer: {ingress: [{hostname: h.example}, {ip: 192.0.2.1}, {ip: 192.0.2.1}]}}}",
			"x | LoadBalancer | <none> | 192.0.2.1,h.example,192.0.2.9 | <none> | 24h | <none>",
		},
		{"name", "{" + named + ", spec: {type: ExternalName, externalName: e.example}}", "x | ExternalName | <none> | e.example | <none> | 24h | <none>"},
		{"unknown", "{" + named + ", spec: {type: X}}", "x | X | <none> | <unknown> | <none> | 24h | <none>"},
	})
	lines(t, "endpoints", "NAME | ENDPOINTS | AGE", []line[corev1.Endpoints]{
		{"none", "{" + named + "}", "x | <none> | 24h"},
		{"one", "{" + named + `, subsets: [{addresses: [{ip: 10.0.0.1}, {ip: "fd00::1"}], ports: [{port: 80}]}]}`, "x | 10.0.0.1:80,[fd00::1]:80 | 24h"},
		{"many", "{" + named + `, subsets: [{addresses: [{ip: 10.0.0.1}, {ip: 10.0.0.2}], ports: [{port: 80}, {port: 81}]}, {addresses: [{ip: 10.0.0.3}]}]}`, "x | 10.0.0.1:80,10.0.0.2:80,10.0.0.1:81 + 2 more... | 24h"},
		{"not ready", "{" + named + `, subsets: [{notReadyAddresses: [{ip: 10.0.0.1}], ports: [{port: 80}]}]}`, "x | <none> | 24h"},
	})
	lines(t, "endpointslices.discovery.k8s.io", "NAME | ADDRESSTYPE | PORTS | ENDPOINTS | AGE", []line[discoveryv1.EndpointSlice]{
		{"none", "{" + named + ", addressType: IPv4, endpoints: []}", "x | IPv4 | <unset> | <unset> | 24h"},
		{
			"some", "{" + named + `, addressType: IPv4, endpoints: [{addresses: [10.0.0.1, 10.0.0.2]}, {addresses: [10.0.0.3, 10.0.0.4]}], ports: [{port: 80}, {name: ""}, {name: h}, {}]}`,
			"x | IPv4 | 80,*,h + 1 more... | 10.0.0.1,10.0.0.2,10.0.0.3 + 1 more... | 24h",
		},
	})
}

func TestSimpleKinds(t *testing.T) {
	t.Parallel()
	lines(t, "namespaces", "NAME | STATUS | AGE", []line[corev1.Namespace]{{"active", "{" + named + ", status: {phase: Active}}", "x | Active | 24h"}})
	lines(t, "secrets", "NAME | TYPE | DATA | AGE", []line[corev1.Secret]{{"two", "{" + named + ", type: Opaque, data: {a: AA==, b: AA==}}", "x | Opaque | 2 | 24h"}})
	lines(t, "configmaps", "NAME | DATA | AGE", []line[corev1.ConfigMap]{{"two", "{" + named + ", data: {a: b}, binaryData: {c: AA==}}", "x | 2 | 24h"}})
	lines(t, "serviceaccounts", "NAME | AGE", []line[corev1.ServiceAccount]{{"none", "{" + named + ", secrets: [{name: s}]}", "x | 24h"}})
	lines(t, "leases.coordination.k8s.io", "NAME | HOLDER | AGE", []line[coordinationv1.Lease]{
		{"held", "{" + named + ", spec: {holderIdentity: n1}}", "x | n1 | 24h"}, {"free", "{" + named + "}", "x |  | 24h"},
	})
	lines(t, "runtimeclasses.node.k8s.io", "NAME | HANDLER | AGE", []line[nodev1.RuntimeClass]{{"one", "{" + named + ", handler: runc}", "x | runc | 24h"}})
	lines(t, "priorityclasses.scheduling.k8s.io", "NAME | VALUE | GLOBAL-DEFAULT | AGE | PREEMPTIONPOLICY", []line[schedulingv1.PriorityClass]{
		{"one", "{" + named + ", value: 1000, globalDefault: true}", "x | 1000 | true | 24h | PreemptLowerPriority"},
		{"never", "{" + named + ", value: 0, preemptionPolicy: Never}", "x | 0 | false | 24h | Never"},
	})
	lines(t, "flowschemas.flowcontrol.apiserver.k8s.io", "NAME | PRIORITYLEVEL | MATCHINGPRECEDENCE | DISTINGUISHERMETHOD | AGE | MISSINGPL", []line[flowcontrolv1.FlowSchema]{
		{"new", "{" + named + ", spec: {priorityLevelConfiguration: {name: l}, matchingPrecedence: 1000}}", "x | l | 1000 | <none> | 24h | ?"},
		{"old", "{" + named + ", spec: {priorityLevelConfiguration: {name: l}, matchingPrecedence: 9, distinguisherMethod: {type: ByUser}}, status: {conditions: [{type: Dangling, status: \"False\"}]}}", "x | l | 9 | ByUser | 24h | False"},
	})
	lines(t, "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", "NAME | TYPE | NOMINALCONCURRENCYSHARES | QUEUES | HANDSIZE | QUEUELENGTHLIMIT | AGE", []line[flowcontrolv1.PriorityLevelConfiguration]{
		{"queues", "{" + named + ", spec: {type: Limited, limited: {nominalConcurrencyShares: 40, limitResponse: {type: Queue, queuing: {queues: 64, handSize: 6, queueLengthLimit: 50}}}}}", "x | Limited | 40 | 64 | 6 | 50 | 24h"},
		{"rejects", "{" + named + ", spec: {type: Limited, limited: {nominalConcurrencyShares: 5, limitResponse: {type: Reject}}}}", "x | Limited | 5 | <none> | <none> | <none> | 24h"},
		{"exempt", "{" + named + ", spec: {type: Exempt, exempt: {nominalConcurrencyShares: 0}}}", "x | Exempt | <none> | <none> | <none> | <none> | 24h"},
	})
	lines(t, "resourcequotas", "NAME | REQUEST | LIMIT | AGE", []line[corev1.ResourceQuota]{
		{"some", "{" + named + `, status: {hard: {pods: "10", limits.cpu: "4", cpu: "2"}, used: {pods: "3", limits.cpu: "1"}}}`, "x | cpu: 0/2, pods: 3/10 | limits.cpu: 1/4 | 24h"},
	})
	lines(t, "podtemplates", "NAME | CONTAINERS | IMAGES | POD LABELS", []line[corev1.PodTemplate]{
		{"one", "{" + named + ", template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}, {name: d, image: j}]}}}", "x | c,d | i,j | a=b"},
	})
	lines(t, "poddisruptionbudgets.policy", "NAME | MIN AVAILABLE | MAX UNAVAILABLE | ALLOWED DISRUPTIONS | AGE", []line[policyv1.PodDisruptionBudget]{
		{"min", "{" + named + ", spec: {minAvailable: 50%}, status: {disruptionsAllowed: 1, currentHealthy: 0, desiredHealthy: 0, expectedPods: 0}}", "x | 50% | N/A | 1 | 24h"},
		{"max", "{" + named + ", spec: {maxUnavailable: 1}}", "x | N/A | 1 | 0 | 24h"},
	})
	lines(t, "certificatesigningrequests.certificates.k8s.io", "NAME | AGE | SIGNERNAME | REQUESTOR | REQUESTEDDURATION | CONDITION", []line[certificatesv1.CertificateSigningRequest]{
		{"pending", "{" + named + ", spec: {request: '', signerName: a.b/c, username: u}}", "x | 24h | a.b/c | u | <none> | Pending"},
		{"issued", "{" + named + ", spec: {request: '', signerName: a.b/c, username: u, expirationSeconds: 86400}, status: {certificate: AA==, conditions: [{type: Approved, status: 'True'}]}}", "x | 24h | a.b/c | u | 24h | Approved,Issued"},
		{"denied", "{" + named + ", spec: {request: '', signerName: '', username: u}, status: {conditions: [{type: Denied, status: 'True'}]}}", "x | 24h | <none> | u | <none> | Denied"},
		{"failed", "{" + named + ", spec: {request: '', signerName: a.b/c, username: u}, status: {conditions: [{type: Approved, status: 'True'}, {type: Failed, status: 'True'}]}}", "x | 24h | a.b/c | u | <none> | Approved,Failed"},
	})
}

func TestWorkloads(t *testing.T) {
	t.Parallel()
	const template = "template: {spec: {containers: [{name: c, image: i}]}}, selector: {matchLabels: {a: b}}"
	lines(t, "deployments.apps", "NAME | READY | UP-TO-DATE | AVAILABLE | AGE | CONTAINERS* | IMAGES* | SELECTOR*", []line[appsv1.Deployment]{
		{"one", "{" + named + ", spec: {replicas: 3, " + template + "}, status: {readyReplicas: 1, updatedReplicas: 2, availableReplicas: 1}}", "x | 1/3 | 2 | 1 | 24h | c | i | a=b"},
	})
	lines(t, "replicasets.apps", "NAME | DESIRED | CURRENT | READY | AGE | CONTAINERS* | IMAGES* | SELECTOR*", []line[appsv1.ReplicaSet]{
		{"one", "{" + named + ", spec: {replicas: 3, " + template + "}, status: {replicas: 2, readyReplicas: 1}}", "x | 3 | 2 | 1 | 24h | c | i | a=b"},
	})
	lines(t, "replicationcontrollers", "NAME | DESIRED | CURRENT | READY | AGE | CONTAINERS* | IMAGES* | SELECTOR*", []line[corev1.ReplicationController]{
		{"one", "{" + named + ", spec: {replicas: 3, selector: {a: b}, template: {spec: {containers: [{name: c, image: i}]}}}, status: {replicas: 2}}", "x | 3 | 2 | 0 | 24h | c | i | a=b"},
		{"without template", "{" + named + "}", "x | 0 | 0 | 0 | 24h |  |  | <none>"},
	})
	lines(t, "daemonsets.apps", "NAME | DESIRED | CURRENT | READY | UP-TO-DATE | AVAILABLE | NODE SELECTOR | AGE | CONTAINERS* | IMAGES* | SELECTOR*", []line[appsv1.DaemonSet]{
		{
			"one", "{" + named + ", spec: {selector: {matchLabels: {a: b}}, template: {spec: {nodeSelector: {os: linux}, containers: [{name: c, image: i}]}}}, status: {desiredNumberScheduled: 5, currentNumberScheduled: 4, numberReady: 3, updatedNumberScheduled: 2, numberAvailable: 1, numberMisscheduled: 0}}",
			"x | 5 | 4 | 3 | 2 | 1 | os=linux | 24h | c | i | a=b",
		},
	})
	lines(t, "statefulsets.apps", "NAME | READY | AGE | CONTAINERS* | IMAGES*", []line[appsv1.StatefulSet]{
		{"one", "{" + named + ", spec: {replicas: 3, serviceName: s, " + template + "}, status: {readyReplicas: 1, replicas: 2}}", "x | 1/3 | 24h | c | i"},
	})
	lines(t, "controllerrevisions.apps", "NAME | CONTROLLER | REVISION | AGE", []line[appsv1.ControllerRevision]{
		{"owned", `{metadata: {name: x, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: u, controller: true}]}, revision: 3}`, "x | daemonset.apps/d | 3 | <unknown>"},
		{"free", "{" + named + ", revision: 1}", "x | <none> | 1 | 24h"},
	})
	const jobs = "NAME | STATUS | COMPLETIONS | DURATION | AGE | CONTAINERS* | IMAGES* | SELECTOR*"
	job := func(spec, status string) string {
		return "{" + named + ", spec: {" + spec + ", " + template + "}, status: {" + status + "}}"
	}
	lines(t, "jobs.batch", jobs, []line[batchv1.Job]{
		{"running", job("completions: 5", `succeeded: 2, startTime: "1999-12-31T23:58:00Z"`), "x | Running | 2/5 | 2m | 24h | c | i | a=b"},
		{"complete", job("completions: 1", `succeeded: 1, startTime: "1999-12-31T23:58:00Z", completionTime: "1999-12-31T23:58:30Z", conditions: [{type: Complete, status: "True"}]`), "x | Complete | 1/1 | 30s | 24h | c | i | a=b"},
		{"failed", job("completions: 1", `conditions: [{type: Failed, status: "True"}]`), "x | Failed | 0/1 |  | 24h | c | i | a=b"},
		{"not failed", job("completions: 1", `conditions: [{type: Failed, status: "False"}]`), "x | Running | 0/1 |  | 24h | c | i | a=b"},
		{"suspended", job("completions: 1", `conditions: [{type: Suspended, status: "True"}]`), "x | Suspended | 0/1 |  | 24h | c | i | a=b"},
		{"failing", job("completions: 1", `conditions: [{type: FailureTarget, status: "True"}]`), "x | FailureTarget | 0/1 |  | 24h | c | i | a=b"},
		{"succeeding", job("completions: 1", `conditions: [{type: SuccessCriteriaMet, status: "True"}]`), "x | SuccessCriteriaMet | 0/1 |  | 24h | c | i | a=b"},
		{"queue", job("parallelism: 3", "succeeded: 1"), "x | Running | 1/1 of 3 |  | 24h | c | i | a=b"},
		{"queue of one", job("parallelism: 1", "succeeded: 1"), "x | Running | 1/1 |  | 24h | c | i | a=b"},
		{"terminating", `{metadata: {name: x, deletionTimestamp: "1999-12-31T00:00:00Z"}, spec: {completions: 1, ` + template + `}}`, "x | Terminating | 0/1 |  | <unknown> | c | i | a=b"},
	})
	lines(t, "cronjobs.batch", "NAME | SCHEDULE | TIMEZONE | SUSPEND | ACTIVE | LAST SCHEDULE | AGE | CONTAINERS* | IMAGES* | SELECTOR*", []line[batchv1.CronJob]{
		{
			"one", "{" + named + `, spec: {schedule: "* * * * *", timeZone: Europe/Berlin, suspend: false, jobTemplate: {spec: {template: {spec: {containers: [{name: c, image: i}]}}}}}, status: {active: [{name: j}], lastScheduleTime: "1999-12-31T23:59:00Z"}}`,
			"x | * * * * * | Europe/Berlin | False | 1 | 60s | 24h | c | i | <none>",
		},
		{"never", "{" + named + `, spec: {schedule: "@daily", jobTemplate: {}}}`, "x | @daily | <none> | <unset> | 0 | <none> | 24h |  |  | <none>"},
	})
}

func TestScale(t *testing.T) {
	t.Parallel()
	lines(t, "scales.autoscaling", "NAME | DESIRED | AVAILABLE | AGE", []line[autoscalingv1.Scale]{
		{"of two", "{" + named + ", spec: {replicas: 3}, status: {replicas: 2}}", "x | 3 | 2 | 24h"},
	})
}

func TestStorageTables(t *testing.T) {
	t.Parallel()
	lines(t, "persistentvolumes", "NAME | CAPACITY | ACCESS MODES | RECLAIM POLICY | STATUS | CLAIM | STORAGECLASS | VOLUMEATTRIBUTESCLASS | REASON | AGE | VOLUMEMODE*", []line[corev1.PersistentVolume]{
		{
			"bound", "{" + named + ", spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteMany, ReadWriteOnce, ReadWriteOnce], persistentVolumeReclaimPolicy: Retain, claimRef: {namespace: d, name: c}, storageClassName: s, volumeMode: Block}, status: {phase: Bound}}",
			"x | 1Gi | RWO,RWX | Retain | Bound | d/c | s | <unset> |  | 24h | Block",
		},
		{
			"leaving", `{metadata: {name: x, deletionTimestamp: "1999-12-31T00:00:00Z", annotations: {volume.beta.kubernetes.io/storage-class: beta}}, spec: {volumeAttributesClassName: v, accessModes: [ReadOnlyMany, ReadWriteOncePod]}, status: {phase: Released, reason: r}}`,
			"x | 0 | ROX,RWOP |  | Terminating |  | beta | v | r | <unknown> | <unset>",
		},
	})
	lines(t, "persistentvolumeclaims", "NAME | STATUS | VOLUME | CAPACITY | ACCESS MODES | STORAGECLASS | VOLUMEATTRIBUTESCLASS | AGE | VOLUMEMODE*", []line[corev1.PersistentVolumeClaim]{
		{"pending", "{" + named + ", spec: {storageClassName: s, resources: {requests: {storage: 1Gi}}}, status: {phase: Pending}}", "x | Pending |  |  |  | s | <unset> | 24h | <unset>"},
		{"bound", "{" + named + ", spec: {volumeName: v, volumeMode: Filesystem}, status: {phase: Bound, capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce]}}", "x | Bound | v | 1Gi | RWO |  | <unset> | 24h | Filesystem"},
		{"leaving", `{metadata: {name: x, deletionTimestamp: "1999-12-31T00:00:00Z"}, status: {phase: Bound}}`, "x | Terminating |  |  |  |  | <unset> | <unknown> | <unset>"},
	})
	lines(t, "storageclasses.storage.k8s.io", "NAME | PROVISIONER | RECLAIMPOLICY | VOLUMEBINDINGMODE | ALLOWVOLUMEEXPANSION | AGE", []line[storagev1.StorageClass]{
		{"plain", "{" + named + ", provisioner: p}", "x | p | Delete | Immediate | false | 24h"},
		{
			"default", `{metadata: {name: x, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}, provisioner: p, reclaimPolicy: Retain, volumeBindingMode: WaitForFirstConsumer, allowVolumeExpansion: true}`,
			"x (default) | p | Retain | WaitForFirstConsumer | true | <unknown>",
		},
	})
	lines(t, "csinodes.storage.k8s.io", "NAME | DRIVERS | AGE", []line[storagev1.CSINode]{{"one", "{" + named + ", spec: {drivers: [{name: d, nodeID: n, topologyKeys: []}]}}", "x | 1 | 24h"}})
	lines(t, "csidrivers.storage.k8s.io", "NAME | ATTACHREQUIRED | PODINFOONMOUNT | STORAGECAPACITY | TOKENREQUESTS | REQUIRESREPUBLISH | MODES | AGE", []line[storagev1.CSIDriver]{
		{"bare", "{" + named + "}", "x | true | false | false | <unset> | false | <none> | 24h"},
		{"all", "{" + named + ", spec: {attachRequired: false, podInfoOnMount: true, tokenRequests: [{audience: a}, {audience: b}], volumeLifecycleModes: [Persistent, Ephemeral]}}", "x | false | true | false | a,b | false | Persistent,Ephemeral | 24h"},
	})
	lines(t, "volumeattachments.storage.k8s.io", "NAME | ATTACHER | PV | NODE | ATTACHED | AGE", []line[storagev1.VolumeAttachment]{
		{"one", "{" + named + ", spec: {attacher: d, nodeName: n1, source: {persistentVolumeName: v}}, status: {attached: true}}", "x | d | v | n1 | true | 24h"},
	})
}

func TestNetworkAndRoles(t *testing.T) {
	t.Parallel()
	lines(t, "networkpolicies.networking.k8s.io", "NAME | POD-SELECTOR | AGE", []line[networkingv1.NetworkPolicy]{
		{"all", "{" + named + ", spec: {podSelector: {}}}", "x | <none> | 24h"}, {"some", "{" + named + ", spec: {podSelector: {matchLabels: {a: b}}}}", "x | a=b | 24h"},
	})
	lines(t, "ingresses.networking.k8s.io", "NAME | CLASS | HOSTS | ADDRESS | PORTS | AGE", []line[networkingv1.Ingress]{
		{"bare", "{" + named + "}", "x | <none> | * |  | 80 | 24h"},
		{
			"full", "{" + named + ", spec: {ingressClassName: c, tls: [{}], rules: [{host: a}, {host: b}, {host: c}, {host: d}, {}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.2}, {hostname: h}, {ip: 192.0.2.1}]}}}",
			"x | c | a,b,c + 1 more... | 192.0.2.1,192.0.2.2,h | 80, 443 | 24h",
		},
	})
	lines(t, "ingressclasses.networking.k8s.io", "NAME | CONTROLLER | PARAMETERS | AGE", []line[networkingv1.IngressClass]{
		{"bare", "{" + named + ", spec: {controller: a.b/c}}", "x | a.b/c | <none> | 24h"},
		{"full", "{" + named + ", spec: {controller: a.b/c, parameters: {apiGroup: g.example, kind: K, name: n1}}}", "x | a.b/c | K.g.example/n1 | 24h"},
	})
	lines(t, "validatingwebhookconfigurations.admissionregistration.k8s.io", "NAME | WEBHOOKS | AGE", []line[admissionv1.ValidatingWebhookConfiguration]{
		{"two", "{" + named + ", webhooks: [{name: a}, {name: b}]}", "x | 2 | 24h"},
	})
	lines(t, "mutatingwebhookconfigurations.admissionregistration.k8s.io", "NAME | WEBHOOKS | AGE", []line[admissionv1.MutatingWebhookConfiguration]{
		{"none", "{" + named + "}", "x | 0 | 24h"},
	})
	lines(t, "validatingadmissionpolicies.admissionregistration.k8s.io", "NAME | VALIDATIONS | PARAMKIND | AGE", []line[admissionv1.ValidatingAdmissionPolicy]{
		{"bare", "{" + named + "}", "x | 0 | <unset> | 24h"},
		{"full", "{" + named + ", spec: {paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: a}]}}", "x | 1 | v1/ConfigMap | 24h"},
	})
	lines(t, "validatingadmissionpolicybindings.admissionregistration.k8s.io", "NAME | POLICYNAME | PARAMREF | AGE", []line[admissionv1.ValidatingAdmissionPolicyBinding]{
		{"bare", "{" + named + ", spec: {policyName: p}}", "x | p | <unset> | 24h"},
		{"one", "{" + named + ", spec: {policyName: p, paramRef: {name: a, namespace: b}}}", "x | p | b/a | 24h"},
		{"any", "{" + named + ", spec: {policyName: p, paramRef: {selector: {}}}}", "x | p | * | 24h"},
	})
	lines(t, "ipaddresses.networking.k8s.io", "NAME | PARENTREF | AGE", []line[networkingv1.IPAddress]{
		{"of a service", "{" + named + `, spec: {parentRef: {resource: services, namespace: default, name: web}}}`, "x | services/default/web | 24h"},
		{"of nothing", "{" + named + `}`, "x | <none> | 24h"},
	})
	lines(t, "servicecidrs.networking.k8s.io", "NAME | CIDRS | AGE", []line[networkingv1.ServiceCIDR]{{"one", "{" + named + `, spec: {cidrs: [10.96.0.0/12, "fd00::/108"]}}`, "x | 10.96.0.0/12,fd00::/108 | 24h"}})
	const head = "NAME | ROLE | AGE | USERS* | GROUPS* | SERVICEACCOUNTS*"
	const subjects = "subjects: [{kind: User, name: u}, {kind: User, name: v}, {kind: Group, name: g}, {kind: ServiceAccount, namespace: n1, name: s}]"
	lines(t, "rolebindings.rbac.authorization.k8s.io", head, []line[rbacv1.RoleBinding]{
		{"one", "{" + named + ", roleRef: {apiGroup: g, kind: Role, name: r}, " + subjects + "}", "x | Role/r | 24h | u, v | g | n1/s"},
	})
	lines(t, "clusterrolebindings.rbac.authorization.k8s.io", head, []line[rbacv1.ClusterRoleBinding]{
		{"one", "{" + named + ", roleRef: {apiGroup: g, kind: ClusterRole, name: r}, " + subjects + "}", "x | ClusterRole/r | 24h | u, v | g | n1/s"},
		{"nobody", "{" + named + ", roleRef: {apiGroup: g, kind: ClusterRole, name: r}}", "x | ClusterRole/r | 24h |  |  | "},
	})
}
