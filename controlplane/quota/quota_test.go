package quota

// Tests of the evaluators by Kubernetes' own cases.

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/utils/ptr"
)

// amounts reads NAME=AMOUNT,…
func amounts(t *testing.T, s string) corev1.ResourceList {
	t.Helper()
	out := corev1.ResourceList{}
	for part := range strings.SplitSeq(s, ",") {
		if name, amount, ok := strings.Cut(part, "="); ok {
			out[corev1.ResourceName(name)] = resource.MustParse(amount)
		}
	}
	return out
}

func container(t *testing.T, name, requests, limits string) corev1.Container {
	t.Helper()
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: amounts(t, requests), Limits: amounts(t, limits)}}
}

// podOf has the containers of main and, first, those of init.
func podOf(init, main []corev1.Container) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{InitContainers: init, Containers: main}}
}

func TestPodConstraints(t *testing.T) {
	const memory, cpu = corev1.ResourceMemory, corev1.ResourceCPU
	c := func(name string) corev1.Container { return container(t, name, "cpu=1m", "cpu=2m") }
	whole := podOf(nil, []corev1.Container{{Name: "foo"}, {Name: "bar"}})
	whole.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts(t, "cpu=1m")}
	for _, tt := range []struct {
		name     string
		pod      *corev1.Pod
		required []corev1.ResourceName
		want     string
	}{
		{"init container", podOf([]corev1.Container{c("dummy")}, nil), []corev1.ResourceName{memory}, "must specify memory for: dummy"},
		{"init containers", podOf([]corev1.Container{c("foo"), c("bar")}, nil), []corev1.ResourceName{memory}, "must specify memory for: bar,foo"},
		{"container", podOf(nil, []corev1.Container{c("dummy")}), []corev1.ResourceName{memory}, "must specify memory for: dummy"},
		{"containers", podOf(nil, []corev1.Container{c("foo"), c("bar")}), []corev1.ResourceName{memory}, "must specify memory for: bar,foo"},
		{"several resources", podOf(nil, []corev1.Container{{Name: "foo"}, {Name: "bar"}}), []corev1.ResourceName{memory, cpu}, "must specify cpu for: bar,foo; memory for: bar,foo"},
		{"limits", podOf(nil, []corev1.Container{c("foo")}), []corev1.ResourceName{"limits.cpu", "limits.memory"}, "must specify limits.memory for: foo"},
		{"no more than these", podOf(nil, []corev1.Container{c("foo")}), []corev1.ResourceName{"requests.ephemeral-storage", "requests.example.com/dongle", "pods", "requests.hugepages-2Mi"}, ""},
		{"of the pod as a whole", whole, []corev1.ResourceName{memory, cpu}, ""},
	} {
		err := Pods(nil).Constraints(tt.required, tt.pod)
		if got := errText(err); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// expectUsage compares what an object takes. Amounts of zero need not be said.
func expectUsage(t *testing.T, name string, e quota.Evaluator, obj runtime.Object, want string) {
	t.Helper()
	got, err := e.Usage(obj)
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if want := amounts(t, want); !quota.Equals(quota.RemoveZeros(got), want) {
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

func TestPodUsage(t *testing.T) {
	one := func(requests, limits string) []corev1.Container {
		return []corev1.Container{container(t, "c", requests, limits)}
	}
	cpu, memory := "cpu=1m,requests.cpu=1m,limits.cpu=2m", "memory=1,requests.memory=1,limits.memory=2"
	storage := "ephemeral-storage=32Mi,requests.ephemeral-storage=32Mi,limits.ephemeral-storage=64Mi"
	for _, tt := range []struct{ name, requests, limits, want string }{
		{"cpu", "cpu=1m", "cpu=2m", cpu},
		{"memory", "memory=1", "memory=2", memory},
		{"local storage", "ephemeral-storage=32Mi", "ephemeral-storage=64Mi", storage},
		{"huge pages", "hugepages-2Mi=100Mi", "", "hugepages-2Mi=100Mi,requests.hugepages-2Mi=100Mi"},
		{"extended", "example.com/dongle=3", "example.com/dongle=3", "requests.example.com/dongle=3"},
		{"device class", "deviceclass.resource.kubernetes.io/dongle=3", "deviceclass.resource.kubernetes.io/dongle=3", "requests.deviceclass.resource.kubernetes.io/dongle=3"},
		{"none of any quota", "kubernetes.io/odd=3,odd=4", "", ""},
	} {
		want := "pods=1,count/pods=1," + tt.want
		expectUsage(t, tt.name, Pods(nil), podOf(nil, one(tt.requests, tt.limits)), want)
		expectUsage(t, "init: "+tt.name, Pods(nil), podOf(one(tt.requests, tt.limits), nil), want)
	}
	big := []corev1.Container{
		container(t, "a", "cpu=4,memory=100M,example.com/dongle=4", "cpu=8,memory=200M,example.com/dongle=4"),
		container(t, "b", "cpu=1,memory=50M,example.com/dongle=2", "cpu=2,memory=100M,example.com/dongle=2"),
	}
	small := []corev1.Container{
		container(t, "c", "cpu=1,memory=50M,example.com/dongle=1", "cpu=2,memory=100M,example.com/dongle=1"),
		container(t, "d", "cpu=2,memory=25M,example.com/dongle=2", "cpu=5,memory=50M,example.com/dongle=2"),
	}
	expectUsage(t, "the largest init container", Pods(nil), podOf(big, small),
		"pods=1,count/pods=1,cpu=4,requests.cpu=4,limits.cpu=8,memory=100M,requests.memory=100M,limits.memory=200M,requests.example.com/dongle=4")
	overhead := podOf(nil, one("cpu=1", "cpu=2"))
	overhead.Spec.Overhead = amounts(t, "cpu=1")
	expectUsage(t, "overhead", Pods(nil), overhead, "pods=1,count/pods=1,cpu=2,requests.cpu=2,limits.cpu=3")
	whole := podOf(nil, one("ephemeral-storage=32Mi", "ephemeral-storage=64Mi"))
	whole.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts(t, "memory=1"), Limits: amounts(t, "memory=2")}
	expectUsage(t, "of the pod as a whole", Pods(nil), whole, "pods=1,count/pods=1,"+memory+","+storage)
	sidecar := podOf(one("cpu=1", ""), one("cpu=2", ""))
	sidecar.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	expectUsage(t, "sidecar", Pods(nil), sidecar, "pods=1,count/pods=1,cpu=3,requests.cpu=3")
	withEphemeral := podOf(nil, one("cpu=1", ""))
	withEphemeral.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}}
	expectUsage(t, "ephemeral container", Pods(nil), withEphemeral, "pods=1,count/pods=1,cpu=1,requests.cpu=1")
}

