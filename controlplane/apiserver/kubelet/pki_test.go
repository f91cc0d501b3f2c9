package kubelet

// Certificates for tests.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pki makes the certificates of a test.
type pki struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{t: t, dir: t.TempDir()}
	p.key = p.newKey()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	p.cert = p.make(tmpl, tmpl, &p.key.PublicKey, p.key)
	p.write("ca.crt", "CERTIFICATE", p.cert.Raw)
	return p
}

func (p *pki) newKey() *ecdsa.PrivateKey {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	return key
}

func (p *pki) make(tmpl, parent *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) *x509.Certificate {
	p.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		p.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		p.t.Fatal(err)
	}
	return cert
}

func (p *pki) write(name, kind string, der []byte) string {
	p.t.Helper()
	file := filepath.Join(p.dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return file
}

// issue returns a certificate of the cluster for names.
func (p *pki) issue(cn string, names ...string) tls.Certificate {
	p.t.Helper()
	key := p.newKey()
	cert := p.make(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: cn}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, p.cert, &key.PublicKey, p.key)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// clientFiles writes a client's pair.
func (p *pki) clientFiles(cn string) (cert, key string) {
	p.t.Helper()
	c := p.issue(cn)
	signer, _ := c.PrivateKey.(*ecdsa.PrivateKey)
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.write("client.crt", "CERTIFICATE", c.Certificate[0]), p.write("client.key", "PRIVATE KEY", der)
}

func (p *pki) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(p.cert)
	return pool
}
