// Package admission holds the admission plugins without which an API server
// would take objects that no cluster can use.
//
// A plugin sees a request after it was authorized and before it is validated and
// stored. It may change the object (Admit) or refuse it (Validate). Plugins here
// are named as in Kubernetes and do what their namesakes do, as far as this
// server has what they are about.
package admission

import (
	"context"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// NamespaceLifecycle refuses to create objects in a namespace that does not exist
// or is going away, and to delete the namespaces a cluster cannot be without.
func NamespaceLifecycle(immortal ...string) (admission.Interface, error) {
	p, err := lifecycle.NewLifecycle(sets.New(immortal...))
	if err != nil {
		return nil, fmt.Errorf("namespace lifecycle: %w", err)
	}
	return p, nil
}

// pods is a plugin that changes pods when they are created.
type pods struct {
	*admission.Handler
	admit func(ctx context.Context, a admission.Attributes, p *corev1.Pod) error
}

func onPods(admit func(context.Context, admission.Attributes, *corev1.Pod) error, ops ...admission.Operation) *pods {
	return &pods{Handler: admission.NewHandler(ops...), admit: admit}
}

func (p *pods) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("pods") || a.GetSubresource() != "" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a Pod: %T", a.GetObject()))
	}
	return p.admit(ctx, a, pod)
}

// DefaultTolerationSeconds lets pods stay on a node that has become not ready or
// unreachable for so many seconds, unless they say for how long.
func DefaultTolerationSeconds(notReady, unreachable int64) admission.Interface {
	defaults := []corev1.Toleration{
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &notReady},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &unreachable},
	}
	return onPods(func(_ context.Context, _ admission.Attributes, p *corev1.Pod) error {
		for _, d := range defaults {
			if !slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
				return (t.Key == d.Key || t.Key == "") && (t.Effect == d.Effect || t.Effect == "")
			}) {
				p.Spec.Tolerations = append(p.Spec.Tolerations, *d.DeepCopy())
			}
		}
		return nil
	}, admission.Create, admission.Update)
}

// TaintNodesByCondition taints a new node as not ready, so that no pod is put
// there before it has said that it is.
func TaintNodesByCondition() admission.Interface {
	return &newNodes{Handler: admission.NewHandler(admission.Create)}
}

type newNodes struct{ *admission.Handler }

func (*newNodes) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("nodes") || a.GetSubresource() != "" {
		return nil
	}
	n, ok := a.GetObject().(*corev1.Node)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a Node: %T", a.GetObject()))
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		n.Spec.Taints = append(n.Spec.Taints, taint)
	}
	return nil
}

// CertificateApproval lets only those approve or deny a certificate request who
// may "approve" for its signer, and CertificateSigning only those put a
// certificate into it who may "sign" for it: the verbs on the resource signers,
// named by the signer or its whole domain.
func CertificateApproval(authz authorizer.Authorizer) admission.Interface {
	return &signers{Handler: admission.NewHandler(admission.Update), authz: authz, verb: "approve", subresource: "approval"}
}

// CertificateSigning lets only those put a certificate into a request who may
// "sign" for its signer; see CertificateApproval.
func CertificateSigning(authz authorizer.Authorizer) admission.Interface {
	return &signers{Handler: admission.NewHandler(admission.Update), authz: authz, verb: "sign", subresource: "status", changes: certificateChanges}
}

type signers struct {
	*admission.Handler
	authz             authorizer.Authorizer
	verb, subresource string
	changes           func(is, was *certificatesv1.CertificateSigningRequest) bool // nil means always
}

func certificateChanges(is, was *certificatesv1.CertificateSigningRequest) bool {
	failed := func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateFailed
	}
	return !slices.Equal(is.Status.Certificate, was.Status.Certificate) ||
		slices.ContainsFunc(is.Status.Conditions, failed) != slices.ContainsFunc(was.Status.Conditions, failed)
}

func (s *signers) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != certificatesv1.Resource("certificatesigningrequests") || a.GetSubresource() != s.subresource {
		return nil
	}
	is, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	was, ok2 := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok || !ok2 {
		return apierrors.NewBadRequest(fmt.Sprintf("not a CertificateSigningRequest: %T", a.GetObject()))
	}
	if s.changes != nil && !s.changes(is, was) {
		return nil
	}
	signer := was.Spec.SignerName
	for _, name := range []string{signer, signerDomain(signer)} {
		decision, _, err := s.authz.Authorize(ctx, authorizer.AttributesRecord{
			User: a.GetUserInfo(), Verb: s.verb, Name: name,
			APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err == nil && decision == authorizer.DecisionAllow {
			return nil
		}
	}
	return admission.NewForbidden(a, fmt.Errorf("user not permitted to %s requests with signerName %q", s.verb, signer))
}

// signerDomain is the name for all signers of the domain of signer.
func signerDomain(signer string) string {
	for i := range len(signer) {
		if signer[i] == '/' {
			return signer[:i] + "/*"
		}
	}
	return signer + "/*"
}

// fault is what a request is told when what decides about it could not be read. That the
// store does not answer, or is being read anew, is told as it is, so that clients know
// to try again.
func fault(what string, err error) error {
	if apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) {
		return err
	}
	return apierrors.NewInternalError(fmt.Errorf("%s: %w", what, err))
}
