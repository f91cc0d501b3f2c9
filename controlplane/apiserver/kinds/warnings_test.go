// Warnings about what is accepted.

package kinds

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// warned compares the warnings of an object that is made with what is wanted: each begins as in
// want.
func warned(t *testing.T, k Kind, obj runtime.Object, want ...string) {
	t.Helper()
	got := newStrategy(runtime.NewScheme(), &k).WarningsOnCreate(t.Context(), obj)
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("%s: warnings\n  %s\nwant\n  %s", k.kind, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	pod := func(spec string) *corev1.Pod {
		return defaulted[corev1.Pod](t, `{metadata: {name: p}, spec: {containers: [{name: c, image: i}], `+spec+`}}`)
	}
	one := func(container string) *corev1.Pod {
		return defaulted[corev1.Pod](t, `{metadata: {name: p}, spec: {containers: [{name: c, image: i, `+container+`}]}}`)
	}
	for _, c := range []struct {
		pod  *corev1.Pod
		want []string
	}{
		{goodPod(t)(), nil},
		{one(`env: [{name: A, value: a}, {name: A, value: "$(A)b"}, {name: B}, {name: A, value: c}]`), []string{
			`spec.containers[0].env[3]: hides previous definition of "A", which may be dropped when using apply`,
		}},
		{one(`env: [{name: A, value: a}, {name: A, value: "$(A)"}, {name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]`), []string{
			"spec.containers[0].env[1]: hides", "spec.containers[0].env[2]: hides",
		}},
		{one(`ports: [{name: a, containerPort: 80}, {name: b, containerPort: 80}]`), []string{"spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]"}},
		{one(`ports: [{containerPort: 80, hostPort: 80}, {containerPort: 80, hostIP: 10.0.0.1}]`), []string{
			"spec.containers[0].ports[1]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:10.0.0.1}",
			"spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
		}},
		{one(`ports: [{containerPort: 80, hostPort: 80}, {containerPort: 80, hostPort: 80, hostIP: 10.0.0.1}]`), []string{"spec.containers[0].ports[1]: dangerously ambiguous port definition"}},
		{one(`ports: [{containerPort: 80, hostPort: 80}, {containerPort: 80, hostPort: 81}, {containerPort: 80, protocol: UDP}]`), nil},
		{pod(`initContainers: [{name: d, image: i, restartPolicy: Always, ports: [{name: a, containerPort: 1}, {name: a, containerPort: 2}]}]`), []string{
			`spec.initContainers[0].ports[1]: duplicate port name "a" with spec.initContainers[0].ports[0], services and probes that select ports by name will use spec.initContainers[0].ports[0]`,
		}},
		{pod(`imagePullSecrets: [{name: a}, {}, {name: a}]`), []string{
			`spec.imagePullSecrets[2].name: duplicate name "a"`, `spec.imagePullSecrets[1].name: invalid empty name ""`,
		}},
		{one(`resources: {limits: {memory: 128m, cpu: 100m}}`), []string{
			`spec.containers[0].resources.limits[memory]: fractional byte value "128m" is invalid, must be an integer`, "spec.containers[0].resources.requests[memory]",
		}},
		{pod(`nodeSelector: {beta.kubernetes.io/os: linux}`), []string{`spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead`}},
		{pod(`topologySpreadConstraints: [{maxSkew: 1, topologyKey: failure-domain.beta.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule}]`), []string{
			`spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17`,
			"spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
		}},
		{pod(`affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a}]}, podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: a}}]}}`), []string{
			"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null", "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null",
		}},
		{pod(`hostAliases: [{ip: "FD00::1"}, {ip: "FD00::1"}], dnsConfig: {nameservers: ["fd00:0::1"]}`), []string{
			`spec.hostAliases[1].ip: duplicate ip "FD00::1"`, `spec.dnsConfig.nameservers[0]: IPv6 address "fd00:0::1" should be in RFC 5952 canonical format ("fd00::1")`, "spec.hostAliases[0].ip", "spec.hostAliases[1].ip",
		}},
		{pod(`volumes: [{name: g, gitRepo: {repository: r}}]`), []string{"spec.volumes[0].gitRepo: deprecated in v1.11"}},
		{pod(`volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: a/b}}, {configMap: {name: c, items: [{key: k, path: a}, {key: l, path: ab}]}}]}}]`), []string{
			`volume "v" (Projected): overlapping paths: "a" (ConfigMap "c") with "a/b" (ServiceAccountToken)`,
		}},
		{pod(`volumes: [{name: v, secret: {secretName: s, items: [{key: k, path: a}, {key: l, path: a/}]}}]`), []string{`volume "v" (Secret "s"): overlapping paths: "a" with "a"`}},
	} {
		warned(t, pods(), c.pod, c.want...)
	}
	dotted := goodPod(t)()
	dotted.Name, dotted.Annotations = "a.b", map[string]string{corev1.SeccompPodAnnotationKey: "x"}
	warned(t, pods(), dotted, "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [",
		`metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the "seccompProfile" field instead`)
	// The defaults of a pod, not of a template, have put it right.
	negative := goodPod(t)()
	negative.Spec.TerminationGracePeriodSeconds = ptr[int64](-1)
	warned(t, pods(), negative)
	if w := newStrategy(runtime.NewScheme(), ptr(pods())).WarningsOnUpdate(t.Context(), dotted, dotted); len(w) > 0 {
		t.Errorf("warnings of a pod that is changed: %q", w)
	}
}

func TestWarningsOfTemplates(t *testing.T) {
	t.Parallel()
	const at = "spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
	const name = "metadata.name: this is used in Pod names and hostnames"
	const spec = `{metadata: {name: a.b}, spec: {template: {spec: {terminationGracePeriodSeconds: -1, containers: [{name: c, image: i}]}}}}`
	d := defaulted[appsv1.Deployment](t, spec)
	warned(t, deployments(), d, name, at)
	warned(t, replicaSets(), defaulted[appsv1.ReplicaSet](t, spec), name, at)
	warned(t, daemonSets(), defaulted[appsv1.DaemonSet](t, spec), at)
	s := defaulted[appsv1.StatefulSet](t, spec)
	s.Spec.RevisionHistoryLimit = ptr[int32](-1)
	warned(t, statefulSets(), s, at, "spec.revisionHistoryLimit: a negative value retains")
	warned(t, replicationControllers(), defaulted[corev1.ReplicationController](t, spec), name, at)
	warned(t, replicationControllers(), &corev1.ReplicationController{}, name)
	j := defaulted[batchv1.Job](t, spec)
	j.Spec.CompletionMode, j.Spec.Completions, j.Spec.Parallelism = ptr(batchv1.IndexedCompletion), ptr[int32](100_001), ptr[int32](10_001)
	warned(t, jobs(), j, name, "spec: In Indexed Jobs with a number of completions higher than 10^5", at)
	warned(t, cronJobs(), defaulted[batchv1.CronJob](t, `{metadata: {name: a.b}, spec: {jobTemplate: `+spec+`}}`), name, "spec.jobTemplate."+at)
	warned(t, podTemplates(), defaulted[corev1.PodTemplate](t, `{template: {spec: {terminationGracePeriodSeconds: -1}}}`), strings.TrimPrefix(at, "spec."))

	k := deployments()
	changing := newStrategy(runtime.NewScheme(), &k)
	old := d.DeepCopy()
	if w := changing.WarningsOnUpdate(t.Context(), d, old); len(w) > 0 {
		t.Errorf("warnings of other labels: %q", w)
	}
	d.Generation = 2
	if w := changing.WarningsOnUpdate(t.Context(), d, old); len(w) != 1 || w[0] != at {
		t.Errorf("warnings of an update: %q", w)
	}
	if w := (statusStrategy{changing}).WarningsOnUpdate(t.Context(), d, old); len(w) > 0 {
		t.Errorf("warnings of a status: %q", w)
	}
}

func TestWarningsOfOthers(t *testing.T) {
	t.Parallel()
	warned(t, secrets(), &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": []byte("x"), "tls.key": nil}}, "tls: failed to find any PEM data in certificate input")
	warned(t, secrets(), &corev1.Secret{Type: corev1.SecretTypeOpaque})
	i := &networkingv1.Ingress{}
	warned(t, ingresses(), i)
	i.Annotations = map[string]string{"kubernetes.io/ingress.class": "c"}
	warned(t, ingresses(), i, `annotation "kubernetes.io/ingress.class" is deprecated, please use 'spec.ingressClassName' instead`)
	warned(t, configMaps(), &corev1.ConfigMap{})
}
