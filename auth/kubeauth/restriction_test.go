package kubeauth

// Tests of NodeRestriction: the writes that a node may make, and the texts of refusals.

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// A submission is a request in admission.
type submission struct {
	op            admission.Operation
	gvr           schema.GroupVersionResource
	sub, ns, name string
	obj, old      runtime.Object
}

func (w submission) attributes(who string) admission.Attributes {
	var opts runtime.Object
	return admission.NewAttributesRecord(w.obj, w.old, schema.GroupVersionKind{}, w.ns, w.name, w.gvr, w.sub, w.op, opts, false, users[who])
}

var (
	podsR    = corev1.SchemeGroupVersion.WithResource("pods")
	nodesR   = corev1.SchemeGroupVersion.WithResource("nodes")
	tokensR  = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	leasesR  = coordinationv1.SchemeGroupVersion.WithResource("leases")
	csiR     = storagev1.SchemeGroupVersion.WithResource("csinodes")
	eventsR  = corev1.SchemeGroupVersion.WithResource("events")
	requestR = certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
)

func node(name string, change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/hostname": name, "disk": "ssd", "example.com/rack": "7",
	}}}
	if change != nil {
		change(n)
	}
	return n
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func unlabel(key string) func(*corev1.Node) { return func(n *corev1.Node) { delete(n.Labels, key) } }

func mirror(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "static-node-1",
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "n1", Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "c"}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func lesson(change func(*corev1.Pod)) *corev1.Pod {
	p := webPod()
	p.Labels = map[string]string{"app": "web"}
	if change != nil {
		change(p)
	}
	return p
}

func csrFor(t *testing.T, cn, org, signer string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key := pkitest.NewKey(t)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: cn, Organization: []string{org}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer,
	}}
}

func boundToken(change func(*authenticationv1.BoundObjectReference)) *authenticationv1.TokenRequest {
	ref := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "web-uid"}
	if change != nil {
		change(ref)
	}
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref}}
}

type restrictionCase struct {
	name, who string
	w         submission
	says      string // empty: allowed
}

// restrict returns the plugin.
func restrict(t testing.TB, c RestrictionConfig) admission.ValidationInterface {
	t.Helper()
	p, err := NodeRestriction(c)
	if err != nil {
		t.Fatal(err)
	}
	plugin, ok := p.(admission.ValidationInterface)
	if !ok {
		t.Fatal("the plugin does not validate")
	}
	return plugin
}

func TestNodeRestriction(t *testing.T) {
	o, _ := objects(t, cluster()...)
	plugin := restrict(t, RestrictionConfig{Objects: o})
	var cases []restrictionCase
	cases = append(cases, nodeCases()...)
	cases = append(cases, labelCases()...)
	cases = append(cases, podCases()...)
	cases = append(cases, otherCases()...)
	cases = append(cases, requestCases(t)...)
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if !plugin.Handles(tc.w.op) {
				t.Fatalf("does not handle %s", tc.w.op)
			}
			err := plugin.Validate(t.Context(), tc.w.attributes(tc.who), nil)
			switch {
			case tc.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.says != "" && err == nil:
				t.Errorf("allowed, want %q", tc.says)
			case tc.says != "" && !strings.Contains(err.Error(), tc.says):
				t.Errorf("says %q, want %q", err, tc.says)
			case tc.says != "" && !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err) && !apierrors.IsNotFound(err):
				t.Errorf("%v is no proper refusal", err)
			}
		})
	}
}

