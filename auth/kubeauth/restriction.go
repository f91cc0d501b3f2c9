package kubeauth

// NodeRestriction: what the bodies of a node's writes may say.

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

// restriction is the admission plugin.
type restriction struct {
	*admission.Handler
	objects *Objects
}

var _ admission.ValidationInterface = (*restriction)(nil)

// NodeRestriction returns an admission plugin that keeps nodes and bootstrap
// users to objects of their own. Other users' requests pass, but for
// certificate requests in the name of system:masters, which nobody may make of
// a signer of clients. o answers what a request does not say.
func NodeRestriction(o *Objects) admission.Interface {
	return &restriction{
		Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete),
		objects: o,
	}
}

// Validate implements admission.ValidationInterface.
func (r *restriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	gr := a.GetResource().GroupResource()
	u := a.GetUserInfo()
	node, isNode := nodeOf(u)
	if gr == certificates && a.GetSubresource() == "" && a.GetOperation() == admission.Create {
		return request(a, node, isNode)
	}
	if !isNode {
		return nil
	}
	if node == "" {
		return admission.NewForbidden(a, fmt.Errorf("could not determine node from user %q", u.GetName()))
	}
	if a.GetOperation() == admission.Delete && gr == corev1.Resource("pods") && a.GetSubresource() == "" {
		return ownPod(a, node, "delete")
	}
	if check := r.checks()[gr]; check != nil {
		return check(ctx, a, node)
	}
	return nil
}

var certificates = certificatesv1.Resource("certificatesigningrequests")

type check func(ctx context.Context, a admission.Attributes, node string) error

func (r *restriction) checks() map[schema.GroupResource]check {
	return map[schema.GroupResource]check{
		corev1.Resource("pods"):            r.pod,
		corev1.Resource("nodes"):           nodeBody,
		corev1.Resource("serviceaccounts"): r.token,
		coordinationv1.Resource("leases"):  lease,
		storagev1.Resource("csinodes"):     csiNode,
	}
}

func forbid(a admission.Attributes, format string, args ...any) error {
	return admission.NewForbidden(a, fmt.Errorf(format, args...))
}

// unexpected is for an object of another type than its resource promises.
func unexpected(a admission.Attributes) error {
	return apierrors.NewBadRequest(fmt.Sprintf("unexpected type %T", a.GetObject()))
}

// pod decides about creates and updates of pods and their subresources.
func (r *restriction) pod(ctx context.Context, a admission.Attributes, node string) error {
	switch a.GetSubresource() {
	case "":
		if a.GetOperation() == admission.Create {
			return r.mirrorPod(ctx, a, node)
		}
		return forbid(a, "node %q can only create and delete mirror pods", node)
	case "status":
		return podStatus(a, node)
	case "eviction":
		return r.eviction(ctx, a, node)
	default:
		return forbid(a, "unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.GetSubresource())
	}
}

// mirrorPod allows a node to show a pod of its own making, and nothing that
// would give it access to anything.
func (r *restriction) mirrorPod(ctx context.Context, a admission.Attributes, node string) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return unexpected(a)
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; !mirror {
		return forbid(a, "pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, node)
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node %q can only create pods with spec.nodeName set to itself", node)
	}
	if what := namesAnything(pod); what != "" {
		return forbid(a, "node %q can not create pods that reference %s", node, what)
	}
	return r.mirrorOwner(ctx, a, node, pod)
}

func (r *restriction) mirrorOwner(ctx context.Context, a admission.Attributes, node string, pod *corev1.Pod) error {
	if len(pod.OwnerReferences) != 1 {
		return forbid(a, "node %q can only create pods with a single owner reference set to itself", node)
	}
	owner := pod.OwnerReferences[0]
	if owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node {
		return forbid(a, "node %q can only create pods with an owner reference set to itself", node)
	}
	if owner.Controller == nil || !*owner.Controller {
		return forbid(a, "node %q can only create pods with a controller owner reference set to itself", node)
	}
	if owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion {
		return forbid(a, "node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	n, err := r.objects.node(ctx, node)
	if err != nil {
		return forbid(a, "look up node %q: %w", node, err)
	}
	if n.UID != owner.UID {
		return forbid(a, "node %s UID mismatch: expected %s got %s", node, owner.UID, n.UID)
	}
	return nil
}

// ownPod allows an operation on a stored pod that is bound to node.
func ownPod(a admission.Attributes, node, verb string) error {
	pod, ok := a.GetOldObject().(*corev1.Pod)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("unexpected type %T", a.GetOldObject()))
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node %q can only %s pods with spec.nodeName set to itself", node, verb)
	}
	return nil
}

func podStatus(a admission.Attributes, node string) error {
	if a.GetOperation() != admission.Update {
		return forbid(a, "unexpected operation %q", a.GetOperation())
	}
	if err := ownPod(a, node, "update pod status for"); err != nil {
		return err
	}
	now, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return unexpected(a)
	}
	before, _ := a.GetOldObject().(*corev1.Pod)
	if !equality.Semantic.DeepEqual(now.Labels, before.Labels) {
		return forbid(a, "node %q cannot update labels through pod status", node)
	}
	if !equality.Semantic.DeepEqual(now.Status.ResourceClaimStatuses, before.Status.ResourceClaimStatuses) {
		return forbid(a, "node %q cannot update resource claim statuses", node)
	}
	return nil
}

