package kinds

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	appSpec   = `{metadata: {name: w}, spec: {selector: {matchLabels: {app: w}}, template: {metadata: {labels: {app: w}}, spec: {containers: [{name: c, image: i}]}}}}`
	unmatched = "spec.template.metadata.labels: Invalid value: {\"app\":\"x\"}: `selector` does not match template `labels`"
)

func TestDeployments(t *testing.T) {
	t.Parallel()
	type dep = *appsv1.Deployment
	fresh := func() dep { return defaulted[appsv1.Deployment](t, appSpec) }
	mutate(t, fresh, validateDeployment, []mutation[dep]{
		{"replicas", func(o dep) { o.Spec.Replicas = ptr[int32](-1) }, bad("spec.replicas: Invalid value: -1: must be greater than or equal to 0")},
		{"no selector", func(o dep) { o.Spec.Selector = nil }, bad("spec.selector: Required value")},
		{"empty selector", func(o dep) { o.Spec.Selector = &metav1.LabelSelector{} }, bad("spec.selector: Invalid value: {}: empty selector is invalid for Deployment")},
		{"bad selector", func(o dep) {
			o.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "x"}}}
		}, bad(`spec.selector.matchExpressions[0].operator: Invalid value: "x": not a valid selector operator`)},
		{"labels", func(o dep) { o.Spec.Template.Labels["app"] = "x" }, bad(unmatched)},
		{"template", func(o dep) { o.Spec.Template.Spec.Containers[0].Image = "" }, bad("spec.template.spec.containers[0].image: Required value")},
		{"restart policy", func(o dep) { o.Spec.Template.Spec.RestartPolicy = "Never" }, bad(`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`)},
		{"deadline", func(o dep) { o.Spec.Template.Spec.ActiveDeadlineSeconds = ptr[int64](1) }, bad("spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in Deployment is not Supported")},
		{"strategy", func(o dep) { o.Spec.Strategy.Type = "x" }, bad(`spec.strategy.type: Unsupported value: "x": supported values: "Recreate", "RollingUpdate"`)},
		{"recreate with numbers", func(o dep) { o.Spec.Strategy.Type = "Recreate" }, bad("spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'")},
		{"recreate", func(o dep) { o.Spec.Strategy = appsv1.DeploymentStrategy{Type: "Recreate"} }, nil},
		{"rolling without numbers", func(o dep) { o.Spec.Strategy.RollingUpdate = nil }, bad("spec.strategy.rollingUpdate: Required value")},
		{
			"nothing may move", func(o dep) {
				o.Spec.Strategy.RollingUpdate.MaxUnavailable, o.Spec.Strategy.RollingUpdate.MaxSurge = num(0), str("0%")
			},
			bad("spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"),
		},
		{"percent", func(o dep) { o.Spec.Strategy.RollingUpdate.MaxSurge = str("x") }, bad(`spec.strategy.rollingUpdate.maxSurge: Invalid value: "x": a valid percent string`)},
		{"over 100", func(o dep) { o.Spec.Strategy.RollingUpdate.MaxUnavailable = str("101%") }, bad("spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%")},
		{"surge over 100", func(o dep) { o.Spec.Strategy.RollingUpdate.MaxSurge = str("200%") }, nil},
		{"negative surge", func(o dep) { o.Spec.Strategy.RollingUpdate.MaxSurge = num(-1) }, bad("spec.strategy.rollingUpdate.maxSurge: Invalid value: -1")},
		{"min ready", func(o dep) { o.Spec.MinReadySeconds = -1 }, bad("spec.minReadySeconds: Invalid value: -1")},
		{"history", func(o dep) { o.Spec.RevisionHistoryLimit = ptr[int32](-1) }, bad("spec.revisionHistoryLimit: Invalid value: -1")},
		{"progress", func(o dep) { o.Spec.MinReadySeconds = 600 }, bad("spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds")},
	})
	mutateUpdate(t, fresh, validateDeploymentUpdate, []mutation[dep]{
		{"scale", func(o dep) { o.Spec.Replicas = ptr[int32](0) }, nil},
		{
			"selector", func(o dep) { o.Spec.Selector.MatchLabels["app"], o.Spec.Template.Labels["app"] = "x", "x" },
			bad(`spec.selector: Invalid value: {"matchLabels":{"app":"x"}}: field is immutable`),
		},
	})
	ran := func() dep {
		o := fresh()
		o.Status = appsv1.DeploymentStatus{Replicas: 2, ReadyReplicas: 1, AvailableReplicas: 1, UpdatedReplicas: 2, CollisionCount: ptr[int32](1)}
		return o
	}
	mutateUpdate(t, ran, validateDeploymentStatusUpdate, []mutation[dep]{
		{"collisions", func(o dep) { o.Status.CollisionCount = ptr[int32](0) }, bad("status.collisionCount: Invalid value: 0: cannot be decremented")},
		{"terminating", func(o dep) { o.Status.TerminatingReplicas = ptr[int32](-1) }, bad("status.terminatingReplicas: Invalid value: -1")},
		{"collisions gone", func(o dep) { o.Status.CollisionCount = nil }, bad("status.collisionCount: Invalid value: 0")},
		{
			"more than there are", func(o dep) { o.Status.ReadyReplicas, o.Status.AvailableReplicas, o.Status.UpdatedReplicas = 3, 4, 3 },
			bad("status.availableReplicas: Invalid value: 4: cannot be greater than readyReplicas", "status.availableReplicas: Invalid value: 4: cannot be greater than status.replicas",
				"status.readyReplicas: Invalid value: 3: cannot be greater than status.replicas", "status.updatedReplicas: Invalid value: 3: cannot be greater than status.replicas"),
		},
		{"negative", func(o dep) { o.Status.UnavailableReplicas, o.Status.ObservedGeneration = -1, -1 }, bad("status.observedGeneration: Invalid value", "status.unavailableReplicas: Invalid value")},
	})
}

