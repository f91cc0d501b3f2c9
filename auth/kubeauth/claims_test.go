package kubeauth

// Tests of the table of claims: for each line a refused write, an accepted write, or the
// other place where the line is enforced.

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"
)

// A trial is a write of node-1, or of who, for a line of the table.
type trial struct {
	kind string
	who  string // empty: node-1
	w    submission
}

func (tr trial) attributes() admission.Attributes {
	who := tr.who
	if who == "" {
		who = "node-1"
	}
	return tr.w.attributes(who)
}

// owned are owner references to another user's object.
func owned() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "db", UID: "u", BlockOwnerDeletion: ptr.To(true)}}
}

// nodeOwned is an owner reference to a node, as kubelets set it.
func nodeOwned(name string, blocks bool) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: "n1", BlockOwnerDeletion: ptr.To(blocks)}}
}

func makes(n *corev1.Node) submission { return submission{op: admission.Create, gvr: nodesR, obj: n} }

func updates(old, n *corev1.Node) submission {
	return submission{op: admission.Update, gvr: nodesR, name: old.Name, obj: n, old: old}
}

func reports(old, n *corev1.Node) submission {
	w := updates(old, n)
	w.sub = "status"
	return w
}

// allWays are the three writes that could change a Node from was to is.
func allWays(kind string, was, is func(*corev1.Node)) []trial {
	old, now := node("node-1", was), node("node-1", is)
	return []trial{{kind: kind, w: makes(now)}, {kind: kind, w: updates(old, now)}, {kind: kind, w: reports(old, now)}}
}

// twoWays are those for an existing Node.
func twoWays(kind string, was, is func(*corev1.Node)) []trial { return allWays(kind, was, is)[1:] }

func annotated(key string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations = map[string]string{key: "x"} }
}

func condition(kind corev1.NodeConditionType, status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status})
	}
}

func address(a ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, a := range a {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
	}
}

func ranged(texts ...string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = texts[0], texts }
}

