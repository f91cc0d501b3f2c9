package kubeauth

// Tests of the authenticator, with real certificates.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// issuer makes certificates.
type issuer struct{ *pkitest.Authority }

func newIssuer(t testing.TB, name string) *issuer { return &issuer{pkitest.New(t, name)} }

func (i *issuer) client(t testing.TB, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	tmpl := pkitest.NodeClient("node-1")
	tmpl.NotBefore = time.Now().Add(-time.Hour)
	if change != nil {
		change(tmpl)
	}
	return i.Sign(t, tmpl, pkitest.NewKey(t).Public())
}

func tokenSecret(change func(*corev1.Secret)) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
		Type:       "bootstrap.kubernetes.io/token",
		Data: map[string][]byte{
			"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
			"usage-bootstrap-authentication": []byte("true"),
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func set(key, value string) func(*corev1.Secret) {
	return func(s *corev1.Secret) { s.Data[key] = []byte(value) }
}

func TestAuthenticateCertificate(t *testing.T) {
	ca, other := newIssuer(t, "ca"), newIssuer(t, "other")
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := NewAuthenticator(AuthenticatorConfig{ClientCAFile: file})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		cert   *x509.Certificate
		user   string // empty: refused
		groups []string
	}{
		{"a node", ca.client(t, nil), "system:node:node-1", []string{"system:nodes", "system:authenticated"}},
		{"an administrator", ca.client(t, func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}}
		}), "kubernetes-admin", []string{"system:masters", "system:authenticated"}},
		{"of another authority", other.client(t, nil), "", nil},
		{"expired", ca.client(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "", nil},
		{"not yet valid", ca.client(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), "", nil},
		{"a server's", ca.client(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "", nil},
		{"none", nil, "system:anonymous", []string{"system:unauthenticated"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			req.TLS = &tls.ConnectionState{}
			if tc.cert != nil {
				req.TLS.PeerCertificates = []*x509.Certificate{tc.cert}
			}
			checkUser(t, auth, req, tc.user, tc.groups)
		})
	}
}

func checkUser(t *testing.T, auth authenticator.Request, req *http.Request, want string, groups []string) {
	t.Helper()
	resp, ok, err := auth.AuthenticateRequest(req)
	if want == "" {
		if ok {
			t.Fatalf("got in as %q", resp.User.GetName())
		}
		if err == nil {
			t.Fatal("refused without a reason, which lets the request pass as anonymous")
		}
		return
	}
	if err != nil || !ok {
		t.Fatalf("refused: %v", err)
	}
	if got := resp.User.GetName(); got != want {
		t.Errorf("user %q, want %q", got, want)
	}
	if got := resp.User.GetGroups(); !slices.Equal(got, groups) {
		t.Errorf("groups %q, want %q", got, groups)
	}
}

func TestAuthenticateToken(t *testing.T) {
	const good = "abcdef.0123456789abcdef"
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	boot := []string{"system:bootstrappers", "system:authenticated"}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, newIssuer(t, "ca").PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, token string
		secret      *corev1.Secret
		ok          bool
		groups      []string
	}{
		{"good", good, tokenSecret(nil), true, boot},
		{"expires later", good, tokenSecret(set("expiration", in(time.Hour))), true, boot},
		{"with an offset", good, tokenSecret(set("expiration", time.Now().Add(time.Hour).In(time.FixedZone("", 3600)).Format(time.RFC3339))), true, boot},
		{
			"with groups", good, tokenSecret(set("auth-extra-groups", "system:bootstrappers:edge, system:bootstrappers:a-b")), true,
			[]string{"system:bootstrappers", "system:bootstrappers:edge", "system:bootstrappers:a-b", "system:authenticated"},
		},
		{"no such secret", good, nil, false, nil},
		{"wrong secret", "abcdef.0123456789abcdee", tokenSecret(nil), false, nil},
		{"expired", good, tokenSecret(set("expiration", in(-time.Second))), false, nil},
		{"unreadable date", good, tokenSecret(set("expiration", "tomorrow")), false, nil},
		{"may not authenticate", good, tokenSecret(set("usage-bootstrap-authentication", "false")), false, nil},
		{"says nothing of authenticating", good, tokenSecret(func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }), false, nil},
		{"of another type", good, tokenSecret(func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }), false, nil},
		{"of another id", good, tokenSecret(set("token-id", "fedcba")), false, nil},
		{"without a secret", good, tokenSecret(set("token-secret", "")), false, nil},
		{"being deleted", good, tokenSecret(func(s *corev1.Secret) { now := metav1.Now(); s.DeletionTimestamp = &now }), false, nil},
		{"a group too great", good, tokenSecret(set("auth-extra-groups", "system:masters")), false, nil},
		{"a group that looks right", good, tokenSecret(set("auth-extra-groups", "x-system:bootstrappers:edge")), false, nil},
		{"not a token", "hunter2", tokenSecret(nil), false, nil},
		{"upper case", strings.ToUpper(good), tokenSecret(nil), false, nil},
		{"too long", good + "0", tokenSecret(nil), false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			auth, err := NewAuthenticator(AuthenticatorConfig{ClientCAFile: file, Secrets: func(_ context.Context, ns, name string, _ func(*corev1.Secret) bool) (*corev1.Secret, error) {
				if tc.secret == nil || ns != "kube-system" || name != "bootstrap-token-abcdef" {
					return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
				}
				return tc.secret, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			req.Header.Set("Authorization", "Bearer "+tc.token)
			want := ""
			if tc.ok {
				want = "system:bootstrap:abcdef"
			}
			checkUser(t, auth, req, want, tc.groups)
		})
	}
}