func TestReplicaSetsAndControllers(t *testing.T) {
	t.Parallel()
	type rs = *appsv1.ReplicaSet
	fresh := func() rs { return defaulted[appsv1.ReplicaSet](t, appSpec) }
	mutate(t, fresh, validateReplicaSet, []mutation[rs]{
		{"replicas", func(o rs) { o.Spec.Replicas = ptr[int32](-1) }, bad("spec.replicas: Invalid value")},
		{"labels", func(o rs) { o.Spec.Template.Labels["app"] = "x" }, bad(unmatched)},
		{"min ready", func(o rs) { o.Spec.MinReadySeconds = -1 }, bad("spec.minReadySeconds: Invalid value")},
	})
	mutateUpdate(t, fresh, validateReplicaSetUpdate, []mutation[rs]{
		{"selector", func(o rs) { o.Spec.Selector.MatchLabels["app"], o.Spec.Template.Labels["app"] = "x", "x" }, bad("spec.selector: Invalid value")},
	})
	mutateUpdate(t, fresh, validateReplicaSetStatusUpdate, []mutation[rs]{
		{"terminating", func(o rs) { o.Status.TerminatingReplicas = ptr[int32](-1) }, bad("status.terminatingReplicas: Invalid value: -1")},
		{"labeled", func(o rs) { o.Status.FullyLabeledReplicas = 1 }, bad("status.fullyLabeledReplicas: Invalid value: 1: cannot be greater than status.replicas")},
	})
	type rc = *corev1.ReplicationController
	old := func() rc {
		return defaulted[corev1.ReplicationController](t, `{metadata: {name: w}, spec: {template: {metadata: {labels: {app: w}}, spec: {containers: [{name: c, image: i}]}}}}`)
	}
	mutate(t, old, validateReplicationController, []mutation[rc]{
		{"no template", func(o rc) { o.Spec.Template = nil }, bad("spec.template: Required value")},
		{"no selector", func(o rc) { o.Spec.Selector = nil }, bad("spec.selector: Required value")},
		{"labels", func(o rc) { o.Spec.Selector["app"] = "y"; o.Spec.Template.Labels = map[string]string{"app": "x"} }, bad(unmatched)},
	})
	mutateUpdate(t, old, validateReplicationControllerStatusUpdate, []mutation[rc]{
		{"ready", func(o rc) { o.Status.ReadyReplicas = 1 }, bad("status.readyReplicas: Invalid value")},
	})
}