func nodeCases() []restrictionCase {
	create := func(n *corev1.Node) submission { return submission{op: admission.Create, gvr: nodesR, obj: n} }
	update := func(sub string, old, n *corev1.Node) submission {
		return submission{op: admission.Update, gvr: nodesR, sub: sub, name: old.Name, obj: n, old: old}
	}
	own := node("node-1", nil)
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	}
	source := func(n *corev1.Node) { n.Spec.ConfigSource = &corev1.NodeConfigSource{} } //nolint:staticcheck // unused, but still in the type
	return []restrictionCase{
		{"node creates itself", "node-1", create(own), ""},
		{"node creates itself with taints", "node-1", create(node("node-1", taint)), ""},
		{"node creates another", "node-1", create(node("node-2", nil)), `node "node-1" is not allowed to modify node "node-2"`},
		{"node creates itself with a config source", "node-1", create(node("node-1", source)), "configSource"},
		{"admin creates any", "admin", create(node("node-2", label("node-role.kubernetes.io/x", ""))), ""},
		{"unnamed node", "unnamed", create(own), "could not determine node from user"},
		{"node updates itself", "node-1", update("", own, node("node-1", func(n *corev1.Node) { n.Spec.Unschedulable = true })), ""},
		{"node updates its status", "node-1", update("status", own, node("node-1", func(n *corev1.Node) { n.Status.Phase = "x" })), ""},
		{"node updates another", "node-1", update("", node("node-2", nil), node("node-2", nil)), `is not allowed to modify node "node-2"`},
		{"node updates another's status", "node-1", update("status", node("node-2", nil), node("node-2", nil)), `is not allowed to modify node "node-2"`},
		{"node adds a taint", "node-1", update("", own, node("node-1", taint)), "is not allowed to modify taints"},
		{"node drops a taint", "node-1", update("", node("node-1", taint), own), "is not allowed to modify taints"},
		{"node drops a taint by its status", "node-1", update("status", node("node-1", taint), own), "is not allowed to modify taints"},
		{"node keeps its taint", "node-1", update("", node("node-1", taint), node("node-1", taint)), ""},
		{"node takes an owner", "node-1", update("", own, node("node-1", func(n *corev1.Node) {
			n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}}
		})), "ownerReferences"},
		{"node sets a config source", "node-1", update("", own, node("node-1", source)), "configSource"},
		{"node drops a config source", "node-1", update("", node("node-1", source), own), ""},
		{"node deletes another", "node-1", submission{op: admission.Delete, gvr: nodesR, name: "node-2"}, `is not allowed to modify node "node-2"`},
		{"wrong type", "node-1", submission{op: admission.Create, gvr: nodesR, obj: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}}, "unexpected type"},
	}
}

func labelCases() []restrictionCase {
	var out []restrictionCase
	base := node("node-1", nil)
	for key, ok := range map[string]bool{
		"plain": true, "example.com/anything": true, "kubernetes.io.example.com/x": true, "notkubernetes.io/x": true,
		"kubernetes.io/hostname": true, "kubernetes.io/os": true, "kubernetes.io/arch": true,
		"beta.kubernetes.io/os": true, "beta.kubernetes.io/arch": true, "beta.kubernetes.io/instance-type": true,
		"node.kubernetes.io/instance-type": true, "node.kubernetes.io/x": true, "edge.node.kubernetes.io/x": true,
		"kubelet.kubernetes.io/x": true, "a.kubelet.kubernetes.io/x": true,
		"topology.kubernetes.io/zone": true, "topology.kubernetes.io/region": true,
		"failure-domain.beta.kubernetes.io/zone": true, "failure-domain.beta.kubernetes.io/region": true,
		"kubernetes.io/custom": false, "node-role.kubernetes.io/master": false, "node-role.kubernetes.io/worker": false,
		"topology.kubernetes.io/rack": false, "beta.kubernetes.io/x": false, "x.kubernetes.io/y": false,
		"k8s.io/x": false, "example.k8s.io/x": false, "xnode.kubernetes.io/y": false,
		"node-restriction.kubernetes.io/team": false, "a.node-restriction.kubernetes.io/team": false,
		"kubernetes.io/role": false,
	} {
		set, changed, gone := "", "", ""
		if !ok {
			set = "is not allowed to set the following labels: " + key
			changed = "is not allowed to modify labels: " + key
			gone = changed
		}
		if ok && slices.Contains(placeLabels, key) { // only when the Node is created
			changed = "is not allowed to modify labels: " + key
			gone = changed
		}
		with, other, without := node("node-1", label(key, "a")), node("node-1", label(key, "b")), node("node-1", unlabel(key))
		out = append(out,
			restrictionCase{"create with " + key, "node-1", submission{op: admission.Create, gvr: nodesR, obj: with}, set},
			restrictionCase{"add " + key, "node-1", submission{op: admission.Update, gvr: nodesR, name: "node-1", old: without, obj: with}, changed},
			restrictionCase{"change " + key, "node-1", submission{op: admission.Update, gvr: nodesR, name: "node-1", old: with, obj: other}, changed},
			restrictionCase{"drop " + key, "node-1", submission{op: admission.Update, gvr: nodesR, name: "node-1", old: with, obj: without}, gone},
			restrictionCase{"keep " + key, "node-1", submission{op: admission.Update, gvr: nodesR, name: "node-1", old: with, obj: with}, ""},
			restrictionCase{"admin adds " + key, "admin", submission{op: admission.Update, gvr: nodesR, name: "node-1", old: base, obj: with}, ""},
		)
	}
	return append(out, restrictionCase{"several", "node-1", submission{
		op: admission.Create, gvr: nodesR,
		obj: node("node-1", func(n *corev1.Node) { n.Labels["k8s.io/b"], n.Labels["k8s.io/a"] = "", "" }),
	}, "labels: k8s.io/a, k8s.io/b"})
}