func (r *restriction) eviction(ctx context.Context, a admission.Attributes, node string) error {
	e, ok := a.GetObject().(*policyv1.Eviction)
	if !ok {
		return unexpected(a)
	}
	name := a.GetName()
	if name == "" {
		name = e.Name
	}
	if name == "" || a.GetNamespace() == "" {
		return forbid(a, "could not determine pod from request data")
	}
	pod, err := r.objects.pod(ctx, a.GetNamespace(), name, node)
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return forbid(a, "look up pod %s/%s: %w", a.GetNamespace(), name, err)
	}
	if pod.Spec.NodeName != node {
		return forbid(a, "node %s can only evict pods with spec.nodeName set to itself", node)
	}
	return nil
}

// token allows tokens bound to a pod that runs on node as the service account.
func (r *restriction) token(ctx context.Context, a admission.Attributes, node string) error {
	if a.GetSubresource() != "token" {
		return nil // the authorizer allows nothing else
	}
	t, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return unexpected(a)
	}
	ref := t.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return forbid(a, "node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return forbid(a, "node requested token with a pod binding without a uid")
	}
	pod, err := r.objects.pod(ctx, a.GetNamespace(), ref.Name, node)
	switch {
	case apierrors.IsNotFound(err):
		return err
	case err != nil:
		return forbid(a, "look up pod %s/%s: %w", a.GetNamespace(), ref.Name, err)
	case pod.UID != ref.UID:
		return forbid(a, "the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	case pod.Spec.NodeName != node:
		return forbid(a, "node requested token bound to a pod scheduled on a different node")
	case pod.Spec.ServiceAccountName != a.GetName():
		return forbid(a, "node requested token of service account %q bound to a pod that runs as %q", a.GetName(), pod.Spec.ServiceAccountName)
	}
	return nil
}

func lease(_ context.Context, a admission.Attributes, node string) error {
	name := a.GetName()
	if a.GetOperation() == admission.Create {
		l, ok := a.GetObject().(*coordinationv1.Lease)
		if !ok {
			return unexpected(a)
		}
		name = l.Name
	}
	if a.GetNamespace() != nodeLeases {
		return forbid(a, "can only access leases in the %q system namespace", nodeLeases)
	}
	if name != node {
		return forbid(a, "can only access node lease with the same name as the requesting node")
	}
	return nil
}

func csiNode(_ context.Context, a admission.Attributes, node string) error {
	name := a.GetName()
	if a.GetOperation() == admission.Create {
		n, ok := a.GetObject().(*storagev1.CSINode)
		if !ok {
			return unexpected(a)
		}
		name = n.Name
	}
	if name != node {
		return forbid(a, "can only access CSINode with the same name as the requesting node")
	}
	return nil
}

// request decides about new certificate requests.
func request(a admission.Attributes, node string, isNode bool) error {
	csr, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpected(a)
	}
	subject, err := parseRequest(csr.Spec.Request)
	signer := csr.Spec.SignerName
	kubelet := signer == certificatesv1.KubeAPIServerClientKubeletSignerName || signer == certificatesv1.KubeletServingSignerName
	groups := a.GetUserInfo().GetGroups()
	switch {
	case isNode && kubelet:
		if err != nil {
			return forbid(a, "unable to parse csr: %w", err)
		}
		if want := nodeUserPrefix + node; subject.Subject.CommonName != want {
			return forbid(a, "can only create a node CSR with CN=%s", want)
		}
	case isNode:
		return forbid(a, "a node can only ask for certificates of %s and %s",
			certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName)
	case slices.Contains(groups, bootstrapperGroup) && !slices.Contains(groups, user.SystemPrivilegedGroup):
		if signer != certificatesv1.KubeAPIServerClientKubeletSignerName {
			return forbid(a, "a bootstrap token can only ask for certificates of %s", certificatesv1.KubeAPIServerClientKubeletSignerName)
		}
	}
	if err == nil && signer == certificatesv1.KubeAPIServerClientSignerName &&
		slices.Contains(subject.Subject.Organization, user.SystemPrivilegedGroup) {
		return forbid(a, "use of %s signer with %s group is not allowed", signer, user.SystemPrivilegedGroup)
	}
	return nil
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}