func nodeAttacks() []trial {
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	}
	source := func(n *corev1.Node) { n.Spec.ConfigSource = &corev1.NodeConfigSource{} } //nolint:staticcheck // unused, but still in the type
	finalizer := func(n *corev1.Node) { n.Finalizers = []string{"example.com/never"} }
	owner := func(n *corev1.Node) { n.OwnerReferences = owned() }
	cidr := func(n *corev1.Node) { n.Spec.PodCIDR = "0.0.0.0/0" }
	provider := func(id string) func(*corev1.Node) { return func(n *corev1.Node) { n.Spec.ProviderID = id } }
	volumes := func(n *corev1.Node) { n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}} }
	list := slices.Concat(
		[]trial{{kind: "node.name", w: makes(node("node-2", nil))}, {kind: "node.name", w: reports(node("node-2", nil), node("node-2", nil))}},
		allWays("node.configSource", nil, source),
		twoWays("node.taints", nil, taint), twoWays("node.taints", taint, nil),
		allWays("node.ownerReferences", nil, owner), twoWays("node.ownerReferences", owner, nil),
		allWays("node.finalizers", nil, finalizer), twoWays("node.finalizers", finalizer, nil),
		allWays("node.labels.site", nil, label("node-restriction.kubernetes.io/site", "berlin")),
		twoWays("node.labels.site", label("node-restriction.kubernetes.io/site", "a"), label("node-restriction.kubernetes.io/site", "b")),
		twoWays("node.labels.site", label("node-restriction.kubernetes.io/site", "a"), nil),
		allWays("node.labels", nil, label("hawser.dev/site", "x")), allWays("node.labels", nil, label("site.hawser.dev/x", "x")),
		allWays("node.labels", nil, label("node-restriction.kubernetes.io/team", "x")),
		allWays("node.annotations.hawser", nil, annotated("node.hawser.dev/autonomy-duration")),
		allWays("node.annotations.hawser", nil, annotated("site.hawser.dev/autonomy-duration")),
		allWays("node.annotations.hawser", nil, annotated("hawser.dev/anything")), allWays("node.annotations.hawser", nil, annotated("a.b.hawser.dev/x")),
		allWays("node.annotations.hawser", nil, annotated("node-restriction.kubernetes.io/x")),
		twoWays("node.annotations.hawser", annotated("node.hawser.dev/autonomy-duration"), nil),
		allWays("node.podCIDR", nil, ranged("0.0.0.0/0")), allWays("node.podCIDR", nil, ranged("10.244.1.0/24", "fd00::/64")),
		allWays("node.podCIDR", nil, cidr), twoWays("node.podCIDR", ranged("10.244.1.0/24"), ranged("10.244.2.0/24")), twoWays("node.podCIDR", ranged("10.244.1.0/24"), nil),
		twoWays("node.providerID", provider("cloud://a"), provider("cloud://b")), twoWays("node.providerID", provider("cloud://a"), nil),
		allWays("node.conditions.hawser", nil, condition("hawser.dev/TunnelConnected", corev1.ConditionTrue)),
		allWays("node.conditions.hawser", nil, condition("hawser.dev/DataPathReady", corev1.ConditionTrue)),
		twoWays("node.conditions.hawser", condition("hawser.dev/TunnelConnected", "False"), condition("hawser.dev/TunnelConnected", "True")),
		twoWays("node.conditions.hawser", condition("hawser.dev/TunnelConnected", "False"), nil),
		allWays("node.volumesAttached", nil, volumes),
	)
	for _, key := range placeLabels {
		list = append(list, twoWays("node.labels.zone", label(key, "a"), label(key, "b"))...)
		list = append(list, twoWays("node.labels.zone", nil, label(key, "a"))...)
		list = append(list, twoWays("node.labels.zone", label(key, "a"), nil)...)
	}
	for _, ip := range []string{"127.0.0.1", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "::", "255.255.255.255", "::ffff:127.0.0.1", "127.8.8.8"} {
		list = append(list, allWays("node.addresses", address("10.0.0.1"), address("10.0.0.1", ip))...)
	}
	list = append(list, allWays("node.size", nil, func(n *corev1.Node) {
		n.Annotations = map[string]string{"example.com/x": strings.Repeat("x", nodeSize)}
	})...)
	for _, b := range bounds {
		list = append(list, trial{kind: "node.counts", w: makes(node("node-1", fill(b.name, b.most+1)))})
	}
	return list
}

// fill gives a node n entries in a list, by the list's name.
func fill(name string, n int) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Labels, node.Annotations = map[string]string{}, map[string]string{}
		node.Status.Capacity, node.Status.Allocatable = corev1.ResourceList{}, corev1.ResourceList{}
		for i := range n {
			key := fmt.Sprintf("example.com/k%d", i)
			switch name {
			case "metadata.labels":
				node.Labels[key] = "x"
			case "metadata.annotations":
				node.Annotations[key] = "x"
			case "spec.taints":
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key})
			case "status.addresses":
				address("10.0.0.1")(node)
			case "status.conditions":
				condition(corev1.NodeConditionType(key), "True")(node)
			case "status.capacity":
				node.Status.Capacity[corev1.ResourceName(key)] = *ptrQuantity()
			case "status.allocatable":
				node.Status.Allocatable[corev1.ResourceName(key)] = *ptrQuantity()
			case "status.images":
				node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{key}})
			case "status.volumesInUse":
				node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName(key))
			case "status.runtimeHandlers":
				node.Status.RuntimeHandlers = append(node.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: key})
			}
		}
	}
}

