package csr

// Rules: what may be asked for, as pure functions.

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hawser-project/hawser/auth"
)

const (
	nodePrefix = "system:node:"
	nodesGroup = "system:nodes"
	masters    = "system:masters"
	minRSABits = 2048
)

// Bounds of what is looked at. Real requests have less than 2 KiB.
const (
	maxRequest = 16 << 10
	maxRSABits = 8192
)

// parse reads the request that r carries and checks its signature, which proves
// that whoever made it holds the key.
func parse(r *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	if len(r.Spec.Request) > maxRequest {
		return nil, fmt.Errorf("request has %d bytes, at most %d are read", len(r.Spec.Request), maxRequest)
	}
	block, _ := pem.Decode(r.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse request: %w", err)
	}
	// A signature by a huge key takes long to check.
	if k, ok := req.PublicKey.(*rsa.PublicKey); ok && k.N.BitLen() > maxRSABits {
		return nil, fmt.Errorf("RSA key has %d bits, at most %d are read", k.N.BitLen(), maxRSABits)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("check the request's signature: %w", err)
	}
	return req, nil
}

// checkKey refuses keys too weak to sign for.
func checkKey(req *x509.CertificateRequest) error {
	switch k := req.PublicKey.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSABits {
			return fmt.Errorf("RSA key has %d bits, at least %d are needed", k.N.BitLen(), minRSABits)
		}
	case *ecdsa.PublicKey:
		if k.Curve.Params().BitSize < 256 {
			return fmt.Errorf("ECDSA key is on %s, at least P-256 is needed", k.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return fmt.Errorf("key of type %T is not supported", k)
	}
	return nil
}

// checkUsages wants exactly required, with key encipherment besides if need be,
// which only RSA has a use for but older kubelets always ask for.
func checkUsages(got []certificatesv1.KeyUsage, required ...certificatesv1.KeyUsage) error {
	for _, u := range got {
		if u != certificatesv1.UsageKeyEncipherment && !slices.Contains(required, u) {
			return fmt.Errorf("usage %q is not allowed", u)
		}
	}
	for _, u := range required {
		if !slices.Contains(got, u) {
			return fmt.Errorf("usage %q is missing", u)
		}
	}
	return nil
}

// subjectAltName is the one extension that a kubelet asks for (RFC 5280, 4.2.1.6).
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// checkExtensions refuses what kubelets never ask for: other extensions, such as to
// be an authority, and alternative names of a kind that nobody here reads.
func checkExtensions(req *x509.CertificateRequest) error {
	for _, e := range req.Extensions { // no two of a kind, or it would not have been parsed
		if !e.Id.Equal(subjectAltName) {
			return fmt.Errorf("extension %s is not allowed", e.Id)
		}
		var names []asn1.RawValue
		if _, err := asn1.Unmarshal(e.Value, &names); err != nil {
			return fmt.Errorf("alternative names: %w", err)
		}
		for _, n := range names {
			if !slices.Contains([]int{1, 2, 6, 7}, n.Tag) { // e-mail, DNS, URI, IP
				return fmt.Errorf("alternative names of kind %d are not allowed", n.Tag)
			}
		}
	}
	return nil
}

// nodeSubject returns the name of the node that a request's subject names, if it asks
// for nothing that kubelets do not. The subject of a node is system:node:NAME in
// system:nodes and no other group.
func nodeSubject(req *x509.CertificateRequest) (string, error) {
	if err := checkExtensions(req); err != nil {
		return "", err
	}
	if o := req.Subject.Organization; len(o) != 1 || o[0] != nodesGroup {
		return "", fmt.Errorf("subject organization must be [%s], is %q", nodesGroup, o)
	}
	name, ok := strings.CutPrefix(req.Subject.CommonName, nodePrefix)
	if !ok {
		return "", fmt.Errorf("subject common name must begin with %s, is %q", nodePrefix, req.Subject.CommonName)
	}
	if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
		return "", fmt.Errorf("node name %q is not a DNS subdomain: %s", name, strings.Join(errs, "; "))
	}
	return name, nil
}

