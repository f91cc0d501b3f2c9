package kubelet

// Certificates for tests.

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"testing"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// pki makes the certificates of a test.
type pki struct {
	*pkitest.Authority
	t   *testing.T
	dir string
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{Authority: pkitest.New(t, "cluster"), t: t, dir: t.TempDir()}
	p.write("ca.crt", p.PEM())
	return p
}

func (p *pki) write(name string, data []byte) string {
	p.t.Helper()
	file := filepath.Join(p.dir, name)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return file
}

// issue returns a certificate of the cluster for names.
func (p *pki) issue(cn string, names ...string) tls.Certificate {
	p.t.Helper()
	return *p.Issue(p.t, &x509.Certificate{
		Subject: pkix.Name{CommonName: cn}, DNSNames: names,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

// clientFiles writes a client's pair.
func (p *pki) clientFiles(cn string) (cert, key string) {
	p.t.Helper()
	c := p.issue(cn)
	return p.write("client.crt", pkitest.PEM("CERTIFICATE", c.Certificate[0])), p.write("client.key", pkitest.KeyPEM(p.t, c.PrivateKey))
}
