package kinds

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// kubeletNode is what a kubelet registers and reports.
const kubeletNode = `
apiVersion: v1
kind: Node
metadata:
  name: node-1
  labels: {kubernetes.io/hostname: node-1, kubernetes.io/os: linux, kubernetes.io/arch: amd64}
  annotations: {volumes.kubernetes.io/controller-managed-attach-detach: "true"}
spec:
  podCIDR: 10.244.1.0/24
  providerID: aws:///eu-west-1a/i-0123
  taints:
  - {key: node.kubernetes.io/not-ready, effect: NoSchedule}
  - {key: node.kubernetes.io/not-ready, effect: NoExecute, timeAdded: "2026-01-01T00:00:00Z"}
status:
  addresses:
  - {type: InternalIP, address: 192.0.2.7}
  - {type: InternalIP, address: "2001:db8::7"}
  - {type: Hostname, address: node-1}
  capacity: {cpu: "4", memory: 16Gi, ephemeral-storage: 100Gi, hugepages-2Mi: "0", pods: "110", example.com/gpu: "2", attachable-volumes-aws-ebs: "39"}
  allocatable: {cpu: 3920m, memory: 15Gi, ephemeral-storage: "95551679124", hugepages-2Mi: "0", pods: "110", example.com/gpu: "2"}
  conditions:
  - {type: MemoryPressure, status: "False", reason: KubeletHasSufficientMemory}
  - {type: DiskPressure, status: "False"}
  - {type: PIDPressure, status: "False"}
  - {type: Ready, status: "True", reason: KubeletReady}
  daemonEndpoints: {kubeletEndpoint: {Port: 10250}}
  nodeInfo: {machineID: a, systemUUID: b, bootID: c, kernelVersion: 6.12.0, osImage: Debian, containerRuntimeVersion: containerd://2.1.0,
    kubeletVersion: v1.37.2, kubeProxyVersion: "", operatingSystem: linux, architecture: amd64}
  images: [{names: [nginx], sizeBytes: 1}]
  runtimeHandlers: [{name: "", features: {recursiveReadOnlyMounts: true, userNamespaces: true}}, {name: runc}]
  features: {supplementalGroupsPolicy: true}
`

func goodNode(t testing.TB) func() *corev1.Node {
	return func() *corev1.Node { return defaulted[corev1.Node](t, kubeletNode) }
}