func podAttacks() []trial {
	own, db := lesson(nil), simplePod("ns", "db", "node-2", "db")
	status := func(kind string, change func(*corev1.Pod)) trial {
		return trial{kind: kind, w: submission{op: admission.Update, gvr: podsR, sub: "status", ns: "ns", name: "web", old: own, obj: lesson(change)}}
	}
	other := func(kind string, op admission.Operation, sub string) trial {
		return trial{kind: kind, w: submission{op: op, gvr: podsR, sub: sub, ns: "ns", name: "db", old: db, obj: db}}
	}
	ip := func(change func(*corev1.PodStatus)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Status) }
	}
	has := func(name corev1.ResourceName, amount string, where func(*corev1.PodStatus, corev1.ResourceList)) func(*corev1.Pod) {
		return ip(func(s *corev1.PodStatus) { where(s, corev1.ResourceList{name: resource.MustParse(amount)}) })
	}
	return []trial{
		other("pod.subresource", admission.Update, ""), other("pod.subresource", admission.Create, "binding"),
		other("pod.subresource", admission.Update, "ephemeralcontainers"), other("pod.subresource", admission.Update, "resize"), other("pod.subresource", admission.Create, "exec"),
		other("pod.delete", admission.Delete, ""), other("pod.status", admission.Update, "status"),
		status("pod.labels", func(p *corev1.Pod) { p.Labels["app"] = "db" }), status("pod.labels", func(p *corev1.Pod) { p.Labels = nil }),
		status("pod.annotations", func(p *corev1.Pod) {
			p.Annotations = map[string]string{"controller.kubernetes.io/pod-deletion-cost": "9"}
		}),
		status("pod.size", func(p *corev1.Pod) { p.Status.Message = strings.Repeat("x", statusSize) }),
		status("pod.size", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ImageID: strings.Repeat("x", statusSize)}}
		}),
		status("pod.finalizers", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/never"} }),
		status("pod.ownerReferences", func(p *corev1.Pod) { p.OwnerReferences = owned() }),
		status("pod.resourceClaimStatuses", func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x"}}
		}),
		status("pod.resources", has("cpu", "-1", func(s *corev1.PodStatus, l corev1.ResourceList) { s.AllocatedResources = l })),
		status("pod.resources", has("example.com/x", "1", func(s *corev1.PodStatus, l corev1.ResourceList) {
			s.Resources = &corev1.ResourceRequirements{Requests: l}
		})),
		status("pod.resources", has("memory", "-1", func(s *corev1.PodStatus, l corev1.ResourceList) {
			s.Resources = &corev1.ResourceRequirements{Limits: l}
		})),
		status("pod.resources", has("example.com/x", "1", func(s *corev1.PodStatus, l corev1.ResourceList) {
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "c"}, {Name: "d", AllocatedResources: l}}
		})),
		status("pod.resources", has("cpu", "-1m", func(s *corev1.PodStatus, l corev1.ResourceList) {
			s.InitContainerStatuses = []corev1.ContainerStatus{{Name: "c", Resources: &corev1.ResourceRequirements{Requests: l}}}
		})),
		status("pod.resources", has("example.com/x", "0", func(s *corev1.PodStatus, l corev1.ResourceList) {
			s.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "c", Resources: &corev1.ResourceRequirements{Limits: l}}}
		})),
		status("pod.addresses", ip(func(s *corev1.PodStatus) { s.PodIP = "127.0.0.1" })),
		status("pod.addresses", ip(func(s *corev1.PodStatus) { s.PodIPs = []corev1.PodIP{{IP: "10.0.0.9"}, {IP: "169.254.169.254"}} })),
		status("pod.addresses", ip(func(s *corev1.PodStatus) { s.HostIP = "::" })),
		status("pod.addresses", ip(func(s *corev1.PodStatus) { s.HostIPs = []corev1.HostIP{{IP: "fe80::1"}} })),
		{kind: "eviction", w: submission{op: admission.Create, gvr: podsR, sub: "eviction", ns: "ns", name: "db", obj: &policyv1.Eviction{}}},
		{kind: "token", who: "node-2", w: submission{op: admission.Create, gvr: tokensR, sub: "token", ns: "ns", name: "builder", obj: boundToken(nil)}},
		{kind: "token.audience", w: submission{op: admission.Create, gvr: tokensR, sub: "token", ns: "ns", name: "builder", obj: forBank()}},
	}
}

