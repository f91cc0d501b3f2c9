// Certificate signing requests.

package apiserver

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

func csrFields(c *certificatesv1.CertificateSigningRequest) fields.Set {
	return fields.Set{"spec.signerName": c.Spec.SignerName}
}

// newCSR writes down who asks, whatever the request says: approvers and signers
// rely on it.
func newCSR(ctx context.Context, c *certificatesv1.CertificateSigningRequest) {
	c.Spec.Username, c.Spec.UID, c.Spec.Groups, c.Spec.Extra = "", "", nil, nil
	if u, ok := apirequest.UserFrom(ctx); ok {
		c.Spec.Username, c.Spec.UID, c.Spec.Groups = u.GetName(), u.GetUID(), u.GetGroups()
		for k, v := range u.GetExtra() {
			if c.Spec.Extra == nil {
				c.Spec.Extra = make(map[string]certificatesv1.ExtraValue)
			}
			c.Spec.Extra[k] = certificatesv1.ExtraValue(v)
		}
	}
	c.Status = certificatesv1.CertificateSigningRequestStatus{}
}

// updateCSR: a request is what it was signed for; it never changes.
func updateCSR(_ context.Context, c, old *certificatesv1.CertificateSigningRequest) {
	c.Spec = old.Spec
}

// csrStatus keeps approval and denial, which have a subresource of their own.
func csrStatus(_ context.Context, c, old *certificatesv1.CertificateSigningRequest) {
	kept := make([]certificatesv1.CertificateSigningRequestCondition, 0, len(c.Status.Conditions))
	for _, cond := range old.Status.Conditions {
		if verdict(cond.Type) {
			kept = append(kept, cond)
		}
	}
	for _, cond := range c.Status.Conditions {
		if !verdict(cond.Type) {
			kept = append(kept, cond)
		}
	}
	c.Status.Conditions = kept
	dateConditions(c, old)
}

func verdict(t certificatesv1.RequestConditionType) bool {
	return t == certificatesv1.CertificateApproved || t == certificatesv1.CertificateDenied
}

// dateConditions dates the conditions that their writer did not.
func dateConditions(c, old *certificatesv1.CertificateSigningRequest) {
	now := metav1.Now()
	for i := range c.Status.Conditions {
		cond := &c.Status.Conditions[i]
		if cond.LastUpdateTime.IsZero() {
			cond.LastUpdateTime = now
		}
		if !cond.LastTransitionTime.IsZero() {
			continue
		}
		cond.LastTransitionTime = now
		for _, was := range old.Status.Conditions {
			if was.Type == cond.Type && was.Status == cond.Status && !was.LastTransitionTime.IsZero() {
				cond.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
}

// approvalStrategy is certificatesigningrequests/approval: only the conditions
// are written.
type approvalStrategy struct{ *strategy }

func (approvalStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (approvalStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	c, was := obj.(*certificatesv1.CertificateSigningRequest), old.(*certificatesv1.CertificateSigningRequest)
	c.Spec = was.Spec
	c.Status.Certificate = was.Status.Certificate
	dateConditions(c, was)
}

func (approvalStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return kinds.ValidateCertificateSigningRequestApprovalUpdate(obj.(*certificatesv1.CertificateSigningRequest), old.(*certificatesv1.CertificateSigningRequest))
}

func (s approvalStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.resets("spec", "status.certificate")
}