// shown is a mirror pod of node n, if its controller is that node.
func shown(t *testing.T, owner string) *corev1.Pod {
	p := podOf(nil, []corev1.Container{container(t, "c", "cpu=1", "")})
	p.Spec.NodeName, p.Annotations = "n", map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner, Controller: ptr.To(true)}}
	return p
}

// What a node shows of itself takes nothing, and what is only called so does.
func TestMirrorPods(t *testing.T) {
	const all = "pods=1,count/pods=1,cpu=1,requests.cpu=1"
	expectUsage(t, "mirror pod", Pods(nil), shown(t, "n"), "")
	expectUsage(t, "of another node", Pods(nil), shown(t, "other"), all)
	plain := shown(t, "n")
	plain.Annotations = nil
	expectUsage(t, "without the annotation", Pods(nil), plain, all)
	plain = shown(t, "n")
	plain.OwnerReferences = nil
	expectUsage(t, "without owner", Pods(nil), plain, all)
}

// What has ended takes nothing but its place in the store.
func TestPodsThatEnded(t *testing.T) {
	const all, stored = "pods=1,count/pods=1,cpu=1,requests.cpu=1", "count/pods=1"
	now := time.Now()
	for _, tt := range []struct {
		name    string
		phase   corev1.PodPhase
		deleted time.Time
		want    string
	}{
		{"pending", corev1.PodPending, time.Time{}, all},
		{"running", corev1.PodRunning, time.Time{}, all},
		{"succeeded", corev1.PodSucceeded, time.Time{}, stored},
		{"failed", corev1.PodFailed, time.Time{}, stored},
		{"being deleted", corev1.PodRunning, now, all},
		{"stuck on a lost node", corev1.PodRunning, now.Add(-time.Minute), stored},
	} {
		p := podOf(nil, []corev1.Container{container(t, "c", "cpu=1", "")})
		p.Status.Phase = tt.phase
		if !tt.deleted.IsZero() {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: tt.deleted}, ptr.To[int64](30)
		}
		expectUsage(t, tt.name, Pods(nil), p, tt.want)
	}
}