func mirrorAttacks() []trial {
	shows := func(kind string, change func(*corev1.Pod)) trial {
		return trial{kind: kind, w: submission{op: admission.Create, gvr: podsR, ns: "ns", obj: mirror(change)}}
	}
	anti := &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{}, TopologyKey: "kubernetes.io/os",
	}}}}
	return []trial{
		shows("mirror", func(p *corev1.Pod) { p.Annotations = nil }), shows("mirror", func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }),
		shows("mirror.name", func(p *corev1.Pod) { p.Name = "db-0" }), shows("mirror.name", func(p *corev1.Pod) { p.Name = "db-anode-1" }),
		shows("mirror.name", func(p *corev1.Pod) { p.Name, p.GenerateName = "", "db-" }), shows("mirror.name", func(p *corev1.Pod) { p.Name = "node-1" }),
		shows("mirror.references", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "builder" }),
		shows("mirror.labels", func(p *corev1.Pod) { p.Labels = map[string]string{"k8s-app": "kube-dns"} }),
		shows("mirror.affinity", func(p *corev1.Pod) { p.Spec.Affinity = anti }),
		shows("mirror.affinity", func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}} }),
		shows("mirror.finalizers", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/never"} }),
		shows("mirror.size", func(p *corev1.Pod) { p.Annotations["example.com/x"] = strings.Repeat("x", mirrorSize) }),
		shows("mirror.size", func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{strings.Repeat("x", mirrorSize)} }),
		shows("mirror.owner", func(p *corev1.Pod) { p.OwnerReferences = owned() }),
		shows("mirror.owner", func(p *corev1.Pod) { p.OwnerReferences[0].UID = "old" }),
		shows("mirror.owner", func(p *corev1.Pod) { p.OwnerReferences[0].BlockOwnerDeletion = ptr.To(true) }),
	}
}

func attacks(t *testing.T) []trial {
	return slices.Concat(nodeAttacks(), podAttacks(), mirrorAttacks(), otherAttacks(t))
}