func TestDaemonSets(t *testing.T) {
	t.Parallel()
	type ds = *appsv1.DaemonSet
	fresh := func() ds { return defaulted[appsv1.DaemonSet](t, appSpec) }
	at := "spec.updateStrategy"
	mutate(t, fresh, validateDaemonSet, []mutation[ds]{
		{"labels", func(o ds) { o.Spec.Template.Labels["app"] = "x" }, bad(unmatched)},
		{"strategy", func(o ds) { o.Spec.UpdateStrategy.Type = "x" }, bad(at + ".type: Unsupported value")},
		{"on delete", func(o ds) { o.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: "OnDelete"} }, nil},
		{"rolling without numbers", func(o ds) { o.Spec.UpdateStrategy.RollingUpdate = nil }, bad(at + ".rollingUpdate: Required value")},
		{"both ways", func(o ds) { o.Spec.UpdateStrategy.RollingUpdate.MaxSurge = num(1) }, bad(at + ".rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero")},
		{"no way", func(o ds) { o.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = num(0) }, bad(at + ".rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0")},
		{"surge", func(o ds) {
			o.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable, o.Spec.UpdateStrategy.RollingUpdate.MaxSurge = nil, str("10%")
		}, nil},
		{"history", func(o ds) { o.Spec.RevisionHistoryLimit = ptr[int32](-1) }, bad("spec.revisionHistoryLimit: Invalid value")},
	})
	mutateUpdate(t, fresh, validateDaemonSetUpdate, []mutation[ds]{
		{"selector", func(o ds) { o.Spec.Selector.MatchLabels["app"], o.Spec.Template.Labels["app"] = "x", "x" }, bad("spec.selector: Invalid value")},
	})
	mutateUpdate(t, fresh, validateDaemonSetStatusUpdate, []mutation[ds]{
		{"negative", func(o ds) { o.Status.NumberReady, o.Status.NumberAvailable = -1, -1 }, bad("status.numberAvailable: Invalid value", "status.numberReady: Invalid value")},
	})
}

