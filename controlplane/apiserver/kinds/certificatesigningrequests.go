// The kind CertificateSigningRequest.

package kinds

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

func certificateSigningRequests() Kind {
	return of[certificatesv1.CertificateSigningRequest, certificatesv1.CertificateSigningRequestList](certificatesv1.SchemeGroupVersion, "CertificateSigningRequest", "certificatesigningrequests", "certificatesigningrequest", Kind{
		short: []string{"csr"}, cluster: true, status: true,
		fields: selecting(csrFields), onCreate: creating(newCSR), onUpdate: updating(updateCSR), onStatus: updating(csrStatus),
		statusResets: []string{"status.conditions"},
		name:         anyName,
		rules:        Rules{create(validateCertificateSigningRequest), update(validateCertificateSigningRequestUpdate), update(validateCertificateSigningRequestStatusUpdate)},
		table:        csrTable,
		more:         moreRequests,
	})
}

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

func moreRequests(_ *Config, all Storages) {
	v1 := certificatesv1.SchemeGroupVersion
	store := all.Store(v1, "certificatesigningrequests")
	all.Add(v1, "certificatesigningrequests/approval", newSub(store, approvalStrategy{strategyOf(store)}))
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

func (s approvalStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	c, was := obj.(*certificatesv1.CertificateSigningRequest), old.(*certificatesv1.CertificateSigningRequest)
	return append(s.addedFinalizers(obj, old), validateCertificateSigningRequestApprovalUpdate(c, was)...)
}

func (s approvalStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.resets("spec", "status.certificate")
}

// minCertificateLife is the shortest life, in seconds, that can be asked for.
const minCertificateLife = 600

// legacyUnknownSigner could be asked before there were signers; the v1 API has
// no place for it.
const legacyUnknownSigner = "kubernetes.io/legacy-unknown"

// validateCertificateSigningRequest checks a new request.
func validateCertificateSigningRequest(r *certificatesv1.CertificateSigningRequest) field.ErrorList {
	p := field.NewPath("spec")
	var errs field.ErrorList
	if err := parseRequest(r.Spec.Request); err != nil {
		errs = append(errs, field.Invalid(p.Child("request"), clip(r.Spec.Request), err.Error()))
	}
	if len(r.Spec.Usages) == 0 {
		errs = append(errs, field.Required(p.Child("usages"), ""))
	}
	seen := map[certificatesv1.KeyUsage]bool{}
	for i, u := range r.Spec.Usages {
		at := p.Child("usages").Index(i)
		errs = append(errs, optionalOneOf(&u, at, keyUsages()...)...)
		if seen[u] {
			errs = append(errs, field.Duplicate(at, u))
		}
		seen[u] = true
	}
	if r.Spec.SignerName == legacyUnknownSigner {
		errs = append(errs, field.Invalid(p.Child("signerName"), r.Spec.SignerName, "the legacy signerName is not allowed via this API version"))
	} else {
		errs = append(errs, signerName(r.Spec.SignerName, p.Child("signerName"))...)
	}
	if e := r.Spec.ExpirationSeconds; e != nil && *e < minCertificateLife {
		errs = append(errs, field.Invalid(p.Child("expirationSeconds"), *e, "may not specify a duration less than 600 seconds (10 minutes)"))
	}
	return append(errs, csrConditions(r.Status.Conditions, field.NewPath("status", "conditions"))...)
}

// Bounds of a request; real ones have less than 2 KiB. A signature by a huge key takes
// long to check.
const (
	maxRequest = 16 << 10
	maxRSABits = 8192
)

// parseRequest wants a PEM block with a PKCS#10 request (RFC 2986), signed with
// the key it is about.
func parseRequest(data []byte) error {
	if len(data) > maxRequest {
		return fmt.Errorf("has %d bytes, at most %d are allowed", len(data), maxRequest)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return err
	}
	if k, ok := req.PublicKey.(*rsa.PublicKey); ok && k.N.BitLen() > maxRSABits {
		return fmt.Errorf("RSA key has %d bits, at most %d are allowed", k.N.BitLen(), maxRSABits)
	}
	return req.CheckSignature()
}

// clip leaves of a request what tells it from another, for a message.
func clip(request []byte) []byte {
	const some = 1 << 10
	return request[:min(len(request), some)]
}

func keyUsages() []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{
		certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
		certificatesv1.UsageKeyEncipherment, certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment,
		certificatesv1.UsageCertSign, certificatesv1.UsageCRLSign, certificatesv1.UsageEncipherOnly,
		certificatesv1.UsageDecipherOnly, certificatesv1.UsageAny, certificatesv1.UsageServerAuth,
		certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning, certificatesv1.UsageEmailProtection,
		certificatesv1.UsageSMIME, certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel,
		certificatesv1.UsageIPsecUser, certificatesv1.UsageTimestamping, certificatesv1.UsageOCSPSigning,
		certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC,
	}
}