// TestBogusTokensCostNothing: tokens that do not exist are read a few times a second, for all
// clients together, and tokens with a wrong secret are not read. A valid token is accepted
// meanwhile, until it is deleted.
func TestBogusTokensCostNothing(t *testing.T) {
	secret := tokenSecret(nil)
	secret.Namespace, secret.Name = "kube-system", "bootstrap-token-abcdef"
	o, client := objects(t, secret)
	b := &bootstrapTokens{secrets: o.Secret}
	client.ClearActions()
	in := func(token string) bool {
		t.Helper()
		_, ok, err := b.AuthenticateToken(t.Context(), token)
		if err != nil && !errors.Is(err, errToken) {
			t.Fatal(err)
		}
		return ok
	}
	for i := range 10_000 {
		if in(fmt.Sprintf("%06d.0123456789abcdef", i)) || in(fmt.Sprintf("abcdef.%016d", i)) || in(fmt.Sprintf("x%d", i)) {
			t.Fatal("let in")
		}
	}
	if n := len(client.Actions()); n > 4*tokensBurst {
		t.Errorf("%d reads", n)
	}
	if !in("abcdef.0123456789abcdef") {
		t.Error("the right token is refused while others are guessed")
	}
	must := client.CoreV1().Secrets("kube-system").Delete(t.Context(), secret.Name, metav1.DeleteOptions{})
	if must != nil || in("abcdef.0123456789abcdef") {
		t.Errorf("a deleted token is let in, %v", must)
	}
}

// TestNewTokenWorksAtOnce: also before the cache has it.
func TestNewTokenWorksAtOnce(t *testing.T) {
	o, client := objects(t)
	client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, tokenSecret(nil), nil })
	b := &bootstrapTokens{secrets: o.Secret}
	if _, ok, err := b.AuthenticateToken(t.Context(), "abcdef.0123456789abcdef"); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

// TestTokenLookupFails: if the store cannot be read, a token is neither accepted nor refused:
// the answer is an error.
func TestTokenLookupFails(t *testing.T) {
	down := errors.New("etcd is down")
	b := &bootstrapTokens{secrets: func(context.Context, string, string, func(*corev1.Secret) bool) (*corev1.Secret, error) {
		return nil, down
	}}
	if _, ok, err := b.AuthenticateToken(t.Context(), "abcdef.0123456789abcdef"); ok || !errors.Is(err, down) {
		t.Errorf("got %v, %v", ok, err)
	}
}

// TestSupersededAuthority: certificates that an authority signed before its replacement are
// valid, and later ones are not.
func TestSupersededAuthority(t *testing.T) {
	old, now := newIssuer(t, "old"), newIssuer(t, "now")
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, append(now.PEM(), old.PEM()...), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := NewAuthenticator(AuthenticatorConfig{ClientCAFile: file})
	if err != nil {
		t.Fatal(err)
	}
	began := now.Cert.NotBefore
	for name, tc := range map[string]struct {
		by   *issuer
		from time.Time
		want bool
	}{
		"before":         {old, began.Add(-time.Minute), true},
		"at that time":   {old, began, true},
		"later":          {old, began.Add(time.Second), false},
		"by the new one": {now, began.Add(time.Second), true},
	} {
		cert := tc.by.client(t, func(c *x509.Certificate) { c.NotBefore = tc.from })
		for range 2 { // the second time it may be cached
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
			if _, ok, err := auth.AuthenticateRequest(r); ok != tc.want {
				t.Errorf("%s: %v, %v", name, ok, err)
			}
		}
	}
}

func TestNewAuthenticatorNeedsItsFile(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.crt")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{filepath.Join(dir, "none.crt"), empty} {
		if _, err := NewAuthenticator(AuthenticatorConfig{ClientCAFile: file}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: got %v, want an error that names it", file, err)
		}
	}
}

// FuzzBootstrapToken: only the one valid token is accepted.
func FuzzBootstrapToken(f *testing.F) {
	for _, s := range []string{"abcdef.0123456789abcdef", "abcdef.", ".", "", "abcdef.0123456789abcdeg", "abcdef.0123456789abcdef\n"} {
		f.Add(s)
	}
	b := &bootstrapTokens{secrets: func(context.Context, string, string, func(*corev1.Secret) bool) (*corev1.Secret, error) {
		return tokenSecret(nil), nil
	}}
	f.Fuzz(func(t *testing.T, token string) {
		_, ok, err := b.AuthenticateToken(t.Context(), token)
		if want := token == "abcdef.0123456789abcdef"; ok != want || ok && err != nil {
			t.Errorf("%q: got %v, %v", token, ok, err)
		}
	})
}