func TestStatefulSets(t *testing.T) {
	t.Parallel()
	type sts = *appsv1.StatefulSet
	fresh := func() sts {
		o := defaulted[appsv1.StatefulSet](t, appSpec)
		o.Spec.ServiceName = "w"
		o.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: list("storage", "1Gi")},
		}}}
		o.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		return o
	}
	at := "spec.updateStrategy"
	mutate(t, fresh, validateStatefulSet, []mutation[sts]{
		{"policy", func(o sts) { o.Spec.PodManagementPolicy = "x" }, bad("spec.podManagementPolicy: Unsupported value")},
		{"strategy", func(o sts) { o.Spec.UpdateStrategy.Type = "" }, bad(at + ".type: Required value")},
		{"strategy of a gate that is off", func(o sts) { o.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: "Recreate"} }, bad(at + `.type: Unsupported value: "Recreate": supported values: "RollingUpdate", "OnDelete"`)},
		{"on delete with numbers", func(o sts) { o.Spec.UpdateStrategy.Type = "OnDelete" }, bad(at + ".rollingUpdate: Invalid value")},
		{"partition", func(o sts) { o.Spec.UpdateStrategy.RollingUpdate.Partition = ptr[int32](-1) }, bad(at + ".rollingUpdate.partition: Invalid value")},
		{"max unavailable", func(o sts) { o.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = num(0) }, bad(at + ".rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0")},
		{"retention", func(o sts) { o.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled = "x" }, bad("spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value")},
		{"ordinals", func(o sts) { o.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: -1} }, bad("spec.ordinals.start: Invalid value")},
		{"labels", func(o sts) { o.Spec.Template.Labels["app"] = "x" }, bad(unmatched)},
		{"template label", func(o sts) { o.Spec.Template.Labels["b"] = "c d" }, bad("spec.template.labels: Invalid value")},
		{"restart policy", func(o sts) { o.Spec.Template.Spec.RestartPolicy = "Never" }, bad("spec.template.spec.restartPolicy: Unsupported value")},
		{"claim name", func(o sts) {
			o.Spec.VolumeClaimTemplates[0].Name, o.Spec.Template.Spec.Containers[0].VolumeMounts = "A", nil
		}, bad("spec.template.spec.volumes[0].name: Invalid value")},
		{"claim", func(o sts) { o.Spec.VolumeClaimTemplates[0].Spec.AccessModes = nil }, bad("spec.volumeClaimTemplates[0].spec.accessModes: Required value")},
		{"service name", func(o sts) { o.Spec.ServiceName = "a.b" }, bad("spec.serviceName: Invalid value")},
		{"no containers", func(o sts) { o.Spec.Template.Spec.Containers = nil }, bad("spec.template.spec.containers: Required value")},
		{"names of pods", func(o sts) { o.Spec.Template.Spec.Hostname, o.Spec.Template.Spec.Subdomain = "A", "B" }, nil},
		{"a volume of a claim's name", func(o sts) {
			o.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}, {Name: "other", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}, nil},
		{"no volume", func(o sts) { o.Spec.Template.Spec.Containers[0].VolumeMounts[0].Name = "x" }, bad("spec.template.spec.containers[0].volumeMounts[0].name: Not found")},
	})
	const frozen = "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
	mutateUpdate(t, fresh, validateStatefulSetUpdate, []mutation[sts]{
		{"what may change", func(o sts) {
			o.Spec.Replicas, o.Spec.MinReadySeconds, o.Spec.RevisionHistoryLimit = ptr[int32](3), 5, ptr[int32](1)
			o.Spec.Template.Spec.Containers[0].Image = "j"
			o.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 1}
			o.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: "OnDelete"}
			o.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted = "Delete"
		}, nil},
		{"strategy of a gate that is off", func(o sts) { o.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: "Recreate"} }, bad(at + `.type: Unsupported value: "Recreate"`)},
		{"service", func(o sts) { o.Spec.ServiceName = "x" }, bad(frozen)},
		{"claims", func(o sts) { o.Spec.VolumeClaimTemplates = nil }, bad(frozen, `spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data"`)},
		{"selector", func(o sts) { o.Spec.Selector.MatchLabels["app"], o.Spec.Template.Labels["app"] = "x", "x" }, bad(frozen)},
	})
	older := func() sts {
		o := fresh()
		o.Spec.Template.Spec.Containers, o.Spec.ServiceName, o.Spec.VolumeClaimTemplates[0].Spec.AccessModes = nil, "a.b", nil
		return o
	}
	mutateUpdate(t, older, validateStatefulSetUpdate, []mutation[sts]{
		{"stored before its template was looked at", func(o sts) { o.Spec.Replicas, o.Spec.Template.Spec.NodeName = ptr[int32](3), "A" }, nil},
	})
	recreated := func() sts {
		o := fresh()
		o.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: "Recreate"}
		return o
	}
	mutateUpdate(t, recreated, validateStatefulSetUpdate, []mutation[sts]{
		{"stored with a strategy of a gate that is off", func(o sts) { o.Spec.Replicas = ptr[int32](3) }, nil},
		{"the same, and no containers any more", func(o sts) { o.Spec.Template.Spec.Containers = nil }, bad("spec.template.spec.containers: Required value")},
		{"the same, to another strategy", func(o sts) { o.Spec.UpdateStrategy.Type = "OnDelete" }, nil},
	})
	mutateUpdate(t, fresh, validateStatefulSetUpdate, []mutation[sts]{
		{"no containers any more", func(o sts) { o.Spec.Template.Spec.Containers = nil }, bad("spec.template.spec.containers: Required value")},
	})
	mutateUpdate(t, fresh, validateStatefulSetStatusUpdate, []mutation[sts]{
		{"counts", func(o sts) { o.Status.CurrentReplicas, o.Status.UpdatedReplicas = 1, 1 }, bad("status.currentReplicas: Invalid value", "status.updatedReplicas: Invalid value")},
	})
	type rev = *appsv1.ControllerRevision
	revision := func() rev {
		return &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte("{}")}, Revision: 1}
	}
	mutate(t, revision, newControllerRevision, []mutation[rev]{
		{"no data", func(o rev) { o.Data.Raw = nil }, bad("data: Required value: data is mandatory")},
		{"null", func(o rev) { o.Data.Raw = []byte("null") }, bad("data: Required value: data is mandatory")},
		{"a list", func(o rev) { o.Data.Raw = []byte("[1]") }, bad("data: Required value: data must be a valid JSON object")},
		{"rubbish", func(o rev) { o.Data.Raw = []byte("{") }, bad(`data: Invalid value: "<value omitted>": error parsing data: unexpected end of JSON input`)},
		{"revision", func(o rev) { o.Revision = -1 }, bad("revision: Invalid value: -1")},
	})
	mutateUpdate(t, revision, validateControllerRevisionUpdate, []mutation[rev]{
		{"number", func(o rev) { o.Revision = 2 }, nil},
		{"data", func(o rev) { o.Data.Raw = []byte("{ }") }, bad("data: Invalid value")},
	})
}

