// This file requests a certificate and waits for it.

package bootstrap

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hawser-project/hawser/auth"
)

// Requests is the part of the certificates API that is needed here. The typed
// client is one.
type Requests interface {
	Create(ctx context.Context, r *certificates.CertificateSigningRequest, o metav1.CreateOptions) (*certificates.CertificateSigningRequest, error)
	Get(ctx context.Context, name string, o metav1.GetOptions) (*certificates.CertificateSigningRequest, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// A kind of certificate.
type kind struct {
	prefix string // of the request's name
	signer string
	usages []certificates.KeyUsage
}

var (
	clientCertificate = kind{
		"node-csr-", certificates.KubeAPIServerClientKubeletSignerName,
		[]certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
	}
	servingCertificate = kind{
		"node-serving-csr-", certificates.KubeletServingSignerName,
		[]certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth},
	}
)

// A request is one for a certificate of a node.
type request struct {
	api   Requests
	log   *slog.Logger
	kind  kind
	node  string
	names []string // of the serving certificate
	// addresses of the serving certificate, sorted
	addresses []netip.Addr
	key       *ecdsa.PrivateKey
	// replaces is the present certificate if the request is made with a token, else nil. It may have
	// the same key, and the request for it may still be there.
	replaces *tls.Certificate
	lifetime time.Duration
	timeout  time.Duration
	approved atomic.Bool // as the request was read last
}

// certificate makes the request, waits, verifies the certificate and returns it with its
// chain, PEM encoded.
func (r *request) certificate(ctx context.Context) ([]byte, error) {
	csr, err := r.object()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, &timeoutError{name: csr.Name, wait: r.timeout})
	defer cancel()
	now, err := r.create(ctx, csr)
	if err != nil {
		return nil, err
	}
	data, err := r.wait(ctx, csr, now)
	if err != nil {
		if errors.As(context.Cause(ctx), new(*timeoutError)) {
			return nil, &timeoutError{csr.Name, r.timeout, r.approved.Load()}
		}
		return nil, err
	}
	return data, r.verify(data)
}

// object makes the CertificateSigningRequest. Its name depends on its content, so that a
// repeated request finds the earlier one.
func (r *request) object() (*certificates.CertificateSigningRequest, error) {
	tmpl := &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: auth.NodeUserPrefix + r.node, Organization: []string{auth.NodesGroup}},
		DNSNames: r.names,
	}
	for _, a := range r.addresses {
		tmpl.IPAddresses = append(tmpl.IPAddresses, a.AsSlice())
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, r.key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	pub, err := x509.MarshalPKIXPublicKey(&r.key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	sum := sha256.New()
	sum.Write(pub)
	_, _ = fmt.Fprintf(sum, "%q%q%q%q", r.kind.signer, r.kind.usages, r.node, r.names) // a hash never fails
	if len(r.addresses) > 0 {
		_, _ = fmt.Fprintf(sum, "%q", r.addresses)
	}
	if r.replaces != nil {
		_, _ = sum.Write(r.replaces.Leaf.Raw)
	}
	csr := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{
			Name: r.kind.prefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum.Sum(nil))),
		},
		Spec: certificates.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: r.kind.signer,
			Usages:     r.kind.usages,
		},
	}
	if r.lifetime > 0 {
		seconds := int32(min(r.lifetime/time.Second, 1<<30)) //nolint:gosec // bounded
		csr.Spec.ExpirationSeconds = &seconds
	}
	return csr, nil
}

// create creates the request, or finds the one made before, and returns it as it is in the API.
func (r *request) create(ctx context.Context, csr *certificates.CertificateSigningRequest) (*certificates.CertificateSigningRequest, error) {
	made, err := r.api.Create(ctx, csr, metav1.CreateOptions{})
	if err == nil {
		r.log.Info("asked for a certificate", "request", csr.Name, "signer", r.kind.signer)
		return made, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create certificate request: %w", err)
	}
	old, err := r.api.Get(ctx, csr.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: %s", errNotOurs, csr.Name)
	case err != nil:
		return nil, fmt.Errorf("get certificate request: %w", err)
	case old.Spec.SignerName != r.kind.signer:
		return nil, fmt.Errorf("certificate request %s is for signer %s", csr.Name, old.Spec.SignerName)
	}
	return old, nil
}

// tellAfter is how long a request may have no answer before the log says what it may wait for.
const tellAfter = 10 * time.Second

