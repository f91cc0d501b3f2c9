package kubeauth

// Tests of the cache of client certificates.

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/hawser-project/hawser/auth"
)

// counted is verifiedCertificates with a count of verifications.
type counted struct {
	*verifiedCertificates
	verifications int
}

func newCounted(t *testing.T, ca *issuer, limit int) (c *counted, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	authorities, err := new(auth.Files).Authorities(file)
	if err != nil {
		t.Fatal(err)
	}
	c = &counted{verifiedCertificates: newVerifiedCertificates(authorities, nil, limit)}
	verify := c.verify
	c.verify = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		c.verifications++
		return verify.AuthenticateRequest(r)
	})
	return c, file
}

// show authenticates by certs and returns the user, empty if refused.
func (c *counted) show(t *testing.T, certs ...*x509.Certificate) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: certs}
	resp, ok, err := c.AuthenticateRequest(r)
	if !ok {
		return ""
	}
	if err != nil {
		t.Fatalf("accepted with an error: %v", err)
	}
	if _, is := resp.User.(*datedInfo); is {
		t.Error("what is our own got out")
	}
	return resp.User.GetName()
}

const nodeOne = "system:node:node-1"

func (c *counted) expect(t *testing.T, step, want string, verifications int, certs ...*x509.Certificate) {
	t.Helper()
	if got := c.show(t, certs...); got != want || c.verifications != verifications {
		t.Errorf("%s: %q after %d verifications, want %q after %d", step, got, c.verifications, want, verifications)
	}
}

// lasting makes a certificate expire after d.
func lasting(d time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotAfter = time.Now().Add(d) }
}

func TestCertificateIsVerifiedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newIssuer(t, "ca")
		c, _ := newCounted(t, ca, 8)
		cert := ca.client(t, nil)
		c.expect(t, "first", nodeOne, 1, cert)
		<-time.After(certificateTrust - 1)
		c.expect(t, "again", nodeOne, 1, cert)
		<-time.After(1)
		c.expect(t, "a minute later", nodeOne, 2, cert)
		c.expect(t, "and again", nodeOne, 2, cert)
	})
}

func TestRememberedCertificateExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newIssuer(t, "ca")
		c, _ := newCounted(t, ca, 8)
		// Certificates have whole seconds; the bubble's clock starts at one.
		cert := ca.client(t, lasting(10*time.Second))
		c.expect(t, "fresh", nodeOne, 1, cert)
		<-time.After(10*time.Second - 1)
		c.expect(t, "to the last moment", nodeOne, 1, cert)
		<-time.After(2)
		c.expect(t, "expired", "", 2, cert)
		c.expect(t, "still", "", 3, cert)
	})
}

// The expiry of the authority, and of an intermediate one, counts as well.
func TestRememberedChainExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newIssuer(t, "ca")
		between := newIssuer(t, "between")
		between.Cert = ca.Sign(t, &x509.Certificate{
			Subject: pkix.Name{CommonName: "between"}, NotAfter: time.Now().Add(10 * time.Second),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}, between.Key.Public())
		cert := between.client(t, nil)
		c, _ := newCounted(t, ca, 8)
		c.expect(t, "the whole chain", nodeOne, 1, cert, between.Cert)
		c.expect(t, "again", nodeOne, 1, cert, between.Cert)
		c.expect(t, "without the link", "", 2, cert)
		<-time.After(10*time.Second + 1)
		c.expect(t, "the link has expired", "", 3, cert, between.Cert)
	})
}

func TestRememberedCertificateOfAnotherAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newIssuer(t, "first"), newIssuer(t, "second")
		c, file := newCounted(t, first, 8)
		cert := first.client(t, nil)
		c.expect(t, "trusted", nodeOne, 1, cert)
		stamp := time.Now().Add(time.Hour)
		if err := errors.Join(os.WriteFile(file, second.PEM(), 0o600), os.Chtimes(file, stamp, stamp)); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		c.expect(t, "no longer", "", 2, cert)
		c.expect(t, "the new authority's", nodeOne, 3, second.client(t, nil))
		c.expect(t, "still not", "", 4, cert)
	})
}

// Refused certificates are not cached, and the number of the others is bounded.
func TestRememberedCertificatesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, other := newIssuer(t, "ca"), newIssuer(t, "other")
		const limit = 4
		c, _ := newCounted(t, ca, limit)
		for range 3 * limit {
			c.show(t, other.client(t, nil))
		}
		if n := len(c.young) + len(c.old); n != 0 {
			t.Fatalf("%d strangers are remembered", n)
		}
		var last *x509.Certificate
		for i := range 5 * limit {
			last = ca.client(t, func(c *x509.Certificate) { c.Subject.CommonName = fmt.Sprintf("system:node:node-%d", i) })
			c.show(t, last)
			if n := len(c.young) + len(c.old); n > 2*limit {
				t.Fatalf("%d are remembered, want %d at most", n, 2*limit)
			}
		}
		before := c.verifications
		c.expect(t, "the last", fmt.Sprintf("system:node:node-%d", 5*limit-1), before, last)
	})
}

// A response is the caller's own: changing it does not change the cached one.
func TestRememberedResponseIsNotShared(t *testing.T) {
	ca := newIssuer(t, "ca")
	c, _ := newCounted(t, ca, 8)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{ca.client(t, nil)}}
	for range 3 {
		resp, ok, err := c.AuthenticateRequest(r)
		if !ok || err != nil || resp.User == nil {
			t.Fatalf("%v, %v, %v", resp, ok, err)
		}
		resp.User = nil
	}
}