// What a node says that a pod has counts for nothing, be it more or less.
func TestPodsThatAreResized(t *testing.T) {
	for _, tt := range []struct{ requests, limits, has, want string }{
		{"memory=200Mi", "memory=400Mi", "memory=150Mi", "memory=200Mi,requests.memory=200Mi,limits.memory=400Mi"},
		{"cpu=100m", "cpu=200m", "cpu=1M", "cpu=100m,requests.cpu=100m,limits.cpu=200m"},
		{"cpu=100m,memory=200Mi", "", "cpu=-1,example.com/x=9", "cpu=100m,requests.cpu=100m,memory=200Mi,requests.memory=200Mi"},
		{"cpu=100m", "cpu=200m", "", "cpu=100m,requests.cpu=100m,limits.cpu=200m"},
	} {
		p := podOf(nil, []corev1.Container{container(t, "c", tt.requests, tt.limits)})
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c"}}
		if tt.has != "" {
			has := amounts(t, tt.has)
			p.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: has, Limits: has}
			p.Status.ContainerStatuses[0].AllocatedResources = has
		}
		expectUsage(t, tt.requests, Pods(nil), p, "pods=1,count/pods=1,"+tt.want)
	}
}

// requirement reads NAME, or "NAME OPERATOR VALUE…".
func requirement(s string) corev1.ScopedResourceSelectorRequirement {
	words := strings.Fields(s)
	r := corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScope(words[0]), Operator: corev1.ScopeSelectorOpExists}
	if len(words) > 1 {
		r.Operator, r.Values = corev1.ScopeSelectorOperator(words[1]), words[2:]
	}
	return r
}

func TestPodScopes(t *testing.T) {
	all := []string{
		"Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "CrossNamespacePodAffinity", "VolumeAttributesClass",
		"PriorityClass", "PriorityClass In class1", "PriorityClass NotIn class1", "PriorityClass DoesNotExist",
	}
	pod := func(change func(s *corev1.PodSpec)) *corev1.Pod {
		p := &corev1.Pod{}
		change(&p.Spec)
		return p
	}
	term := corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{}, Namespaces: []string{"ns1"}}
	bySelector := corev1.PodAffinityTerm{NamespaceSelector: &metav1.LabelSelector{}}
	const unclassed = ",PriorityClass NotIn class1,PriorityClass DoesNotExist"
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"empty", &corev1.Pod{}, "NotTerminating,BestEffort" + unclassed},
		{"class", pod(func(s *corev1.PodSpec) { s.PriorityClassName = "class1" }), "NotTerminating,BestEffort,PriorityClass,PriorityClass In class1"},
		{"other class", pod(func(s *corev1.PodSpec) { s.PriorityClassName = "class2" }), "NotTerminating,BestEffort,PriorityClass,PriorityClass NotIn class1"},
		{"not best effort", podOf(nil, []corev1.Container{container(t, "c", "cpu=1", "")}), "NotTerminating,NotBestEffort" + unclassed},
		{"extended resources only", podOf(nil, []corev1.Container{container(t, "c", "example.com/dongle=1", "")}), "NotTerminating,BestEffort" + unclassed},
		{"deadline", pod(func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](0) }), "Terminating,BestEffort" + unclassed},
		{"own namespace", pod(func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{}}}}
		}), "NotTerminating,BestEffort" + unclassed},
		{"affinity", pod(func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
		}), "NotTerminating,BestEffort,CrossNamespacePodAffinity" + unclassed},
		{"preferred affinity", pod(func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: bySelector}}}}
		}), "NotTerminating,BestEffort,CrossNamespacePodAffinity" + unclassed},
		{"anti-affinity", pod(func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{bySelector}}}
		}), "NotTerminating,BestEffort,CrossNamespacePodAffinity" + unclassed},
		{"preferred anti-affinity", pod(func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: term}}}}
		}), "NotTerminating,BestEffort,CrossNamespacePodAffinity" + unclassed},
	} {
		var scopes []corev1.ScopedResourceSelectorRequirement
		for _, s := range all {
			scopes = append(scopes, requirement(s))
		}
		got, err := Pods(nil).MatchingScopes(tt.pod, scopes)
		var names []string
		for _, r := range got {
			names = append(names, all[slices.IndexFunc(scopes, func(s corev1.ScopedResourceSelectorRequirement) bool {
				return s.ScopeName == r.ScopeName && s.Operator == r.Operator
			})])
		}
		want := strings.Split(tt.want, ",")
		slices.Sort(names)
		slices.Sort(want)
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("%s: %q, %v, want %q", tt.name, names, err, want)
		}
	}
	if _, err := Pods(nil).MatchingScopes(&corev1.Pod{}, []corev1.ScopedResourceSelectorRequirement{{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: "Near"}}); err == nil {
		t.Error("an operator that is none")
	}
}