func TestValidateNode(t *testing.T) {
	t.Parallel()
	type node = *corev1.Node
	taint := func(list ...corev1.Taint) func(node) { return func(n node) { n.Spec.Taints = list } }
	cidrs := func(list ...string) func(node) {
		return func(n node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = list[0], list }
	}
	mutate(t, goodNode(t), validateNode, []mutation[node]{
		{"taint", taint(corev1.Taint{Key: "a.b/c", Value: "d", Effect: "PreferNoSchedule"}), nil},
		{"same key, two effects", taint(corev1.Taint{Key: "a", Effect: "NoSchedule"}, corev1.Taint{Key: "a", Effect: "NoExecute"}), nil},
		{
			"same taint twice", taint(corev1.Taint{Key: "a", Value: "x", Effect: "NoSchedule"}, corev1.Taint{Key: "a", Value: "y", Effect: "NoSchedule"}),
			bad(`spec.taints[1]: Duplicate value: {"key":"a","value":"y","effect":"NoSchedule"}: taints must be unique by key and effect pair`),
		},
		{
			"taint without key", taint(corev1.Taint{Effect: "NoSchedule"}),
			bad("spec.taints[0].key: Invalid value: \"\": name part must be non-empty", "spec.taints[0].key: Invalid value: \"\": name part must consist of"),
		},
		{"taint key", taint(corev1.Taint{Key: "a b", Effect: "NoSchedule"}), bad(`spec.taints[0].key: Invalid value: "a b"`)},
		{"taint value", taint(corev1.Taint{Key: "a", Value: "b c", Effect: "NoSchedule"}), bad(`spec.taints[0].value: Invalid value: "b c"`)},
		{"taint without effect", taint(corev1.Taint{Key: "a"}), bad("spec.taints[0].effect: Required value")},
		{"taint effect", taint(corev1.Taint{Key: "a", Effect: "Evict"}), bad(`spec.taints[0].effect: Unsupported value: "Evict": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`)},

		{"dual stack", cidrs("10.0.0.0/24", "fd00::/64"), nil},
		{"range", cidrs("10.0.0.0"), bad(`spec.podCIDRs[0]: Invalid value: "10.0.0.0": must be a valid CIDR value`)},
		{"two ranges of a family", cidrs("10.0.0.0/24", "10.0.1.0/24"), bad(`spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one CIDR for each IP family`)},
		{"three ranges", cidrs("10.0.0.0/24", "fd00::/64", "fd01::/64"), bad("spec.podCIDRs: Invalid value")},
		{"ranges disagree", func(n node) { n.Spec.PodCIDR = "10.244.9.0/24" }, bad("spec.podCIDRs[0]: Invalid value: [\"10.244.1.0/24\"]: must be equal to spec.podCIDR")},

		{"negative capacity", func(n node) { n.Status.Capacity["cpu"] = quantity("-1") }, bad(`status.capacity[cpu]: Invalid value: "-1": must be greater than or equal to 0`)},
		{"negative allocatable", func(n node) { n.Status.Allocatable["memory"] = quantity("-1") }, bad(`status.allocatable[memory]: Invalid value: "-1"`)},
		{"half a pod", func(n node) { n.Status.Capacity["pods"] = quantity("1500m") }, bad(`status.capacity[pods]: Invalid value: "1500m": must be an integer`)},
		{"half a device", func(n node) { n.Status.Capacity["example.com/gpu"] = quantity("0.5") }, bad(`status.capacity[example.com/gpu]: Invalid value: "500m": must be an integer`)},
		{
			"address twice", func(n node) { n.Status.Addresses = append(n.Status.Addresses, n.Status.Addresses[0]) },
			bad(`status.addresses[3]: Duplicate value: {"type":"InternalIP","address":"192.0.2.7"}`),
		},
		{"condition without type", func(n node) { n.Status.Conditions[0].Type = "" }, bad("status.conditions[0].type: Required value")},
		{"condition twice", func(n node) { n.Status.Conditions[0].Type = corev1.NodeReady }, bad(`status.conditions[3].type: Duplicate value: "Ready"`)},
		{"condition status", func(n node) { n.Status.Conditions[0].Status = "yes" }, bad(`status.conditions[0].status: Unsupported value: "yes": supported values: "True", "False", "Unknown"`)},
	})
}

