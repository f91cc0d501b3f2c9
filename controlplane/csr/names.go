package csr

// Names: a kubelet's client certificate is for a key that holds the node's name.

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
)

// autoApproved is the reason that the approver gives.
const autoApproved = "AutoApproved"

// keyOf is the key that a request is for.
func keyOf(req *x509.CertificateRequest) nodekeys.Key {
	return sha256.Sum256(req.RawSubjectPublicKeyInfo)
}

// enroll writes down that the key of a request holds the node's name, before there is
// a certificate for it. why is not empty if it may not.
func enroll(ctx context.Context, names *nodekeys.Book, r *certificatesv1.CertificateSigningRequest, node string, key nodekeys.Key) (why string, err error) {
	if r.Spec.Username != nodePrefix+node {
		return refused(names.Claim(ctx, node, key, siteOf(r)))
	}
	// The node may have lost its name between the request and now: what counts is the
	// key with which it was made. An API server of others does not tell that.
	var by *nodekeys.Key
	if shown := r.Spec.Extra[nodekeys.ExtraKey]; len(shown) > 0 {
		k, err := nodekeys.ParseKey(shown[0])
		if err != nil {
			return "the request was made with a key that cannot be read: " + err.Error(), nil
		}
		by = &k
	}
	return refused(names.Renew(ctx, node, by, key))
}

// siteOf is the site that the join token of a request says. The groups are the
// authenticator's word, not the machine's.
func siteOf(r *certificatesv1.CertificateSigningRequest) string {
	if !strings.HasPrefix(r.Spec.Username, bootstrapapi.BootstrapUserPrefix) {
		return ""
	}
	for _, g := range r.Spec.Groups {
		if site, ok := strings.CutPrefix(g, auth.SiteGroup); ok && len(content.IsLabelValue(site)) == 0 {
			return site
		}
	}
	return ""
}

// refused tells a refusal from a failure.
func refused(err error) (why string, _ error) {
	var held *nodekeys.HeldError
	if errors.As(err, &held) {
		return held.Error(), nil
	}
	return "", err
}

// entitled says why an approved request for a kubelet's client certificate must not
// be signed any more. What the approver has approved it has written down, and it may
// have been revoked or deleted since. A person's word is written down here.
func entitled(ctx context.Context, names *nodekeys.Book, r *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) error {
	if r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	node, err := nodeSubject(req)
	if err != nil {
		return err
	}
	why, key := "", keyOf(req)
	if byApprover(r) {
		why, err = refused(names.Confirm(ctx, node, key))
	} else {
		why, err = enroll(ctx, names, r, node, key)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", errLater, err)
	case why != "":
		return errors.New(why)
	}
	return nil
}

// errLater means that it could not be found out whether a request may be signed.
var errLater = errors.New("cannot look up who holds the node's name")

func byApprover(r *certificatesv1.CertificateSigningRequest) bool {
	for _, c := range r.Status.Conditions {
		if c.Type == certificatesv1.CertificateApproved {
			return c.Reason == autoApproved
		}
	}
	return false
}