// signerName wants a signer's name: a domain of at least two labels, a slash
// and a path of DNS subdomains.
func signerName(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		return field.ErrorList{field.Invalid(p, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	errs := messages(p, domain, validation.IsDNS1123Subdomain(domain))
	if !strings.Contains(domain, ".") {
		errs = append(errs, field.Invalid(p, domain, "should be a domain with at least two segments separated by dots"))
	}
	if path == "" {
		return append(errs, field.Invalid(p, name, `validation: must specify a signer name, e.g. "example.com/signer-name"`))
	}
	return append(errs, messages(p, path, validation.IsDNS1123Subdomain(path))...)
}

func csrConditions(list []certificatesv1.CertificateSigningRequestCondition, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range list {
		at := p.Index(i)
		errs = append(errs, required(string(c.Type), at.Child("type"))...)
		allowed := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		if isDecision(c.Type) || c.Type == certificatesv1.CertificateFailed {
			allowed = []corev1.ConditionStatus{corev1.ConditionTrue}
		}
		errs = append(errs, oneOf(c.Status, at.Child("status"), allowed...)...)
		if seen[c.Type] {
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		seen[c.Type] = true
	}
	if seen[certificatesv1.CertificateApproved] && seen[certificatesv1.CertificateDenied] {
		errs = append(errs, field.Invalid(p, "", "Approved and Denied conditions are mutually exclusive"))
	}
	return errs
}

func isDecision(t certificatesv1.RequestConditionType) bool {
	return t == certificatesv1.CertificateApproved || t == certificatesv1.CertificateDenied
}

// validateCertificateSigningRequestUpdate checks a change of a request itself,
// which can neither decide nor fulfil it.
func validateCertificateSigningRequestUpdate(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return csrUpdate(r, old, false, false)
}

// validateCertificateSigningRequestApprovalUpdate checks a change through the
// approval subresource, which decides.
func validateCertificateSigningRequestApprovalUpdate(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return csrUpdate(r, old, true, false)
}

// validateCertificateSigningRequestStatusUpdate checks a change through the
// status subresource, by which a signer delivers or gives up.
func validateCertificateSigningRequestStatusUpdate(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return csrUpdate(r, old, false, true)
}

// csrUpdate checks that what was asked and what was decided stays, and that a
// decision is made only where decide is set and a certificate given only where
// deliver is.
func csrUpdate(r, old *certificatesv1.CertificateSigningRequest, decide, deliver bool) field.ErrorList {
	p := field.NewPath("status")
	errs := immutable(r.Spec, old.Spec, field.NewPath("spec"))
	errs = append(errs, csrConditions(r.Status.Conditions, p.Child("conditions"))...)
	for _, t := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		errs = append(errs, conditionUpdate(t, r, old, decide && isDecision(t) || deliver && !isDecision(t), p.Child("conditions"))...)
	}
	at := p.Child("certificate")
	if bytes.Equal(r.Status.Certificate, old.Status.Certificate) {
		return errs
	}
	switch {
	case !deliver:
		errs = append(errs, field.Forbidden(at, "updates may not set certificate content"))
	case len(old.Status.Certificate) > 0:
		errs = append(errs, field.Forbidden(at, "updates may not modify existing certificate content"))
	default:
		errs = append(errs, certificates(r.Status.Certificate, at)...)
	}
	return errs
}

func conditionUpdate(t certificatesv1.RequestConditionType, r, old *certificatesv1.CertificateSigningRequest, mayAdd bool, p *field.Path) field.ErrorList {
	is := func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t }
	now := slices.IndexFunc(r.Status.Conditions, is)
	then := slices.IndexFunc(old.Status.Conditions, is)
	switch {
	case now >= 0 && then < 0 && !mayAdd:
		return field.ErrorList{field.Forbidden(p, fmt.Sprintf("updates may not add a condition of type %q", t))}
	case now < 0 && then >= 0:
		return field.ErrorList{field.Forbidden(p, fmt.Sprintf("updates may not remove a condition of type %q", t))}
	case now >= 0 && then >= 0 && !mayAdd && !equal(r.Status.Conditions[now], old.Status.Conditions[then]):
		return field.ErrorList{field.Forbidden(p, fmt.Sprintf("updates may not modify a condition of type %q", t))}
	default:
		return nil
	}
}

// certificates wants PEM blocks of certificates, at least one.
func certificates(data []byte, p *field.Path) field.ErrorList {
	const hidden = "<certificate data>"
	n := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return field.ErrorList{field.Invalid(p, hidden, fmt.Sprintf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type))}
		}
		if len(block.Headers) > 0 {
			return field.ErrorList{field.Invalid(p, hidden, "no PEM block headers are permitted")}
		}
		if _, err := x509.ParseCertificates(block.Bytes); err != nil {
			return field.ErrorList{field.Invalid(p, hidden, err.Error())}
		}
		n++
	}
	if n == 0 {
		return field.ErrorList{field.Invalid(p, hidden, "must contain at least one CERTIFICATE PEM block")}
	}
	return nil
}

// anyName leaves it to the API server's own check that a name can be part of a
// URL's path.
func anyName(string, bool) []string { return nil }

func csrTable(gr schema.GroupResource) rest.TableConvertor {
	doc := certificatesv1.CertificateSigningRequestSpec{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		ageColumn(),
		text("SignerName", doc["signerName"]),
		text("Requestor", doc["username"]),
		text("RequestedDuration", doc["expirationSeconds"]),
		text("Condition", certificatesv1.CertificateSigningRequestStatus{}.SwaggerDoc()["conditions"]),
	}, func(o *certificatesv1.CertificateSigningRequest, now time.Time) []any {
		requested := none
		if s := o.Spec.ExpirationSeconds; s != nil {
			requested = duration.HumanDuration(time.Duration(*s) * time.Second)
		}
		return []any{o.Name, age(o.CreationTimestamp, now), or(o.Spec.SignerName, none), o.Spec.Username, requested, csrCondition(o)}
	})
}

// csrCondition says what was decided and what came of it. A denial outweighs
// an approval.
func csrCondition(o *certificatesv1.CertificateSigningRequest) string {
	has := func(t certificatesv1.RequestConditionType) bool {
		return slices.ContainsFunc(o.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t })
	}
	s := "Pending"
	if has(certificatesv1.CertificateDenied) {
		s = "Denied"
	} else if has(certificatesv1.CertificateApproved) {
		s = "Approved"
	}
	if has(certificatesv1.CertificateFailed) {
		s += ",Failed"
	}
	if len(o.Status.Certificate) > 0 {
		s += ",Issued"
	}
	return s
}