// honest are the usual writes of nodes, and writes that affect only the node itself.
func honest(t *testing.T) []trial {
	own := lesson(nil)
	status := func(change func(*corev1.Pod)) submission {
		return submission{op: admission.Update, gvr: podsR, sub: "status", ns: "ns", name: "web", old: own, obj: lesson(change)}
	}
	zone := label("topology.kubernetes.io/zone", "a")
	kept := func(n *corev1.Node) { // what an administrator and the control plane have set
		zone(n)
		label("node-restriction.kubernetes.io/site", "a")(n)
		ranged("10.244.1.0/24")(n)
		condition("hawser.dev/TunnelConnected", "True")(n)
		annotated("node.hawser.dev/autonomy-duration")(n)
		n.Finalizers, n.OwnerReferences = []string{"example.com/x"}, owned()
	}
	ready := func(n *corev1.Node) {
		kept(n)
		condition(corev1.NodeReady, "True")(n)
		n.Spec.Unschedulable = true
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10251
		n.Status.NodeInfo.MachineID = "x"
		n.Status.Capacity = corev1.ResourceList{"example.com/gpu": *ptrQuantity()}
		address("10.0.0.1", "fd00::1", "node-1.example.com")(n)
	}
	lease := func(change func(*coordinationv1.Lease)) submission {
		return submission{op: admission.Update, gvr: leasesR, ns: nodeLeases, name: "node-1", obj: leaseOf(change), old: leaseOf(nil)}
	}
	tells := func(change func(*corev1.Event)) submission {
		return submission{op: admission.Create, gvr: eventsR, ns: "default", obj: event(change)}
	}
	about := func(name string) submission {
		return tells(func(e *corev1.Event) {
			e.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: name}
		})
	}
	csi := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1", OwnerReferences: nodeOwned("node-1", false)}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: "d", NodeID: "i"}},
	}}
	asks := csrFor(t, "system:node:node-1", "system:nodes", certificatesv1.KubeAPIServerClientKubeletSignerName)
	asks.Name = "alice"
	return []trial{
		{kind: "node.name", w: makes(node("node-1", zone))},
		{kind: "node.unschedulable", w: updates(node("node-1", kept), node("node-1", ready))},
		{kind: "node.conditions", w: reports(node("node-1", kept), node("node-1", ready))},
		{kind: "node.capacity", w: reports(node("node-1", kept), node("node-1", ready))},
		{kind: "node.kubeletPort", w: reports(node("node-1", kept), node("node-1", ready))},
		{kind: "node.nodeInfo", w: reports(node("node-1", kept), node("node-1", ready))},
		{kind: "node.labels.own", w: updates(node("node-1", nil), node("node-1", label("example.com/rack", "9")))},
		{kind: "node.annotations.transport", w: updates(node("node-1", nil), node("node-1", annotated("hawser.dev/transport")))},
		{kind: "node.annotations.own", w: updates(node("node-1", nil), node("node-1", annotated("volumes.kubernetes.io/controller-managed-attach-detach")))},
		{kind: "node.annotations.own", w: updates(node("node-1", nil), node("node-1", annotated("nothawser.dev/x")))},
		{kind: "node.providerID", w: updates(node("node-1", nil), node("node-1", func(n *corev1.Node) { n.Spec.ProviderID = "cloud://a" }))},
		{kind: "node.counts", w: reports(node("node-1", fill("status.images", 1500)), node("node-1", fill("status.images", 1400)))},
		{kind: "node.addresses", w: reports(node("node-1", address("127.0.0.1")), node("node-1", address("127.0.0.1")))},
		{kind: "node.size", w: reports(node("node-1", nil), node("node-1", fill("status.images", 1000)))},
		{kind: "pod.size", w: status(func(p *corev1.Pod) { p.Status.Message = strings.Repeat("x", 200<<10) })},
		{kind: "pod.conditions", w: status(func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: "True"}}
		})},
		{kind: "pod.resources", w: status(func(p *corev1.Pod) {
			few := corev1.ResourceList{"cpu": *ptrQuantity(), "memory": *ptrQuantity(), "example.com/x": *ptrQuantity()}
			p.Spec.Containers[0].Resources.Limits = few
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, AllocatedResources: few, Resources: &corev1.ResourceRequirements{Requests: few, Limits: few}}}
			p.Status.AllocatedResources = few
		})},
		{kind: "pod.addresses", w: status(func(p *corev1.Pod) { p.Status.PodIP = "10.244.2.9" })},
		{kind: "mirror", w: submission{op: admission.Create, gvr: podsR, ns: "ns", obj: mirror(nil)}},
		{kind: "lease.times", w: lease(func(l *coordinationv1.Lease) { l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Unix(1<<33, 0))) })},
		{kind: "lease.owners", w: lease(nil)},
		{kind: "csinode.drivers", w: submission{op: admission.Create, gvr: csiR, obj: csi}},
		{kind: "volumeclaim.expanded", w: expanding(expanded)},
		{kind: "event.about", w: tells(nil)},
		{kind: "event.size", w: tells(func(e *corev1.Event) { e.Message = strings.Repeat("x", 10<<10) })}, // what a kubelet says of a probe
		{kind: "event.about", w: about("web")},
		{kind: "event.about", w: about("gone")},
		{kind: "event.source", w: tells(func(e *corev1.Event) { e.ReportingInstance = "" })},
		{kind: "event.source", w: tells(func(e *corev1.Event) { e.Source.Host = "" })},
		{kind: "request.name", w: submission{op: admission.Create, gvr: requestR, obj: asks}},
	}
}