// kubeletClient returns the node that a request for a kubelet's client
// certificate is for.
func kubeletClient(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) (string, error) {
	name, err := nodeSubject(req)
	if err != nil {
		return "", err
	}
	if n := len(req.DNSNames) + len(req.IPAddresses) + len(req.EmailAddresses) + len(req.URIs); n > 0 {
		return "", errors.New("subject alternative names are not allowed")
	}
	return name, checkUsages(usages, certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)
}

// kubeletServing returns the node that a request for a kubelet's serving
// certificate is for. Only the node itself may make one.
func kubeletServing(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage, username string) (string, error) {
	name, err := nodeSubject(req)
	if err != nil {
		return "", err
	}
	if username != nodePrefix+name {
		return "", fmt.Errorf("%s cannot ask for the serving certificate of node %s", username, name)
	}
	if len(req.EmailAddresses)+len(req.URIs) > 0 {
		return "", errors.New("e-mail addresses and URIs are not allowed")
	}
	if len(req.DNSNames)+len(req.IPAddresses) == 0 {
		return "", errors.New("at least one DNS name or IP address is needed")
	}
	return name, checkUsages(usages, certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth)
}

// servesNode tells whether a serving certificate names exactly the node: by that name
// everybody who dials a kubelet verifies it.
func servesNode(req *x509.CertificateRequest, node string) bool {
	return len(req.DNSNames) == 1 && req.DNSNames[0] == node && len(req.IPAddresses) == 0
}

// checkOwn refuses names and addresses of the server, in the subject of a node and
// among the alternative names.
func checkOwn(req *x509.CertificateRequest, server *auth.ServerNames) error {
	if node, ok := strings.CutPrefix(req.Subject.CommonName, nodePrefix); ok {
		if err := server.Check(node); err != nil {
			return err
		}
	}
	for _, name := range req.DNSNames {
		if server.Own(name) {
			return fmt.Errorf("DNS name %q is the server's", name)
		}
	}
	for _, ip := range req.IPAddresses {
		if server.Own(ip.String()) {
			return fmt.Errorf("IP address %s is the server's", ip)
		}
	}
	return nil
}

// checkSigner says whether what a request asks for fits its signer. It is asked
// for approved requests, whoever approved them.
func checkSigner(r *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest, server *auth.ServerNames) error {
	if err := checkKey(req); err != nil {
		return err
	}
	if err := checkOwn(req, server); err != nil {
		return err
	}
	switch r.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		_, err := kubeletClient(req, r.Spec.Usages)
		return err
	case certificatesv1.KubeletServingSignerName:
		_, err := kubeletServing(req, r.Spec.Usages, r.Spec.Username)
		return err
	case certificatesv1.KubeAPIServerClientSignerName:
		for _, group := range []string{masters, auth.ServersGroup} {
			if slices.Contains(req.Subject.Organization, group) {
				return fmt.Errorf("subject organization must not include %s", group)
			}
		}
		return checkClientUsages(r.Spec.Usages)
	default:
		return fmt.Errorf("signer %q is not ours", r.Spec.SignerName)
	}
}

// checkClientUsages is the rule of the general client signer, which leaves more
// to whoever approves.
func checkClientUsages(got []certificatesv1.KeyUsage) error {
	allowed := []certificatesv1.KeyUsage{
		certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth,
	}
	for _, u := range got {
		if !slices.Contains(allowed, u) {
			return fmt.Errorf("usage %q is not allowed", u)
		}
	}
	if !slices.Contains(got, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("usage %q is missing", certificatesv1.UsageClientAuth)
	}
	return nil
}

// signers are the names that the signer serves. kubernetes.io/legacy-unknown is
// not one: what it would sign nobody has checked, and the cluster's authority is
// believed by every component.
var signers = []string{
	certificatesv1.KubeAPIServerClientKubeletSignerName,
	certificatesv1.KubeletServingSignerName,
	certificatesv1.KubeAPIServerClientSignerName,
}

// decided tells whether a request has been approved, denied or failed.
func decided(r *certificatesv1.CertificateSigningRequest) (approved, denied, failed bool) {
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateApproved:
			approved = true
		case certificatesv1.CertificateDenied:
			denied = true
		case certificatesv1.CertificateFailed:
			failed = true
		}
	}
	return approved, denied, failed
}
