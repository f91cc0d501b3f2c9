package pki

// Tests of the keys of service accounts' tokens: made once, and rotated by hand.

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

func TestAccountKeys(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	first := p.AccountKeys()
	if len(first.Public) != 1 || !sameKey(first.Public[0], first.Signer.Public()) {
		t.Fatalf("%d keys", len(first.Public))
	}
	if again := ensure(t, c).AccountKeys(); len(again.Public) != 1 || !sameKey(again.Signer.Public(), first.Signer.Public()) {
		t.Error("a second start changed the key")
	}
	if fi, err := os.Stat(p.Path(serviceAccount, true)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode of the key: %v, %v", fi, err)
	}

	// Rotation: the old key is removed, and what it signed counts.
	remove(t, p.Path(serviceAccount, true))
	second := ensure(t, c).AccountKeys()
	checkKeys(t, second, second.Signer.Public(), first.Signer.Public())
	if sameKey(second.Signer.Public(), first.Signer.Public()) {
		t.Fatal("the key is the old one")
	}
	checkKeys(t, ensure(t, c).AccountKeys(), second.Signer.Public(), first.Signer.Public())
	// Its end is the removal of its block.
	block, _ := pem.Decode(read(t, p.accountsFile()))
	if err := os.WriteFile(p.accountsFile(), pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	checkKeys(t, ensure(t, c).AccountKeys(), second.Signer.Public())
	// A crash between the two files leaves a key that service-account.pub lacks.
	remove(t, p.accountsFile())
	checkKeys(t, ensure(t, c).AccountKeys(), second.Signer.Public())
}

func checkKeys(t *testing.T, have AccountKeys, want ...crypto.PublicKey) {
	t.Helper()
	if len(have.Public) != len(want) {
		t.Fatalf("%d keys, want %d", len(have.Public), len(want))
	}
	for i := range want {
		if !sameKey(have.Public[i], want[i]) {
			t.Errorf("key %d is another", i)
		}
	}
}

// Keys that cannot be read stop the start: without them tokens would end at once.
func TestAccountKeysThatCannotBeRead(t *testing.T) {
	many := bytes.Buffer{}
	for range maxAccountKeys {
		many.Write(publicPEM(t, pkitest.NewKey(t).Public()))
	}
	for name, data := range map[string][]byte{
		"no key":  pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}),
		"no PEM":  []byte("hello"),
		"trailer": append(publicPEM(t, pkitest.NewKey(t).Public()), "-----BEGIN"...),
		"many":    many.Bytes(),
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			p := ensure(t, c)
			if err := os.WriteFile(p.accountsFile(), data, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Ensure(c); err == nil || !strings.Contains(err.Error(), p.accountsFile()) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func publicPEM(t *testing.T, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}