func TestValidateNodeUpdate(t *testing.T) {
	t.Parallel()
	type node = *corev1.Node
	mutateUpdate(t, goodNode(t), validateNodeUpdate, []mutation[node]{
		{"cordon", func(n node) { n.Spec.Unschedulable = true }, nil},
		{"taints", func(n node) { n.Spec.Taints = nil }, nil},
		{"bad taints", func(n node) { n.Spec.Taints[0].Effect = "" }, bad("spec.taints[0].effect: Required value")},
		{
			"range", func(n node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.244.2.0/24", []string{"10.244.2.0/24"} },
			bad("spec.podCIDRs[0]: Forbidden: node updates may not change podCIDR except from \"\" to valid"),
		},
		{"no range", func(n node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil }, bad("spec.podCIDRs: Forbidden")},
		{"one more range", func(n node) { n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "fd00::/64") }, bad("spec.podCIDRs: Forbidden")},
		{"provider", func(n node) { n.Spec.ProviderID = "x" }, bad("spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid")},
		{"no provider", func(n node) { n.Spec.ProviderID = "" }, bad("spec.providerID: Forbidden")},
	})
	bare := func() node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}} }
	mutateUpdate(t, bare, validateNodeUpdate, []mutation[node]{
		{"first range", func(n node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.0.0.0/24", []string{"10.0.0.0/24"} }, nil},
		{"first provider", func(n node) { n.Spec.ProviderID = "x" }, nil},
	})
}

func TestValidateNodeStatusUpdate(t *testing.T) {
	t.Parallel()
	type node = *corev1.Node
	mutateUpdate(t, goodNode(t), validateNodeStatusUpdate, []mutation[node]{
		{"all new", func(n node) { n.Status = corev1.NodeStatus{} }, nil},
		{"negative", func(n node) { n.Status.Allocatable["cpu"] = quantity("-1m") }, bad("status.allocatable[cpu]: Invalid value")},
	})
}

// TestNames tries the names that the node chapter of the documentation and its
// readers try.
func TestNames(t *testing.T) {
	t.Parallel()
	name := func(group, kind, name string) field.ErrorList {
		m := &metav1.ObjectMeta{Name: name}
		return apimachineryvalidation.ValidateObjectMeta(m, false, NameFunc(schema.GroupKind{Group: group, Kind: kind}), field.NewPath("metadata"))
	}
	for _, c := range []struct {
		group, kind, name string
		want              []string
	}{
		{"", "Node", "10.240.79.157", nil},
		{"", "Node", "a.b-c.d", nil},
		{"", "Node", long(63) + "." + long(63) + "." + long(63) + "." + long(61), nil},
		{"", "Node", "Node_1", bad("metadata.name: Invalid value")},
		{"", "Node", "-a", bad("metadata.name: Invalid value")},
		{"", "Node", "a..b", bad("metadata.name: Invalid value")},
		{"", "Node", "UPPER", bad("metadata.name: Invalid value")},
		{"", "Node", long(254), bad("metadata.name: Invalid value: \"" + long(254) + "\": must be no more than 253")},
		{"", "Node", "", bad("metadata.name: Required value: name or generateName is required")},
		{"", "Namespace", "a.b", bad("metadata.name: Invalid value")},
		{"", "Namespace", "kube-system", nil},
		{"", "Service", "web", nil},
		{"", "Service", "a.b", bad("metadata.name: Invalid value")},
		{"", "Pod", "a.b", nil},
		{"rbac.authorization.k8s.io", "ClusterRole", "system:node", nil},
		{"rbac.authorization.k8s.io", "ClusterRole", "a/b", bad("metadata.name: Invalid value")},
		{"certificates.k8s.io", "CertificateSigningRequest", "Any Name", nil},
		{"networking.k8s.io", "IPAddress", "10.0.0.1", nil},
		{"networking.k8s.io", "IPAddress", "2001:DB8::1", bad("metadata.name: Invalid value")},
		{"apps", "Deployment", "web", nil},
	} {
		t.Run(c.kind+" "+c.name[:min(len(c.name), 20)], func(t *testing.T) {
			t.Parallel()
			check(t, name(c.group, c.kind, c.name), c.want...)
		})
	}
	if errs := pathSegment("a/", true); len(errs) == 0 {
		t.Error("a prefix with a slash is accepted")
	}
}

// TestOwners has the rules for owner references that every kind shares.
func TestOwners(t *testing.T) {
	t.Parallel()
	type meta = *metav1.ObjectMeta
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "u", Controller: ptr(true)}
	fresh := func() meta { return &metav1.ObjectMeta{Name: "p", OwnerReferences: []metav1.OwnerReference{owner}} }
	rule := func(m meta) field.ErrorList {
		return apimachineryvalidation.ValidateObjectMeta(m, false, NameFunc(schema.GroupKind{Kind: "Pod"}), field.NewPath("metadata"))
	}
	mutate(t, fresh, rule, []mutation[meta]{
		{"empty", func(m meta) { m.OwnerReferences[0] = metav1.OwnerReference{} }, bad("metadata.ownerReferences[0].apiVersion: Required value",
			"metadata.ownerReferences[0].kind: Required value", "metadata.ownerReferences[0].name: Required value", "metadata.ownerReferences[0].uid: Required value")},
		{"two controllers", func(m meta) { m.OwnerReferences = append(m.OwnerReferences, owner) }, bad("metadata.ownerReferences: Invalid value")},
		{"two owners", func(m meta) {
			other := owner
			other.Controller = nil
			m.OwnerReferences = append(m.OwnerReferences, other)
		}, nil},
	})
}