func podCases() []restrictionCase {
	create := func(change func(*corev1.Pod)) submission {
		return submission{op: admission.Create, gvr: podsR, ns: "ns", obj: mirror(change)}
	}
	status := func(old, p *corev1.Pod) submission {
		return submission{op: admission.Update, gvr: podsR, sub: "status", ns: "ns", name: old.Name, old: old, obj: p}
	}
	evict := func(name string, body string) submission {
		return submission{
			op: admission.Create, gvr: podsR, sub: "eviction", ns: "ns", name: name,
			obj: &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: body}},
		}
	}
	own, db := lesson(nil), simplePod("ns", "db", "node-2", "db")
	return []restrictionCase{
		{"mirror pod", "node-1", create(nil), ""},
		{"a pod that mirrors nothing", "node-1", create(func(p *corev1.Pod) { p.Annotations = nil }), "can only create mirror pods"},
		{"mirror pod on another", "node-1", create(func(p *corev1.Pod) { p.Spec.NodeName = "node-2" }), "spec.nodeName set to itself"},
		{"mirror pod on none", "node-1", create(func(p *corev1.Pod) { p.Spec.NodeName = "" }), "spec.nodeName set to itself"},
		{"mirror pod without owner", "node-1", create(func(p *corev1.Pod) { p.OwnerReferences = nil }), "a single owner reference"},
		{"mirror pod of another node", "node-1", create(func(p *corev1.Pod) { p.OwnerReferences[0].Name = "node-2" }), "owner reference set to itself"},
		{"mirror pod of a former node", "node-1", create(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "old" }), "UID mismatch"},
		{"mirror pod not controlled", "node-1", create(func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }), "controller owner reference"},
		{"mirror pod that blocks", "node-1", create(func(p *corev1.Pod) { p.OwnerReferences[0].BlockOwnerDeletion = ptr.To(true) }), "blockOwnerDeletion"},
		{"mirror pod with account", "node-1", create(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "builder" }), "a service account"},
		{"mirror pod with pull secret", "node-1", create(func(p *corev1.Pod) {
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "x"}}
		}), "secrets"},
		{"mirror pod with secret env", "node-1", create(func(p *corev1.Pod) { p.Spec.Containers[0].Env = envFrom("x")[:1] }), "secrets"},
		{"mirror pod with config map env", "node-1", create(func(p *corev1.Pod) { p.Spec.Containers[0].Env = envFrom("x")[1:] }), "config maps"},
		{"mirror pod with secret volume", "node-1", create(func(p *corev1.Pod) { p.Spec.Volumes = webPod().Spec.Volumes[:1] }), "secrets"},
		{"mirror pod with claim", "node-1", create(func(p *corev1.Pod) { p.Spec.Volumes = webPod().Spec.Volumes[5:6] }), "persistent volume claims"},
		{"mirror pod with projection", "node-1", create(func(p *corev1.Pod) { p.Spec.Volumes = webPod().Spec.Volumes[2:3] }), "projected objects"},
		{"mirror pod with resource claim", "node-1", create(func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "x"}} }), "resource claims"},
		{"controllers create any", "controllers", create(func(p *corev1.Pod) { p.Annotations = nil }), ""},
		{"update a pod", "node-1", submission{op: admission.Update, gvr: podsR, ns: "ns", name: "web", old: own, obj: own}, "can only create and delete mirror pods"},
		{"delete own pod", "node-1", submission{op: admission.Delete, gvr: podsR, ns: "ns", name: "web", old: own}, ""},
		{"delete another's pod", "node-1", submission{op: admission.Delete, gvr: podsR, ns: "ns", name: "db", old: db}, "can only delete pods with spec.nodeName set to itself"},
		{"delete a pending pod", "node-1", submission{op: admission.Delete, gvr: podsR, ns: "ns", name: "p", old: simplePod("ns", "p", "", "p")}, "can only delete"},
		{"own pod's status", "node-1", status(own, lesson(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })), ""},
		{"another's pod's status", "node-1", status(db, db), "can only update pod status for pods with spec.nodeName set to itself"},
		{"labels by status", "node-1", status(own, lesson(func(p *corev1.Pod) { p.Labels["app"] = "x" })), "cannot update labels through pod status"},
		{"claims by status", "node-1", status(own, lesson(func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x"}}
		})), "resource claim statuses"},
		{"evict own pod", "node-1", evict("web", "web"), ""},
		{"evict own pod by body", "node-1", evict("", "web"), ""},
		{"evict another's pod", "node-1", evict("db", "web"), "can only evict pods"},
		{"evict no pod", "node-1", evict("", ""), "could not determine pod"},
		{"evict a pod that is gone", "node-1", evict("gone", "gone"), `pods "gone" not found`},
		{"bind a pod", "node-1", submission{op: admission.Create, gvr: podsR, sub: "binding", ns: "ns", name: "web", obj: &corev1.Binding{}}, "unexpected pod subresource"},
		{"ephemeral containers", "node-1", submission{op: admission.Update, gvr: podsR, sub: "ephemeralcontainers", ns: "ns", name: "web", old: own, obj: own}, "only 'status' and 'eviction' are allowed"},
	}
}