func TestPodUncoveredScopes(t *testing.T) {
	got, err := Pods(nil).UncoveredQuotaScopes(
		[]corev1.ScopedResourceSelectorRequirement{requirement("PriorityClass In a"), requirement("BestEffort")},
		[]corev1.ScopedResourceSelectorRequirement{requirement("PriorityClass In b")})
	if err != nil || len(got) != 1 || got[0].ScopeName != corev1.ResourceQuotaScopeBestEffort {
		t.Errorf("%v, %v", got, err)
	}
}

// TestUsageStats: of the pods of a namespace, those in all scopes are added up.
func TestUsageStats(t *testing.T) {
	pod := func(class, cpu string, phase corev1.PodPhase) *corev1.Pod {
		p := podOf(nil, []corev1.Container{container(t, "c", cpu, cpu)})
		p.Spec.PriorityClassName, p.Status.Phase = class, phase
		return p
	}
	high, ended, low := pod("high", "cpu=1", corev1.PodRunning), pod("high", "cpu=1", corev1.PodSucceeded), pod("low", "cpu=1", corev1.PodRunning)
	idle := pod("high", "", corev1.PodFailed)
	isHigh := &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{requirement("PriorityClass In high")}}
	for _, tt := range []struct {
		name     string
		pods     []*corev1.Pod
		scopes   []corev1.ResourceQuotaScope
		selector *corev1.ScopeSelector
		want     string
	}{
		{"none", nil, nil, nil, ""},
		{"running", []*corev1.Pod{high, low}, nil, nil, "pods=2,count/pods=2,cpu=2,requests.cpu=2,limits.cpu=2"},
		{"one has ended", []*corev1.Pod{high, ended}, nil, nil, "pods=1,count/pods=2,cpu=1,requests.cpu=1,limits.cpu=1"},
		{"of a class", []*corev1.Pod{high, ended, low}, nil, isHigh, "pods=1,count/pods=2,cpu=1,requests.cpu=1,limits.cpu=1"},
		{"of a class, twice", []*corev1.Pod{high, ended, low}, []corev1.ResourceQuotaScope{"PriorityClass"}, isHigh, "pods=1,count/pods=2,cpu=1,requests.cpu=1,limits.cpu=1"},
		{"of a class and best effort", []*corev1.Pod{high, ended, low, idle}, []corev1.ResourceQuotaScope{"PriorityClass", "BestEffort"}, isHigh, "count/pods=1"},
	} {
		e := Pods(func(string) ([]runtime.Object, error) {
			var out []runtime.Object
			for _, p := range tt.pods {
				out = append(out, p)
			}
			return out, nil
		})
		got, err := e.UsageStats(quota.UsageStatsOptions{Scopes: tt.scopes, ScopeSelector: tt.selector})
		if want := amounts(t, tt.want); err != nil || !quota.Equals(got.Used, want) {
			t.Errorf("%s: %v, %v, want %v", tt.name, got.Used, err, want)
		}
	}
}

