// Authority: certificates of both ends, good ones and others.

package tunneltest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"
)

// An Authority issues certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority of that name.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	a.cert = sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
	}, nil, a.key, &a.key.PublicKey)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign signs template for pub, by itself if there is no parent.
func sign(t testing.TB, template, parent *x509.Certificate, key *ecdsa.PrivateKey, pub *ecdsa.PublicKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Pool holds the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// Issue makes a certificate for both ends' use that lasts until then; zero is an
// hour.
func (a *Authority) Issue(t testing.TB, name string, until time.Time) tls.Certificate {
	t.Helper()
	key := newKey(t)
	c := sign(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: []string{"system:nodes"}},
		DNSNames:    []string{"server"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		NotAfter:    until,
	}, a.cert, a.key, &key.PublicKey)
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
}

// Server is a configuration of the accepting end, which asks for certificates.
func (a *Authority) Server(t testing.TB) *tls.Config {
	t.Helper()
	return &tls.Config{
		Certificates: []tls.Certificate{a.Issue(t, "server", time.Time{})},
		ClientCAs:    a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// Client is a configuration of a node.
func (a *Authority) Client(t testing.TB, node string) *tls.Config {
	t.Helper()
	return &tls.Config{
		Certificates: []tls.Certificate{a.Issue(t, "system:node:"+node, time.Time{})},
		RootCAs:      a.Pool(), ServerName: "server",
	}
}