func otherCases() []restrictionCase {
	newLease := func(ns, name string) submission {
		return submission{op: admission.Create, gvr: leasesR, ns: ns, obj: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	}
	token := func(account string, change func(*authenticationv1.BoundObjectReference)) submission {
		return submission{op: admission.Create, gvr: tokensR, sub: "token", ns: "ns", name: account, obj: boundToken(change)}
	}
	forAudiences := func(audiences ...string) submission {
		r := boundToken(nil)
		r.Spec.Audiences = audiences
		return submission{op: admission.Create, gvr: tokensR, sub: "token", ns: "ns", name: "builder", obj: r}
	}
	unbound := &authenticationv1.TokenRequest{}
	return []restrictionCase{
		{"own lease", "node-1", newLease("kube-node-lease", "node-1"), ""},
		{"another's lease", "node-1", newLease("kube-node-lease", "node-2"), "same name as the requesting node"},
		{"lease elsewhere", "node-1", newLease("kube-system", "node-1"), `can only access leases in the "kube-node-lease" system namespace`},
		{"renew own lease", "node-1", submission{op: admission.Update, gvr: leasesR, ns: "kube-node-lease", name: "node-1", obj: &coordinationv1.Lease{}}, ""},
		{"renew another's lease", "node-1", submission{op: admission.Update, gvr: leasesR, ns: "kube-node-lease", name: "node-2", obj: &coordinationv1.Lease{}}, "same name as the requesting node"},
		{"own CSINode", "node-1", submission{op: admission.Create, gvr: csiR, obj: &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}}, ""},
		{"another's CSINode", "node-1", submission{op: admission.Create, gvr: csiR, obj: &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}}, "CSINode with the same name"},
		{"token of own pod", "node-1", token("builder", nil), ""},
		{"token of another's pod", "node-2", token("builder", nil), "scheduled on a different node"},
		{"token of another account", "node-1", token("admin", nil), `bound to a pod that runs as "builder"`},
		{"token of a former pod", "node-1", token("builder", func(r *authenticationv1.BoundObjectReference) { r.UID = "old" }), "does not match the UID in record"},
		{"token without uid", "node-1", token("builder", func(r *authenticationv1.BoundObjectReference) { r.UID = "" }), "without a uid"},
		{"token of a secret", "node-1", token("builder", func(r *authenticationv1.BoundObjectReference) { r.Kind = "Secret" }), "not bound to a pod"},
		{"token of nothing", "node-1", submission{op: admission.Create, gvr: tokensR, sub: "token", ns: "ns", name: "builder", obj: unbound}, "not bound to a pod"},
		{"token of a pod that is gone", "node-1", token("builder", func(r *authenticationv1.BoundObjectReference) { r.Name = "gone" }), "not found"},
		{"token for an audience of the pod", "node-1", forAudiences("vault"), ""},
		{"token for another audience", "node-1", forAudiences("bank"), `audience "bank" not found in pod spec volume`},
		{"token for two audiences", "node-1", forAudiences("vault", ""), "0 or 1 audiences"},
		{"events of controllers are free", "controllers", submission{op: admission.Create, gvr: eventsR, obj: &corev1.Event{}}, ""},
	}
}