func TestServiceUsage(t *testing.T) {
	for _, tt := range []struct {
		name     string
		kind     corev1.ServiceType
		allocate *bool
		ports    []int32 // node ports that are asked for
		want     string
	}{
		{"cluster address", corev1.ServiceTypeClusterIP, nil, []int32{0}, ""},
		{"node port", corev1.ServiceTypeNodePort, nil, []int32{0}, "services.nodeports=1"},
		{"node ports", corev1.ServiceTypeNodePort, nil, []int32{0, 0}, "services.nodeports=2"},
		{"balancer", corev1.ServiceTypeLoadBalancer, nil, nil, "services.loadbalancers=1"},
		{"balancer with ports", corev1.ServiceTypeLoadBalancer, nil, []int32{0, 0}, "services.loadbalancers=1,services.nodeports=2"},
		{"balancer with ports asked for", corev1.ServiceTypeLoadBalancer, nil, []int32{32001, 32002}, "services.loadbalancers=1,services.nodeports=2"},
		{"balancer, allocating", corev1.ServiceTypeLoadBalancer, ptr.To(true), []int32{0, 0}, "services.loadbalancers=1,services.nodeports=2"},
		{"balancer, not allocating", corev1.ServiceTypeLoadBalancer, ptr.To(false), []int32{0, 0}, "services.loadbalancers=1"},
		{"balancer, only those asked for", corev1.ServiceTypeLoadBalancer, ptr.To(false), []int32{32001, 0}, "services.loadbalancers=1,services.nodeports=1"},
	} {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: tt.kind, AllocateLoadBalancerNodePorts: tt.allocate}}
		for _, p := range tt.ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 80, NodePort: p})
		}
		expectUsage(t, tt.name, Services(nil), s, "services=1,count/services=1,"+tt.want)
	}
}

func TestClaimUsage(t *testing.T) {
	const one = "persistentvolumeclaims=1,count/persistentvolumeclaims=1"
	claim := func(request, given, class string) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{}
		c.Spec.Resources.Requests, c.Status.AllocatedResources = amounts(t, request), amounts(t, given)
		if class != "" {
			c.Spec.StorageClassName = &class
		}
		return c
	}
	old := claim("storage=10Gi", "", "")
	old.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "gold"}
	for _, tt := range []struct {
		name  string
		claim *corev1.PersistentVolumeClaim
		want  string
	}{
		{"no size", claim("", "", ""), one},
		{"size", claim("storage=10Gi", "", ""), one + ",requests.storage=10Gi"},
		{"whole bytes", claim("storage=10000m", "", ""), one + ",requests.storage=10"},
		{"bytes rounded up", claim("storage=10500m", "", ""), one + ",requests.storage=11"},
		{"given more", claim("storage=10Gi", "storage=20Gi", ""), one + ",requests.storage=20Gi"},
		{"given less", claim("storage=10Gi", "storage=5Gi", ""), one + ",requests.storage=10Gi"},
		{"class", claim("storage=10Gi", "", "gold"), one + ",requests.storage=10Gi,gold.storageclass.storage.k8s.io/requests.storage=10Gi,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1"},
		{"class by annotation", old, one + ",requests.storage=10Gi,gold.storageclass.storage.k8s.io/requests.storage=10Gi,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1"},
	} {
		expectUsage(t, tt.name, Claims(nil), tt.claim, tt.want)
	}
	changing := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeAttributesClassName: ptr.To("new")}}
	changing.Status.CurrentVolumeAttributesClassName = ptr.To("old")
	for scope, want := range map[string]int{
		"VolumeAttributesClass": 1, "VolumeAttributesClass In old": 1, "VolumeAttributesClass In new": 1,
		"VolumeAttributesClass NotIn old": 0, "VolumeAttributesClass In other": 0, "BestEffort": 0,
	} {
		got, err := Claims(nil).MatchingScopes(changing, []corev1.ScopedResourceSelectorRequirement{requirement(scope)})
		if err != nil || len(got) != want {
			t.Errorf("%s: %v, %v", scope, got, err)
		}
	}
}

