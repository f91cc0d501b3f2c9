// The client certificate of a server for the other servers of its cluster.

package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"

	"github.com/hawser-project/hawser/auth"
)

// ServerCertificate makes the client certificate of the server with that ID. It is not
// written to a file: servers that share the authorities have one each. It is valid as long
// as other certificates of the control plane.
func (p *PKI) ServerCertificate(id string) (*tls.Certificate, error) {
	if err := auth.CheckServerID(id); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now, ca := p.cfg.Now(), &p.client
	end := now.Add(leafLife)
	if end.After(ca.cert.NotAfter) {
		end = ca.cert.NotAfter
	}
	cert, err := sign(&x509.Certificate{
		Subject:   pkix.Name{CommonName: auth.ServerUserPrefix + id, Organization: []string{auth.ServersGroup}},
		NotBefore: now.Add(-auth.Backdate), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}