func requestCases(t *testing.T) []restrictionCase {
	const (
		client  = certificatesv1.KubeAPIServerClientKubeletSignerName
		serving = certificatesv1.KubeletServingSignerName
		general = certificatesv1.KubeAPIServerClientSignerName
	)
	create := func(cn, org, signer string) submission {
		return submission{op: admission.Create, gvr: requestR, obj: csrFor(t, cn, org, signer)}
	}
	garbage := submission{op: admission.Create, gvr: requestR, obj: &certificatesv1.CertificateSigningRequest{
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: client, Request: []byte("x")},
	}}
	return []restrictionCase{
		{"own renewal", "node-1", create("system:node:node-1", "system:nodes", client), ""},
		{"own serving certificate", "node-1", create("system:node:node-1", "system:nodes", serving), ""},
		{"another's certificate", "node-1", create("system:node:node-2", "system:nodes", client), "can only create a node CSR with CN=system:node:node-1"},
		{"another's serving certificate", "node-1", create("system:node:node-2", "system:nodes", serving), "CN=system:node:node-1"},
		{"a node asks for a user's", "node-1", create("alice", "developers", general), "a node can only ask for"},
		{"a node sends garbage", "node-1", garbage, "unable to parse csr"},
		{"first certificate", "boot", create("system:node:new", "system:nodes", client), ""},
		{"a token asks for a serving certificate", "boot", create("system:node:new", "system:nodes", serving), "a bootstrap token can only ask for"},
		{"a token asks for a user's", "boot", create("alice", "developers", general), "a bootstrap token can only ask for"},
		{"a user's", "admin", create("alice", "developers", general), ""},
		{"an administrator's by the signer of clients", "admin", create("eve", "system:masters", general), "is not allowed"},
		{"approval is not creation", "admin", submission{op: admission.Update, gvr: requestR, sub: "approval", name: "x", obj: csrFor(t, "eve", "system:masters", general)}, ""},
	}
}
