package kubeauth

// Cases of Kubernetes' tests of its NodeRestriction and its node authorizer that no other
// table here has. A case says so if Hawser differs.

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	kubeletapis "k8s.io/kubelet/pkg/apis"
	"k8s.io/utils/ptr"
)

var claimsR = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")

func TestKubernetesFacts(t *testing.T) {
	o, _ := objects(t, append(cluster(),
		mirror(func(p *corev1.Pod) { p.Name = "known-node-1" }),
		simplePod("ns", "free", "", "free"),
		simplePod("ns", "own", "node-1", "own"),
	)...)
	plugin := restrict(t, RestrictionConfig{Objects: o})
	for _, tc := range slices.Concat(podFacts(), ownerFacts(), nodeFacts(), labelFacts(), otherFacts()) {
		t.Run(tc.name, func(t *testing.T) {
			err := plugin.Validate(t.Context(), tc.w.attributes(tc.who), nil)
			switch {
			case tc.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("%v, want %q", err, tc.says)
			case tc.says != "" && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
				t.Errorf("%v is neither 403 nor 404", err)
			}
		})
	}
}

// podFacts is each operation on each of a node's, another node's and unbound pods.
func podFacts() []restrictionCase {
	var out []restrictionCase
	for _, p := range []struct {
		name, node string
		mirror     bool
	}{
		{"known-node-1", "node-1", true},
		{"known-node-2", "node-2", true},
		{"known-", "", true},
		{"own", "node-1", false},
		{"db", "node-2", false},
		{"free", "", false},
	} {
		pod := simplePod("ns", p.name, p.node, p.name)
		if p.mirror {
			pod = mirror(func(m *corev1.Pod) { m.Name, m.Spec.NodeName = p.name, p.node })
		}
		body := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
		own := p.node == "node-1"
		unless := func(ok bool, says string) string {
			if ok {
				return ""
			}
			return says
		}
		for _, w := range []struct {
			sub      string
			op       admission.Operation
			obj, old runtime.Object
			says     string
		}{
			{"", admission.Create, pod, nil, unless(own && p.mirror, "can only create")},
			{"", admission.Update, pod, pod, "can only create and delete mirror pods"},
			{"", admission.Delete, nil, pod, unless(own, "spec.nodeName set to itself")},
			{"status", admission.Create, pod, nil, "unexpected operation CREATE"},
			{"status", admission.Update, pod, pod, unless(own, "spec.nodeName set to itself")},
			{"status", admission.Delete, nil, pod, "unexpected operation DELETE"},
			{"eviction", admission.Update, body, body, "unexpected operation UPDATE"},
			{"eviction", admission.Delete, nil, body, "unexpected operation DELETE"},
			{"resize", admission.Update, pod, pod, "unexpected pod subresource"},
		} {
			s := submission{op: w.op, gvr: podsR, sub: w.sub, ns: "ns", name: p.name, obj: w.obj, old: w.old}
			name := fmt.Sprintf("%s pods/%s %s", w.op, w.sub, p.name)
			out = append(out, restrictionCase{name, "node-1", s, w.says}, restrictionCase{name + " by another", "alice", s, ""})
		}
	}
	evict := func(name, body string) submission {
		return submission{
			op: admission.Create, gvr: podsR, sub: "eviction", ns: "ns", name: name,
			obj: &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: body}},
		}
	}
	return append(out,
		restrictionCase{"evict own mirror pod", "node-1", evict("known-node-1", "known-node-1"), ""},
		restrictionCase{"evict own pod, unnamed", "node-1", evict("own", ""), ""},
		restrictionCase{"evict a pending pod", "node-1", evict("free", "free"), "spec.nodeName set to itself"},
		restrictionCase{"evict another's pod, unnamed", "node-1", evict("db", ""), "spec.nodeName set to itself"},
		restrictionCase{"evict an unknown pod, unnamed", "node-1", evict("gone", ""), "not found"},
	)
}

// ownerFacts is Kubernetes' table of the owners of mirror pods.
func ownerFacts() []restrictionCase {
	create := func(name string, change func(*metav1.OwnerReference), says string) restrictionCase {
		return restrictionCase{name, "node-1", submission{op: admission.Create, gvr: podsR, ns: "ns", obj: mirror(func(p *corev1.Pod) {
			change(&p.OwnerReferences[0])
		})}, says}
	}
	twice := mirror(func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0]) })
	bundle := mirror(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: ptr.To("x")}}},
		}}}}
	})
	return []restrictionCase{
		create("owner of another version", func(o *metav1.OwnerReference) { o.APIVersion = "v2" }, "an owner reference set to itself"),
		create("owner of another kind", func(o *metav1.OwnerReference) { o.Kind = "Pod" }, "an owner reference set to itself"),
		create("owner that controls not", func(o *metav1.OwnerReference) { o.Controller = ptr.To(false) }, "a controller owner reference"),
		{"two owners", "node-1", submission{op: admission.Create, gvr: podsR, ns: "ns", obj: twice}, "a single owner reference"},
		{"owner that is not there", "new-node", submission{op: admission.Create, gvr: podsR, ns: "ns", obj: mirror(func(p *corev1.Pod) {
			p.Name, p.Spec.NodeName, p.OwnerReferences[0].Name = "x-new", "new", "new"
		})}, `nodes "new" not found`},
		{"mirror pod with trust bundle", "node-1", submission{op: admission.Create, gvr: podsR, ns: "ns", obj: bundle}, "projected objects"},
	}
}