// wait returns the certificate once it is issued. now is csr as it was read last: changes after
// that are watched, and it is read again only if a watch ends.
func (r *request) wait(ctx context.Context, csr, now *certificates.CertificateSigningRequest) ([]byte, error) {
	pending := time.AfterFunc(tellAfter, func() {
		if r.approved.Load() {
			r.log.Warn("no certificate yet: the request is approved, and its signer has not signed it", "request", csr.Name, "signer", r.kind.signer)
			return
		}
		r.log.Warn("no certificate yet: if nothing approves such requests in this cluster, run: kubectl certificate approve "+csr.Name, "signer", r.kind.signer)
	})
	defer pending.Stop()
	told := false
	for err := error(nil); ; now, err = r.api.Get(ctx, csr.Name, metav1.GetOptions{}) {
		pause := time.Second
		switch {
		case apierrors.IsNotFound(err):
			// It was deleted between two watches.
			if _, err = r.create(ctx, csr); err != nil {
				return nil, err
			}
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return nil, fmt.Errorf("get certificate request: %w", err)
		case err == nil:
			data, verdict := r.outcome(now)
			if data == nil && verdict == nil {
				data, verdict = r.watch(ctx, csr.Name, now.ResourceVersion)
			}
			if err = verdict; data != nil || verdict != nil && retryAfterIn(verdict) == 0 {
				return data, verdict
			}
		default:
			r.log.Debug("cannot look at the certificate request, will try again", "err", err)
		}
		if after := retryAfterIn(err); after > 0 {
			if pause = max(pause, after); !told {
				r.log.Info("the server is busy, will ask for the certificate when it says", "request", csr.Name, "err", err, "after", after)
				told = true
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for certificate request %s: %w", csr.Name, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// watch waits for the outcome during one watch. Without an outcome it returns nil, nil, or
// a *busyError.
func (r *request) watch(ctx context.Context, name, version string) ([]byte, error) {
	w, err := r.api.Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		ResourceVersion: version,
	})
	if retryAfterIn(err) > 0 {
		return nil, err
	}
	if err != nil {
		return nil, nil //nolint:nilerr // the caller reads it again, and returns a repeated error
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error || e.Type == watch.Deleted {
				return nil, nil
			}
			if csr, ok := e.Object.(*certificates.CertificateSigningRequest); ok && csr.Name == name {
				if data, err := r.outcome(csr); err != nil || data != nil {
					return data, err
				}
			}
		}
	}
}

// outcome returns the certificate, or why it was refused, or neither if it is pending.
func (r *request) outcome(csr *certificates.CertificateSigningRequest) ([]byte, error) {
	r.approved.Store(slices.ContainsFunc(csr.Status.Conditions, func(c certificates.CertificateSigningRequestCondition) bool {
		return c.Type == certificates.CertificateApproved && c.Status != corev1.ConditionFalse
	}))
	for _, c := range csr.Status.Conditions {
		if c.Status == corev1.ConditionFalse {
			continue
		}
		switch c.Type {
		case certificates.CertificateDenied:
			return nil, &DeniedError{Name: csr.Name, Reason: c.Reason, Message: c.Message}
		case certificates.CertificateFailed:
			return nil, &DeniedError{Name: csr.Name, Failed: true, Reason: c.Reason, Message: c.Message}
		}
	}
	if len(csr.Status.Certificate) == 0 {
		return nil, nil
	}
	return csr.Status.Certificate, nil
}

// verify checks that the certificate is for our key and name, and valid now.
func (r *request) verify(data []byte) error {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != certBlock {
		return errors.New("the signer returned no certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("the signer returned a bad certificate: %w", err)
	}
	if !r.key.PublicKey.Equal(cert.PublicKey) {
		return errors.New("the signer returned a certificate for another key")
	}
	if name, err := auth.NodeName(cert); err != nil || name != r.node {
		return fmt.Errorf("the signer returned a certificate for %q", cert.Subject.CommonName)
	}
	if now := time.Now(); now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		return &ClockError{What: "the certificate just signed", Now: now, From: cert.NotBefore, Until: cert.NotAfter}
	}
	return nil
}

// covers reports whether a certificate has exactly these names and addresses.
func covers(cert *x509.Certificate, names []string, addresses []netip.Addr) bool {
	return slices.Equal(addressesOf(cert), addresses) && slices.Equal(slices.Sorted(slices.Values(cert.DNSNames)), slices.Sorted(slices.Values(names)))
}

// addressesOf are the addresses in a certificate, sorted.
func addressesOf(cert *x509.Certificate) []netip.Addr {
	var all []netip.Addr
	for _, ip := range cert.IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			all = append(all, a.Unmap())
		}
	}
	return sortedAddresses(all)
}

// sortedAddresses are all of them, once each.
func sortedAddresses(all []netip.Addr) []netip.Addr {
	return slices.Compact(slices.SortedFunc(slices.Values(all), netip.Addr.Compare))
}