func TestJobs(t *testing.T) {
	t.Parallel()
	type job = *batchv1.Job
	fresh := func() job {
		o := defaulted[batchv1.Job](t, `{metadata: {name: j, uid: u-1}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`)
		selectJob(o)
		return o
	}
	indexed := func(o job) { o.Spec.CompletionMode = ptr(batchv1.IndexedCompletion) }
	rule := func(r batchv1.PodFailurePolicyRule) func(job) {
		return func(o job) {
			o.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{r}}
			o.Spec.PodReplacementPolicy = ptr(batchv1.Failed)
		}
	}
	codes := func(op batchv1.PodFailurePolicyOnExitCodesOperator, v ...int32) *batchv1.PodFailurePolicyOnExitCodesRequirement {
		return &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, Values: v}
	}
	const pfp = "spec.podFailurePolicy.rules[0]"
	mutate(t, fresh, validateJob, []mutation[job]{
		{"parallelism", func(o job) { o.Spec.Parallelism = ptr[int32](-1) }, bad("spec.parallelism: Invalid value: -1: must be greater than or equal to 0")},
		{"numbers", func(o job) {
			o.Spec.Completions, o.Spec.ActiveDeadlineSeconds, o.Spec.BackoffLimit, o.Spec.TTLSecondsAfterFinished = ptr[int32](-1), ptr[int64](-1), ptr[int32](-1), ptr[int32](-1)
		}, bad("spec.activeDeadlineSeconds: Invalid value", "spec.backoffLimit: Invalid value", "spec.completions: Invalid value", "spec.ttlSecondsAfterFinished: Invalid value")},
		{"restart always", func(o job) { o.Spec.Template.Spec.RestartPolicy = "Always" }, bad(`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`)},
		{"no selector", func(o job) { o.Spec.Selector = nil }, bad("spec.selector: Required value")},
		{
			"labels", func(o job) { o.Spec.Template.Labels[batchv1.ControllerUidLabel] = "x" },
			bad("spec.template.metadata.labels: Invalid value", "spec.template.metadata.labels[batch.kubernetes.io/controller-uid]: Invalid value"),
		},
		{
			"no labels", func(o job) { o.Spec.Template.Labels = nil },
			bad("spec.template.metadata.labels: Invalid value", "spec.template.metadata.labels[batch.kubernetes.io/controller-uid]: Required value: must be 'u-1'",
				"spec.template.metadata.labels[batch.kubernetes.io/job-name]: Required value: must be 'j'", "spec.template.metadata.labels[controller-uid]: Required value: must be 'u-1'",
				"spec.template.metadata.labels[job-name]: Required value: must be 'j'"),
		},
		{"labels of another job", func(o job) { o.Spec.Template.Labels["job-name"] = "k" }, bad("spec.template.metadata.labels[job-name]: Invalid value: {" +
			`"batch.kubernetes.io/controller-uid":"u-1","batch.kubernetes.io/job-name":"j","controller-uid":"u-1","job-name":"k"}: must be 'j'`)},
		{
			"selector of its own making", func(o job) { o.Spec.Selector, o.Spec.Template.Labels["a"] = selector("a=b"), "b" },
			bad(`spec.selector: Invalid value: {"matchLabels":{"a":"b"}}: ` + "`selector` not auto-generated"),
		},
		{"manual selector", func(o job) {
			o.Spec.ManualSelector, o.Spec.Selector, o.Spec.Template.Labels = ptr(true), selector("a=b"), map[string]string{"a": "b"}
		}, nil},
		{"mode", func(o job) { o.Spec.CompletionMode = ptr(batchv1.CompletionMode("x")) }, bad("spec.completionMode: Unsupported value")},
		{"indexed", indexed, nil},
		{"indexed queue", func(o job) { indexed(o); o.Spec.Completions = nil }, bad("spec.completions: Required value: when completion mode is Indexed")},
		{"indexed and wide", func(o job) { indexed(o); o.Spec.Parallelism = ptr[int32](100_001) }, bad("spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed")},
		{"indexed with a long name", func(o job) { indexed(o); o.Name, o.Spec.Template.Labels = long(62), nil; selectJob(o) }, bad("metadata.name: Invalid value")},
		{
			"limit per index", func(o job) { o.Spec.BackoffLimitPerIndex, o.Spec.MaxFailedIndexes = ptr[int32](1), ptr[int32](1) },
			bad("spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode", "spec.maxFailedIndexes: Invalid value: 1: requires indexed completion mode"),
		},
		{
			"failed indexes", func(o job) { indexed(o); o.Spec.MaxFailedIndexes = ptr[int32](5) },
			bad("spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified", "spec.maxFailedIndexes: Invalid value: 5: must be less than or equal to completions"),
		},
		{
			"limits of many indexes", func(o job) {
				indexed(o)
				o.Spec.Completions, o.Spec.Parallelism = ptr[int32](100_001), ptr[int32](10_001)
				o.Spec.BackoffLimitPerIndex = ptr[int32](1)
			},
			bad("spec.parallelism: Invalid value: 10001: must be less than or equal to 10000 when completions are above 100000", "spec.maxFailedIndexes: Required value: must be specified when completions are above 100000"),
		},
		{
			"many failed indexes", func(o job) {
				indexed(o)
				o.Spec.Completions, o.Spec.Parallelism = ptr[int32](200_000), ptr[int32](10_000)
				o.Spec.BackoffLimitPerIndex, o.Spec.MaxFailedIndexes = ptr[int32](1), ptr[int32](100_001)
			},
			bad("spec.maxFailedIndexes: Invalid value: 100001: must be less than or equal to 100000", "spec.maxFailedIndexes: Invalid value: 100001: must be less than or equal to 10000 when"),
		},
		{
			"replacement with a failure policy", func(o job) {
				o.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{}
				o.Spec.PodReplacementPolicy = ptr(batchv1.TerminatingOrFailed)
			},
			bad(`spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"`),
		},
		{"replacement", func(o job) { o.Spec.PodReplacementPolicy = ptr(batchv1.PodReplacementPolicy("x")) }, bad("spec.podReplacementPolicy: Unsupported value")},
		{"managed by", func(o job) { o.Spec.ManagedBy = ptr("example.com/a/b") }, nil},
		{"managed by no domain", func(o job) { o.Spec.ManagedBy = ptr("me") }, bad(`spec.managedBy: Invalid value: "me": must be a domain-prefixed path (such as "acme.io/foo")`)},
		{"managed by nobody", func(o job) { o.Spec.ManagedBy = ptr("") }, bad("spec.managedBy: Required value")},
		{"managed by someone long", func(o job) { o.Spec.ManagedBy = ptr("a.b/" + long(60)) }, bad("spec.managedBy: Too long")},
		{"failure rule", rule(batchv1.PodFailurePolicyRule{Action: "FailJob", OnExitCodes: codes("In", 1, 42)}), nil},
		{"failure rule of nothing", rule(batchv1.PodFailurePolicyRule{Action: "FailJob"}), bad(pfp + ": Invalid value: specifying one of OnExitCodes and OnPodConditions is required")},
		{"failure rule of both", rule(batchv1.PodFailurePolicyRule{
			Action: "x", OnExitCodes: codes("In", 1), OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: "a b"}},
		}), bad(pfp+".action: Unsupported value", pfp+": Invalid value: specifying both", pfp+".onPodConditions[0].status: Required value", pfp+".onPodConditions[0].type: Invalid value")},
		{
			"failure rule's codes", rule(batchv1.PodFailurePolicyRule{Action: "Count", OnExitCodes: codes("In", 3, 0, 3)}),
			bad(pfp+".onExitCodes.values: Invalid value: [3,0,3]: must be ordered", pfp+".onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator", pfp+".onExitCodes.values[2]: Duplicate value: 3"),
		},
		{
			"failure rule's container", rule(batchv1.PodFailurePolicyRule{Action: "FailIndex", OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "x", ContainerName: ptr("z")}}),
			bad(pfp+".action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set", pfp+".onExitCodes.containerName: Invalid value",
				pfp+".onExitCodes.operator: Unsupported value", pfp+".onExitCodes.values: Invalid value: null: at least one value is required"),
		},
		{"failure policy of restarting pods", func(o job) {
			rule(batchv1.PodFailurePolicyRule{Action: "FailJob", OnExitCodes: codes("In", 1)})(o)
			o.Spec.Template.Spec.RestartPolicy = "OnFailure"
		}, bad(`spec.template.spec.restartPolicy: Invalid value: "OnFailure": only "Never" is supported when podFailurePolicy is specified`)},
		{"success policy", func(o job) { o.Spec.SuccessPolicy = &batchv1.SuccessPolicy{} }, bad("spec.successPolicy: Invalid value: {\"rules\":null}: requires indexed completion mode")},
		{"success policy of nothing", func(o job) { indexed(o); o.Spec.SuccessPolicy = &batchv1.SuccessPolicy{} }, bad("spec.successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified")},
		{"success rules", func(o job) {
			indexed(o)
			o.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{}, {SucceededCount: ptr[int32](2)}}}
		}, bad("spec.successPolicy.rules[0]: Required value", "spec.successPolicy.rules[1].succeededCount: Invalid value: 2: must be less than or equal to 1 (the number of specified completions)")},
	})
	mutateUpdate(t, fresh, validateJobUpdate, []mutation[job]{
		{"parallel", func(o job) { o.Spec.Parallelism = ptr[int32](5) }, nil},
		{"suspend", func(o job) { o.Spec.Suspend = ptr(true) }, nil},
		{"completions", func(o job) { o.Spec.Completions = ptr[int32](2) }, bad("spec.completions: Invalid value: 2: field is immutable")},
		{"template", func(o job) { o.Spec.Template.Spec.Containers[0].Image = "x" }, bad("spec.template: Invalid value")},
		{"selector", func(o job) { o.Spec.Selector.MatchLabels["a"] = "b" }, bad("spec.selector: Invalid value")},
		{"mode changes", indexed, bad("spec.completionMode: Invalid value")},
		{"placement", func(o job) { o.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"} }, bad("spec.template: Invalid value")},
	})
	suspended := func() job {
		o := fresh()
		indexed(o)
		o.Spec.Suspend = ptr(true)
		prepares := o.Spec.Template.Spec.Containers[0]
		prepares.Name = "i"
		o.Spec.Template.Spec.InitContainers = []corev1.Container{prepares}
		return o
	}
	mutateUpdate(t, suspended, validateJobUpdate, []mutation[job]{
		{"placement of a suspended job", func(o job) {
			o.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"}
			o.Spec.Template.Labels["x"] = "y"
		}, nil},
		{"image of a suspended job", func(o job) { o.Spec.Template.Spec.Containers[0].Image = "x" }, bad("spec.template: Invalid value")},
		{"resources of a suspended job", func(o job) {
			o.Spec.Template.Spec.Containers[0].Resources.Requests = list("cpu", "1")
			o.Spec.Template.Spec.InitContainers[0].Resources.Requests = list("cpu", "1")
		}, nil},
		{"another container of a suspended job", func(o job) {
			o.Spec.Template.Spec.Containers = append(o.Spec.Template.Spec.Containers, o.Spec.Template.Spec.Containers[0])
			o.Spec.Template.Spec.Containers[1].Name = "d"
		}, bad("spec.template: Invalid value")},
		{"grow in tandem", func(o job) { o.Spec.Completions, o.Spec.Parallelism = ptr[int32](3), ptr[int32](3) }, nil},
		{"grow alone", func(o job) { o.Spec.Completions = ptr[int32](3) }, bad("spec.completions: Invalid value: 3: can only be modified in tandem with spec.parallelism")},
	})
	place := func(o job) { o.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"} }
	with := func(active int32, condition corev1.ConditionStatus) func() job {
		return func() job {
			o := suspended()
			o.Status.Active, o.Status.StartTime = active, ptr(metav1.Unix(1, 0))
			o.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: condition}}
			return o
		}
	}
	mutateUpdate(t, with(0, "True"), validateJobUpdate, []mutation[job]{{"placement once it rests", place, nil}})
	mutateUpdate(t, with(0, "False"), validateJobUpdate, []mutation[job]{{"placement before it rests", place, bad("spec.template: Invalid value")}})
	mutateUpdate(t, with(1, "True"), validateJobUpdate, []mutation[job]{{"placement while pods run", place, bad("spec.template: Invalid value")}})
}

