package pki

// Tests of authorities and keys that are replaced while the server runs.

import (
	"crypto"
	"crypto/x509"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// A new authority of clients signs at once the certificates that this server verifies. It
// signs those that nodes verify once the nodes have had time to read it, or its predecessor
// was removed. A restart meanwhile removes nothing.
func TestAuthorityIsReplaced(t *testing.T) {
	c := config(t)
	now := time.Now()
	c.Now = func() time.Time { return now }
	p := ensure(t, c)
	old := pkitest.Load(t, p.Path(ClientCA, false), p.Path(ClientCA, true))
	another := pkitest.New(t, "another-ca")
	another.Key = pkitest.NewKey(t)
	another.Cert = nil
	another.Cert = another.Sign(t, &x509.Certificate{
		Subject: old.Cert.Subject, NotBefore: now.Add(-time.Second), NotAfter: now.Add(100 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, SubjectKeyId: []byte("another"),
	}, another.Key.Public())
	write := func(file string, data []byte) {
		t.Helper()
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(p.Path(ClientCA, true), pkitest.KeyPEM(t, another.Key))
	write(p.Path(ClientCA, false), append(another.PEM(), old.PEM()...))
	check := func(when string, p *PKI, admin, kubelets *pkitest.Authority) {
		t.Helper()
		for name, want := range map[string]*pkitest.Authority{Admin: admin, KubeletClient: kubelets} {
			certs, err := readCerts(p.Path(name, false))
			if err != nil || certs[0].CheckSignatureFrom(want.Cert) != nil {
				t.Errorf("%s, %s: signed by %s, %v", when, name, certs[0].Issuer, err)
			}
		}
	}
	renew := func() {
		t.Helper()
		if err := p.Renew(); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	check("at once", p, another, old)
	p = ensure(t, c)
	check("after a start", p, another, old)
	if certs, err := readCerts(p.Path(ClientCA, false)); err != nil || len(certs) != 2 || !certs[1].Equal(old.Cert) {
		t.Errorf("a start has taken the predecessor out: %d certificates, %v", len(certs), err)
	}
	was := now
	now = now.Add(settle + backdate)
	renew()
	check("in the end", p, another, another)
	now = was
	write(p.Path(ClientCA, true), pkitest.KeyPEM(t, old.Key))
	write(p.Path(ClientCA, false), old.PEM())
	renew()
	check("without a predecessor", p, old, old)
}

// Keys of tokens are followed: a new key signs, also if service-account.pub lacks it.
func TestAccountKeysAreFollowed(t *testing.T) {
	p := ensure(t, config(t))
	synctest.Test(t, func(t *testing.T) {
		file, err := p.FollowAccountKeys(new(auth.Files))
		if err != nil {
			t.Fatal(err)
		}
		first, key := file.Get(), pkitest.NewKey(t)
		for _, step := range []struct {
			data []byte
			want []crypto.PublicKey
		}{
			{[]byte("half"), first.Public},
			{pkitest.KeyPEM(t, key), []crypto.PublicKey{key.Public(), first.Public[0]}},
		} {
			if err := os.WriteFile(p.Path(serviceAccount, true), step.data, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // the bubble's clock
			checkKeys(t, file.Get(), step.want...)
		}
	})
}