func nodeFacts() []restrictionCase {
	update := func(sub string, old, now *corev1.Node) submission {
		return submission{op: admission.Update, gvr: nodesR, sub: sub, name: "node-1", old: old, obj: now}
	}
	taint := func(value string) *corev1.Node {
		return node("node-1", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Value: value}} })
	}
	source := func(name string) *corev1.Node {
		return node("node-1", func(n *corev1.Node) {
			n.Spec.ConfigSource = &corev1.NodeConfigSource{ConfigMap: &corev1.ConfigMapNodeConfigSource{Name: name}} //nolint:staticcheck // unused, but still in the type
		})
	}
	return []restrictionCase{
		{"name from the body", "node-1", submission{op: admission.Create, gvr: nodesR, name: "", obj: node("node-1", nil)}, ""},
		{"change a taint", "node-1", update("", taint("a"), taint("b")), "is not allowed to modify taints"},
		{"change a config source", "node-1", update("", source("a"), source("b")), "update configSource to a new non-nil configSource"},
		{"keep a config source", "node-1", update("", source("a"), source("a")), ""},
		// The authorizer lets no node delete a Node.
		{"delete itself", "node-1", submission{op: admission.Delete, gvr: nodesR, name: "node-1"}, ""},
	}
}

// labelFacts is every label that Kubernetes lets a kubelet have, by its own lists.
func labelFacts() []restrictionCase {
	keys := kubeletapis.KubeletLabels()
	for _, domain := range kubeletapis.KubeletLabelNamespaces() {
		keys = append(keys, domain+"/foo", "foo."+domain+"/foo")
	}
	var out []restrictionCase
	for _, key := range keys {
		changed := ""
		if slices.Contains(placeLabels, key) {
			changed = "is not allowed to modify labels" // where Hawser is stricter: evictions go by zones
		}
		with, other := node("node-1", label(key, "a")), node("node-1", label(key, "b"))
		out = append(out,
			restrictionCase{"create with " + key, "node-1", submission{op: admission.Create, gvr: nodesR, obj: with}, ""},
			restrictionCase{"change " + key, "node-1", submission{op: admission.Update, gvr: nodesR, name: "node-1", old: with, obj: other}, changed},
		)
	}
	kept := func(change func(*corev1.Node)) *corev1.Node {
		return node("node-1", func(n *corev1.Node) { n.Labels["other.k8s.io/foo"] = "x"; change(n) })
	}
	return append(out, restrictionCase{"add a label beside another's", "node-1", submission{
		op: admission.Update, gvr: nodesR, name: "node-1", old: kept(func(*corev1.Node) {}), obj: kept(label("foo", "x")),
	}, ""})
}

func otherFacts() []restrictionCase {
	var out []restrictionCase
	for _, op := range []admission.Operation{admission.Create, admission.Update, admission.Delete} {
		name := func(s string) string { return string(op) + " " + s }
		lease := func(ns, name string) submission {
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
			return submission{op: op, gvr: leasesR, ns: ns, name: name, obj: l, old: l}
		}
		csi := func(name string) submission {
			c := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
			return submission{op: op, gvr: csiR, name: name, obj: c, old: c}
		}
		out = append(out,
			restrictionCase{name("own lease"), "node-1", lease(nodeLeases, "node-1"), ""},
			restrictionCase{name("another's lease"), "node-1", lease(nodeLeases, "node-2"), "same name as the requesting node"},
			restrictionCase{name("lease elsewhere"), "node-1", lease("foo", "node-1"), "can only access leases in"},
			restrictionCase{name("own CSINode"), "node-1", csi("node-1"), ""},
			restrictionCase{name("another's CSINode"), "node-1", csi("node-2"), "CSINode with the same name"},
			// The authorizer decides whether a node may do this at all.
			restrictionCase{name("what is not about nodes"), "node-1", submission{
				op: op, gvr: corev1.SchemeGroupVersion.WithResource("configmaps"), ns: "ns", name: "cm", obj: &corev1.ConfigMap{}, old: &corev1.ConfigMap{},
			}, ""},
		)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
	garbage := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		SignerName: certificatesv1.KubeletServingSignerName,
		Request:    []byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----"),
	}}
	return append(out,
		restrictionCase{"change a volume claim", "node-1", submission{op: admission.Update, gvr: claimsR, ns: "ns", name: "data", obj: claim, old: claim}, "may only update PVC status"},
		restrictionCase{"a claim changed by another", "alice", submission{op: admission.Update, gvr: claimsR, ns: "ns", name: "data", obj: claim, old: claim}, ""},
		restrictionCase{"an empty request", "node-1", submission{op: admission.Create, gvr: requestR, obj: garbage}, "unable to parse csr"},
	)
}