func TestCronJobs(t *testing.T) {
	t.Parallel()
	type cron = *batchv1.CronJob
	fresh := func() cron {
		return defaulted[batchv1.CronJob](t, `{metadata: {name: c}, spec: {schedule: "*/5 * * * *", timeZone: Europe/Berlin,
			jobTemplate: {spec: {template: {spec: {restartPolicy: OnFailure, containers: [{name: c, image: i}]}}}}}}`)
	}
	mutate(t, fresh, validateCronJob, []mutation[cron]{
		{"longest name", func(c cron) { c.Name = long(52) }, nil},
		{"name too long", func(c cron) { c.Name = long(53) }, bad("metadata.name: Invalid value: \"" + long(53) + "\": must be no more than 52 characters")},
		{"no schedule", func(c cron) { c.Spec.Schedule = "" }, bad("spec.schedule: Required value")},
		{"schedule", func(c cron) { c.Spec.Schedule = "* * * *" }, bad(`spec.schedule: Invalid value: "* * * *": expected exactly 5 fields, found 4: [* * * *]`)},
		{"zone in schedule", func(c cron) { c.Spec.Schedule = "TZ=UTC * * * * *" }, bad("spec.schedule: Invalid value: \"TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule")},
		{"zone", func(c cron) { c.Spec.TimeZone = ptr("Moon/Sea") }, bad(`spec.timeZone: Invalid value: "Moon/Sea": unknown time zone Moon/Sea`)},
		{"empty zone", func(c cron) { c.Spec.TimeZone = ptr("") }, bad("spec.timeZone: Invalid value")},
		{"local zone", func(c cron) { c.Spec.TimeZone = ptr("local") }, bad("spec.timeZone: Invalid value")},
		{"policy", func(c cron) { c.Spec.ConcurrencyPolicy = "x" }, bad("spec.concurrencyPolicy: Unsupported value")},
		{"numbers", func(c cron) {
			c.Spec.StartingDeadlineSeconds, c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit = ptr[int64](-1), ptr[int32](-1), ptr[int32](-1)
		}, bad("spec.failedJobsHistoryLimit: Invalid value", "spec.startingDeadlineSeconds: Invalid value", "spec.successfulJobsHistoryLimit: Invalid value")},
		{
			"selector", func(c cron) { c.Spec.JobTemplate.Spec.Selector = selector("a=b") },
			bad(`spec.jobTemplate.spec.selector: Invalid value: {"matchLabels":{"a":"b"}}: ` + "`selector` will be auto-generated"),
		},
		{"manual selector", func(c cron) { c.Spec.JobTemplate.Spec.ManualSelector = ptr(true) }, bad("spec.jobTemplate.spec.manualSelector: Unsupported value")},
		{"template", func(c cron) { c.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Name = "" }, bad("spec.jobTemplate.spec.template.spec.containers[0].name: Required value")},
	})
	zoned := func() cron {
		c := fresh()
		c.Spec.Schedule = "CRON_TZ=UTC 0 0 * * *"
		return c
	}
	mutateUpdate(t, zoned, validateCronJobUpdate, []mutation[cron]{
		{"zone stays", func(c cron) { c.Spec.Suspend = ptr(true) }, nil},
		{"bad after all", func(c cron) { c.Spec.Schedule = "TZ=UTC x" }, bad("spec.schedule: Invalid value")},
	})
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		schedule, want string
	}{
		{"0 0 1 1 0", ""},
		{"59 23 31 12 6", ""},
		{"0-30/5 */2 1,15 JAN-jun mon-FRI", ""},
		{"? ? ? ? ?", ""},
		{"5/15 * * * *", ""},
		{"@daily", ""},
		{"@every 1h30m", ""},
		{" 0 0 * * * ", ""},
		{"60 * * * *", "end of range (60) above maximum (59): 60"},
		{"* * 0 * *", "beginning of range (0) below minimum (1): 0"},
		{"* * * * 7", "end of range (7) above maximum (6): 7"},
		{"30-20 * * * *", "beginning of range (30) beyond end of range (20): 30-20"},
		{"*/0 * * * *", "step of range should be a positive number: */0"},
		{"*/x * * * *", "failed to parse int from x: invalid syntax"},
		{"x * * * *", "failed to parse int from x: invalid syntax"},
		{", * * * *", "failed to parse int from : invalid syntax"},
		{"-1 * * * *", "failed to parse int from : invalid syntax"},
		{"* * * * * *", "expected exactly 5 fields, found 6: [* * * * * *]"},
		{"@never", "unrecognized descriptor: @never"},
		{"@every soon", `failed to parse duration @every soon: time: invalid duration "soon"`},
		{"99999999999999999999 * * * *", "failed to parse int from 99999999999999999999: value out of range"},
	} {
		got := ""
		if err := parseSchedule(c.schedule); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("parseSchedule(%q): %q, want %q", c.schedule, got, c.want)
		}
	}
}

// FuzzSchedule reads any text without a panic.
func FuzzSchedule(f *testing.F) {
	for _, s := range []string{"* * * * *", "@every 1h", "0-30/5 */2 1,15 JAN-jun mon-FRI", "TZ=UTC 0 0 * * *", "-/-"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) { _ = parseSchedule(s) })
}
