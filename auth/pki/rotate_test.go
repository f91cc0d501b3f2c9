package pki

// Tests of authorities and keys that are replaced while the server runs.

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
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
	now = now.Add(settle + auth.Backdate)
	renew()
	check("in the end", p, another, another)
	now = was
	write(p.Path(ClientCA, true), pkitest.KeyPEM(t, old.Key))
	write(p.Path(ClientCA, false), old.PEM())
	renew()
	check("without a predecessor", p, old, old)
}

// TestAuthorityOfAnotherForm: an authority may be an RSA pair, or an EC key as openssl writes
// it. The server goes on with it, and starts with it.
func TestAuthorityOfAnotherForm(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey := pkitest.NewKey(t)
	sec1, err := x509.MarshalECPrivateKey(ecKey)
	if err != nil {
		t.Fatal(err)
	}
	// "openssl ecparam -genkey" writes the parameters, here of P-256, before the key.
	params := pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte("\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07")})
	ec := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: sec1})
	for name, tc := range map[string]struct {
		key crypto.Signer
		pem []byte
	}{
		"RSA, PKCS 8":             {rsaKey, pkitest.KeyPEM(t, rsaKey)},
		"RSA, PKCS 1":             {rsaKey, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)})},
		"EC, SEC 1":               {ecKey, ec},
		"EC, SEC 1 by parameters": {ecKey, append(params, ec...)},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			p := ensure(t, c)
			old := pkitest.Load(t, p.Path(ClientCA, false), p.Path(ClientCA, true))
			another := &pkitest.Authority{Key: tc.key}
			another.Cert = another.Sign(t, &x509.Certificate{
				Subject: pkix.Name{CommonName: "another-ca"}, NotBefore: time.Now().Add(-time.Second), NotAfter: time.Now().Add(100 * 24 * time.Hour),
				KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
			}, tc.key.Public())
			write(t, p.Path(ClientCA, true), string(tc.pem))
			write(t, p.Path(ClientCA, false), string(another.PEM())+string(old.PEM()))
			if err := p.Renew(); err != nil {
				t.Fatalf("running: %v", err)
			}
			p, err := Ensure(c)
			if err != nil {
				t.Fatalf("a start: %v", err)
			}
			if certs := certs(t, p.Path(Admin, false)); certs[0].CheckSignatureFrom(another.Cert) != nil {
				t.Errorf("the administrator's certificate is signed by %s", certs[0].Issuer)
			}
		})
	}
}

// Keys of tokens are followed: a new key signs, also if service-account.pub lacks it.
func TestAccountKeysAreFollowed(t *testing.T) {
	p := ensure(t, config(t))
	synctest.Test(t, func(t *testing.T) {
		file, err := p.FollowAccountKeys(new(auth.Files))
		if err != nil {
			t.Fatal(err)
		}
		first, key, next := file.Get(), pkitest.NewKey(t), pkitest.NewKey(t)
		for _, step := range []struct {
			data []byte
			want []crypto.PublicKey
		}{
			{[]byte("half"), first.Public},
			{pkitest.KeyPEM(t, key), []crypto.PublicKey{key.Public(), first.Public[0]}},
			{pkitest.KeyPEM(t, next), []crypto.PublicKey{next.Public(), key.Public(), first.Public[0]}},
		} {
			if err := os.WriteFile(p.Path(serviceAccount, true), step.data, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // the bubble's clock
			checkKeys(t, file.Get(), step.want...)
		}
		// A block that is taken out does not come back.
		if err := os.WriteFile(p.accountsFile(), publicPEM(t, next.Public()), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // the bubble's clock
		checkKeys(t, file.Get(), next.Public())
	})
}
