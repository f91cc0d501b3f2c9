// This file verifies a server by the hash of its CA.

package bootstrap

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/auth"
)

// pinned verifies a server by the hash of its CA. The server sends the CA in its chain.
type pinned struct {
	host  string // the name that its certificate must have
	pins  []Pin
	known []*x509.Certificate // CAs that it need not send

	mu    sync.Mutex
	found *x509.Certificate
}

func (p *pinned) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, // an existing cluster's API server may be older
		ServerName: p.host,
		// The chain is verified below, against a root that is not known before.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection:   p.verify,
	}
}

func (p *pinned) verify(cs tls.ConnectionState) error {
	var have []Pin
	expected := false // whether a CA is one of pins
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, cert := range slices.Concat(p.known, cs.PeerCertificates[1:]) {
		between.AddCert(cert)
		if !cert.IsCA {
			continue
		}
		have = append(have, PinOf(cert))
		if pinsMatch(p.pins, cert) {
			roots.AddCert(cert) // while the CA is replaced there are two
			expected = true
		}
	}
	if !expected {
		return &PinError{Server: p.host, Want: p.pins, Have: have, Shown: cs.PeerCertificates[0]}
	}
	if err := auth.NotNode(cs.PeerCertificates); err != nil {
		return err
	}
	leaf, now := cs.PeerCertificates[0], time.Now()
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, DNSName: p.host, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	var (
		invalid x509.CertificateInvalidError
		host    x509.HostnameError
	)
	switch {
	case errors.As(err, &host):
		return fmt.Errorf("the certificate of %s: %w; if it is the API server of a cluster that was there before, say its name (--apiserver-name), else add this one to the certificate with the server's --tls-san", p.host, err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return &ClockError{What: "the certificate of " + p.host, Now: now, From: invalid.Cert.NotBefore, Until: invalid.Cert.NotAfter}
	case err != nil:
		return fmt.Errorf("the certificate of %s: %w", p.host, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found = chains[0][len(chains[0])-1]
	return nil
}

// ca returns the CA of the last connection that was verified.
func (p *pinned) ca() *x509.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.found
}