// TestMatchingResources: each evaluator picks its own of all names.
func TestMatchingResources(t *testing.T) {
	all := []corev1.ResourceName{
		"configmaps", "count/configmaps", "cpu", "requests.cpu", "limits.cpu", "memory", "pods", "count/pods", "ephemeral-storage", "limits.ephemeral-storage",
		"hugepages-2Mi", "requests.hugepages-2Mi", "requests.example.com/dongle", "example.com/dongle", "requests.deviceclass.resource.kubernetes.io/x",
		"services", "services.nodeports", "services.loadbalancers", "count/services", "requests.storage", "persistentvolumeclaims", "count/persistentvolumeclaims",
		"gold.storageclass.storage.k8s.io/requests.storage", "gold.storageclass.storage.k8s.io/persistentvolumeclaims", "gold.storageclass.storage.k8s.io/other",
		"count/deployments.apps", "limits.odd", "requests.odd",
	}
	for _, tt := range []struct {
		e    quota.Evaluator
		want string
	}{
		{Pods(nil), "cpu requests.cpu limits.cpu memory pods count/pods ephemeral-storage limits.ephemeral-storage hugepages-2Mi requests.hugepages-2Mi " +
			"requests.example.com/dongle requests.deviceclass.resource.kubernetes.io/x"},
		{Services(nil), "services services.nodeports services.loadbalancers count/services"},
		{Claims(nil), "requests.storage persistentvolumeclaims count/persistentvolumeclaims gold.storageclass.storage.k8s.io/requests.storage gold.storageclass.storage.k8s.io/persistentvolumeclaims"},
		{Count(corev1.Resource("configmaps"), nil), "configmaps count/configmaps"},
		{Count(schema.GroupResource{Group: "apps", Resource: "deployments"}, nil), "count/deployments.apps"},
	} {
		got, want := quota.ToSet(tt.e.MatchingResources(all)).List(), strings.Fields(tt.want)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", tt.e.GroupResource(), got, want)
		}
	}
	for name, want := range map[corev1.ResourceName]string{
		"secrets": "secrets", "count/secrets": "secrets", "resourcequotas": "resourcequotas", "count/jobs.batch": "jobs.batch",
		"count/leases.coordination.k8s.io": "leases.coordination.k8s.io", "count/pods": "", "pods": "", "cpu": "", "count/services": "", "count/events": "",
	} {
		if gr, ok := Counted(name); gr.String() != want || ok != (want != "") {
			t.Errorf("%s counts %q", name, gr)
		}
	}
}

// TestHandles: what costs nothing is not measured.
func TestHandles(t *testing.T) {
	const create, update, remove, connect = admission.Create, admission.Update, admission.Delete, admission.Connect
	deadline := &corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](1)}}
	later := &corev1.Pod{Spec: corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](2)}}
	none := &corev1.Pod{}
	svc, claim, config := &corev1.Service{}, &corev1.PersistentVolumeClaim{}, &corev1.ConfigMap{}
	for _, tt := range []struct {
		e       quota.Evaluator
		op      admission.Operation
		sub     string
		is, was runtime.Object
		want    bool
	}{
		{Pods(nil), create, "", none, nil, true},
		{Pods(nil), create, "", shown(t, "n"), nil, false},
		{Pods(nil), create, "", shown(t, "other"), nil, true},
		{Pods(nil), create, "binding", none, nil, false},
		{Pods(nil), create, "eviction", none, nil, false},
		{Pods(nil), update, "", none, none, false},
		{Pods(nil), update, "", none, deadline, true},
		{Pods(nil), update, "", deadline, none, true},
		{Pods(nil), update, "", later, deadline, false},
		{Pods(nil), update, "status", none, none, false},
		{Pods(nil), update, "ephemeralcontainers", none, none, false},
		{Pods(nil), update, "resize", none, none, true},
		{Pods(nil), connect, "exec", none, nil, false},
		{Pods(nil), remove, "", nil, none, false},
		{Services(nil), create, "", svc, nil, true},
		{Services(nil), update, "", svc, svc, true},
		{Services(nil), update, "status", svc, svc, false},
		{Services(nil), remove, "", nil, svc, false},
		{Claims(nil), create, "", claim, nil, true},
		{Claims(nil), update, "", claim, claim, true},
		{Claims(nil), update, "status", claim, claim, true},
		{Claims(nil), remove, "", nil, claim, false},
		{Count(corev1.Resource("configmaps"), nil), create, "", config, nil, true},
		{Count(corev1.Resource("configmaps"), nil), update, "", config, config, false},
	} {
		a := admission.NewAttributesRecord(tt.is, tt.was, schema.GroupVersionKind{}, "ns", "x", tt.e.GroupResource().WithVersion("v1"), tt.sub, tt.op, nil, false, nil)
		if got := tt.e.Handles(a); got != tt.want {
			t.Errorf("%s of %s/%s: %v", tt.op, tt.e.GroupResource(), tt.sub, got)
		}
	}
}

func TestWrongKind(t *testing.T) {
	for _, e := range []quota.Evaluator{Pods(nil), Services(nil), Claims(nil)} {
		if _, err := e.Usage(&corev1.Node{}); err == nil || !strings.Contains(err.Error(), "Node") {
			t.Errorf("%s: %v", e.GroupResource(), err)
		}
	}
	if len(ForAdmission()) != 7 {
		t.Errorf("%d evaluators", len(ForAdmission()))
	}
}
