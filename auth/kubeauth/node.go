package kubeauth

// What a node may do to its own objects.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

// decision makes the result of Authorize from a yes or no.
func decision(ok bool, reason string) (authorizer.Decision, string, error) {
	if ok {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, reason, nil
}

func quote(s string) string { return strconv.Quote(s) }

// node decides about a request of the named node.
func (z *Authorizer) node(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if anyAllows(nodeRules, a) {
		return authorizer.DecisionAllow, "", nil
	}
	switch a.GetAPIGroup() + "/" + a.GetResource() {
	case "/nodes":
		return nodeObject(node, a)
	case "/pods":
		return z.nodePod(ctx, node, a)
	case "/secrets", "/configmaps":
		if a.GetResource() == "configmaps" && a.GetVerb() == "get" && a.GetSubresource() == "" &&
			a.GetNamespace() == metav1.NamespaceSystem && slices.Contains(authorityConfigMaps, a.GetName()) {
			return authorizer.DecisionAllow, "", nil
		}
		if a.GetNamespace() == nodekeys.Namespace {
			// Nodes may not read the records of nodes' keys, also if a pod names them.
			return authorizer.DecisionNoOpinion, "a node cannot read the nodes' identities", nil
		}
		return z.nodeReference(ctx, node, a, map[string][]string{"": read})
	case "/persistentvolumeclaims":
		return z.nodeReference(ctx, node, a, map[string][]string{"": {"get"}, "status": change})
	case "/persistentvolumes":
		return z.nodeVolume(ctx, node, a)
	case "/serviceaccounts":
		return z.nodeAccount(ctx, node, a)
	case "coordination.k8s.io/leases":
		ok := a.GetNamespace() == nodeLeases && ownNamed(node, a, "get", "update", "patch", "delete")
		return decision(ok, "a node can only use its own lease, in namespace "+nodeLeases)
	case "storage.k8s.io/csinodes":
		return decision(ownNamed(node, a, "get", "update", "patch", "delete"), "a node can only use its own CSINode")
	case "storage.k8s.io/volumeattachments":
		return z.nodeAttachment(ctx, node, a)
	case certificatesGroup + "/certificatesigningrequests":
		return z.ownRequest(ctx, a.GetUser(), a)
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// authorityConfigMaps are the ConfigMaps in kube-system with the authorities of the API
// server and of clients.
var authorityConfigMaps = []string{"kube-root-ca.crt", "extension-apiserver-authentication"}

// ownNamed reports whether a is one of verbs on the object with the node's name, or a
// create, whose name NodeRestriction checks.
func ownNamed(node string, a authorizer.Attributes, verbs ...string) bool {
	if a.GetSubresource() != "" {
		return false
	}
	if a.GetVerb() == "create" {
		return a.GetName() == "" || a.GetName() == node
	}
	return a.GetName() == node && slices.Contains(verbs, a.GetVerb())
}

// nodeObject decides about Nodes: a node makes, reads and updates its own.
func nodeObject(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	const reason = "a node can only read and modify its own Node"
	switch a.GetSubresource() {
	case "":
		return decision(ownNamed(node, a, "get", "list", "watch", "update", "patch"), reason)
	case "status":
		ok := a.GetName() == node && slices.Contains(change, a.GetVerb())
		return decision(ok, reason)
	default:
		return authorizer.DecisionNoOpinion, "", nil
	}
}

// nodePod decides about pods: a node reads, and writes the status of, those bound to it.
func (z *Authorizer) nodePod(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch a.GetSubresource() + ":" + a.GetVerb() {
	case ":list", ":watch":
		if selectsNode(node, a) {
			return authorizer.DecisionAllow, "", nil
		}
		if a.GetName() == "" {
			return authorizer.DecisionNoOpinion, "a node can only list and watch pods with the field selector spec.nodeName=" + node, nil
		}
		return z.boundPod(ctx, node, a, false)
	case ":create":
		// Mirror pods only, which NodeRestriction enforces.
		return authorizer.DecisionAllow, "", nil
	case ":get", ":delete", "status:get", "status:update", "status:patch", "eviction:create":
		return z.boundPod(ctx, node, a, true)
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// boundPod allows requests for a pod that is bound to node. absent is whether a pod that
// does not exist may be requested, so that the node gets NotFound.
func (z *Authorizer) boundPod(ctx context.Context, node string, a authorizer.Attributes, absent bool) (authorizer.Decision, string, error) {
	if a.GetNamespace() == "" || a.GetName() == "" {
		return authorizer.DecisionNoOpinion, "a node can only use single pods", nil
	}
	pod, err := z.objects.pod(ctx, a.GetNamespace(), a.GetName(), node)
	switch {
	case apierrors.IsNotFound(err):
		return decision(absent, "pod does not exist")
	case err != nil:
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("authorize node %s: %w", node, err)
	}
	return decision(pod.Spec.NodeName == node, "pod is not bound to node "+quote(node))
}

// selectsNode reports whether a list or watch selects node's pods only.
func selectsNode(node string, a authorizer.Attributes) bool {
	reqs, err := a.GetFieldSelector()
	if err != nil {
		return false
	}
	for _, r := range reqs {
		if r.Field == "spec.nodeName" && (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) {
			return r.Value == node
		}
	}
	return false
}

// nodeReference allows verbs, by subresource, on one named object if a pod on node names it,
// or if it is a Secret that a pod's persistent volume is mounted with.
func (z *Authorizer) nodeReference(ctx context.Context, node string, a authorizer.Attributes, verbs map[string][]string) (authorizer.Decision, string, error) {
	if !slices.Contains(verbs[a.GetSubresource()], a.GetVerb()) {
		return authorizer.DecisionNoOpinion, "a node can only read " + a.GetResource() + " that its pods name", nil
	}
	if a.GetNamespace() == "" || a.GetName() == "" {
		return authorizer.DecisionNoOpinion, "a node can only read single, named " + a.GetResource(), nil
	}
	names := map[string]func(*corev1.Pod, string) bool{
		"secrets": namesSecret, "configmaps": namesConfigMap, "persistentvolumeclaims": namesClaim,
	}[a.GetResource()]
	var ok bool
	var err error
	if a.GetResource() == "secrets" {
		ok, err = z.objects.mountsWith(node, a.GetNamespace(), a.GetName())
	}
	if !ok && (err == nil || errors.Is(err, errNotReady)) {
		named, failed := z.objects.anyPodOn(ctx, node, a.GetNamespace(), func(p *corev1.Pod) bool { return names(p, a.GetName()) })
		if named || failed != nil {
			ok, err = named, failed
		}
	}
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("authorize node %s: %w", node, err)
	}
	return decision(ok, "no pod on node "+quote(node)+" names it")
}

// nodeVolume allows to read a volume that is bound to a claim that a pod on node names.
func (z *Authorizer) nodeVolume(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() != "get" || a.GetSubresource() != "" || a.GetName() == "" {
		return authorizer.DecisionNoOpinion, "a node can only read single, named persistentvolumes", nil
	}
	v, err := z.objects.volume(ctx, node, a.GetName())
	switch {
	case apierrors.IsNotFound(err):
		return decision(false, "no such volume")
	case err != nil:
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("authorize node %s: %w", node, err)
	case v.Spec.ClaimRef == nil:
		return decision(false, "no claim has the volume")
	}
	claim := v.Spec.ClaimRef
	ok, err := z.objects.anyPodOn(ctx, node, claim.Namespace, func(p *corev1.Pod) bool { return namesClaim(p, claim.Name) })
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("authorize node %s: %w", node, err)
	}
	return decision(ok, "no pod on node "+quote(node)+" names the claim that has it")
}

// nodeAttachment allows to read how a volume is attached to node.
func (z *Authorizer) nodeAttachment(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() != "get" || a.GetSubresource() != "" || a.GetName() == "" {
		return authorizer.DecisionNoOpinion, "a node can only read single, named volumeattachments", nil
	}
	at, err := z.objects.attachment(ctx, node, a.GetName())
	switch {
	case apierrors.IsNotFound(err):
		return decision(false, "no such attachment")
	case err != nil:
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("authorize node %s: %w", node, err)
	}
	return decision(at.Spec.NodeName == node, "it is not an attachment to node "+quote(node))
}

// nodeAccount allows to read the service accounts of pods on node, and to make their
// tokens.
func (z *Authorizer) nodeAccount(ctx context.Context, node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch a.GetVerb() + " " + a.GetSubresource() {
	case "get ", "create token":
	default:
		return authorizer.DecisionNoOpinion, "a node can only read service accounts and create tokens of them", nil
	}
	if a.GetNamespace() == "" || a.GetName() == "" {
		return authorizer.DecisionNoOpinion, "a node can only use single, named service accounts", nil
	}
	ok, err := z.objects.anyPodOn(ctx, node, a.GetNamespace(), func(p *corev1.Pod) bool {
		return p.Spec.ServiceAccountName == a.GetName()
	})
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("authorize node %s: %w", node, err)
	}
	return decision(ok, "no pod on node "+quote(node)+" runs as it")
}

// ownRequest allows u to read a certificate request that u made. Reading one that does not
// exist is allowed too, and returns NotFound. Watching it is not allowed, because another
// user may make it.
func (z *Authorizer) ownRequest(ctx context.Context, u user.Info, a authorizer.Attributes) (authorizer.Decision, string, error) {
	const reason = "only certificate requests of one's own can be read, one at a time and by name"
	if a.GetAPIGroup() != certificatesGroup || a.GetResource() != "certificatesigningrequests" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if a.GetSubresource() != "" || a.GetName() == "" || !slices.Contains(read, a.GetVerb()) {
		return authorizer.DecisionNoOpinion, reason, nil
	}
	csr, err := z.objects.request(ctx, u, a.GetName())
	switch {
	case apierrors.IsNotFound(err):
		return decision(a.GetVerb() == "get", reason)
	case err != nil:
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("authorize %s: %w", u.GetName(), err)
	}
	return decision(csr.Spec.Username == u.GetName(), reason)
}