// TestClaims tries each line of the table.
func TestClaims(t *testing.T) {
	o, _ := objects(t, cluster()...)
	reg := prometheus.NewRegistry()
	plugin := restrict(t, RestrictionConfig{Objects: o, Metrics: reg})
	// These have tests of their own.
	tried, passed := map[string]bool{"mirror.count": true, "event.rate": true, "request.rate": true, "node.rate": true, "pod.rate": true}, map[string]bool{}
	for _, tr := range attacks(t) {
		i := slices.IndexFunc(claims, func(c claim) bool { return c.kind == tr.kind })
		if i < 0 {
			t.Fatalf("no line is called %s", tr.kind)
		}
		line := &claims[i]
		before := countOf(t, reg, tr.kind)
		err := plugin.Validate(t.Context(), tr.attributes(), nil)
		var status *apierrors.StatusError
		switch {
		case !apierrors.IsForbidden(err) || !errors.As(err, &status):
			t.Errorf("%s: %s of %s %s: got %v, want 403", tr.kind, tr.w.op, tr.w.gvr.Resource, tr.w.sub, err)
			continue
		case countOf(t, reg, tr.kind) != before+1:
			t.Errorf("%s: counted as another: %v", tr.kind, err)
		case !strings.Contains(err.Error(), line.field) || !strings.Contains(err.Error(), line.remedy):
			t.Errorf("%s: names no field, or no remedy: %v", tr.kind, err)
		case len(status.ErrStatus.Details.Causes) != 1 || status.ErrStatus.Details.Causes[0].Field != line.field:
			t.Errorf("%s: causes %+v", tr.kind, status.ErrStatus.Details.Causes)
		}
		tried[tr.kind] = true
	}
	for _, tr := range honest(t) {
		if err := plugin.Validate(t.Context(), tr.attributes(), nil); err != nil {
			t.Errorf("%s: refused what is honest: %v", tr.kind, err)
		}
		passed[tr.kind] = true
	}
	for _, c := range claims {
		switch {
		case c.proof != "":
			proven(t, c)
		case c.verdict == accepted && !passed[c.kind]:
			t.Errorf("%s is accepted, and nothing shows it", c.kind)
		case c.verdict != accepted && !tried[c.kind]:
			t.Errorf("%s is %s, and nobody has tried", c.kind, c.verdict)
		}
	}
}

func countOf(t *testing.T, reg *prometheus.Registry, kind string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "hawser_node_claims_refused_total" && m.GetLabel()[0].GetValue() == kind {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// proven checks that the test in a line exists.
func proven(t *testing.T, c claim) {
	t.Helper()
	file, name, _ := strings.Cut(c.proof, ":")
	syntax, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", filepath.FromSlash(file)), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", c.kind, err)
		return
	}
	for _, d := range syntax.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name {
			return
		}
	}
	t.Errorf("%s: %s has no %s", c.kind, file, name)
}

// TestTableOfClaims: every line is complete.
func TestTableOfClaims(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range claims {
		switch {
		case seen[c.kind]:
			t.Errorf("%s: two lines have this name", c.kind)
		case c.field == "" || c.moves == "":
			t.Errorf("%s: says nothing of its field, or of whom it moves", c.kind)
		case c.verdict == accepted && (c.check != nil || c.remedy != ""):
			t.Errorf("%s: is accepted, and checked", c.kind)
		case c.verdict != accepted && c.check == nil && c.proof == "":
			t.Errorf("%s: is %s by nobody", c.kind, c.verdict)
		case c.check != nil && (c.remedy == "" || len(c.at) == 0):
			t.Errorf("%s: has no remedy, or no place", c.kind)
		}
		seen[c.kind] = true
	}
	if n := testutil.CollectAndCount(mustCounter(t)); n != 0 {
		t.Errorf("%d values before anything was refused", n)
	}
}

func mustCounter(t *testing.T) *prometheus.CounterVec {
	t.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	return m.refused
}
