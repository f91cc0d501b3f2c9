package kubeauth

// Tests of front proxies: whose headers are accepted.

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestFrontProxy(t *testing.T) {
	clients, proxies := newIssuer(t, "clients"), newIssuer(t, "proxies")
	dir := t.TempDir()
	clientsFile, proxiesFile := filepath.Join(dir, "clients"), filepath.Join(dir, "proxies")
	for file, ca := range map[string]*issuer{clientsFile: clients, proxiesFile: proxies} {
		if err := os.WriteFile(file, ca.PEM(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authn, err := NewAuthenticator(AuthenticatorConfig{ClientCAFile: clientsFile, FrontProxy: &FrontProxy{
		CAFile: proxiesFile, AllowedNames: []string{"aggregator"},
		UserHeaders: []string{"X-Remote-User"}, GroupHeaders: []string{"X-Remote-Group"}, ExtraPrefixes: []string{"X-Remote-Extra-"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	named := func(name string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: name} }
	}
	serving := func(c *x509.Certificate) {
		named("aggregator")(c)
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	for _, tt := range []struct {
		name   string
		cert   *x509.Certificate
		header map[string]string
		want   string // empty: refused
	}{
		{"a proxy", proxies.client(t, named("aggregator")), map[string]string{"X-Remote-User": "ann", "X-Remote-Group": "staff"}, "ann [staff system:authenticated]"},
		{"a proxy that names nobody", proxies.client(t, named("aggregator")), map[string]string{"X-Remote-Group": "staff"}, ""},
		{"another name", proxies.client(t, named("other")), map[string]string{"X-Remote-User": "ann"}, ""},
		{"a serving certificate", proxies.client(t, serving), map[string]string{"X-Remote-User": "ann"}, ""},
		{"a client that says it is another", clients.client(t, named("joe")), map[string]string{"X-Remote-User": "ann"}, "joe [system:authenticated]"},
		{"a client called like the proxy", clients.client(t, named("aggregator")), map[string]string{"X-Remote-User": "ann"}, "aggregator [system:authenticated]"},
		{"nobody", nil, map[string]string{"X-Remote-User": "ann", "X-Remote-Group": "system:masters"}, "system:anonymous [system:unauthenticated]"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/api", nil)
		if r.TLS = (&tls.ConnectionState{}); tt.cert != nil {
			r.TLS.PeerCertificates = []*x509.Certificate{tt.cert}
		}
		for k, v := range tt.header {
			r.Header.Set(k, v)
		}
		resp, ok, err := authn.AuthenticateRequest(r)
		got := ""
		if ok && err == nil {
			got = fmt.Sprint(resp.User.GetName(), " ", resp.User.GetGroups())
		}
		if got != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
		}
		if ok && len(r.Header) > 0 && tt.want == "ann [staff system:authenticated]" {
			t.Errorf("the headers go on: %v", r.Header)
		}
	}
	if _, err := NewAuthenticator(AuthenticatorConfig{ClientCAFile: clientsFile, FrontProxy: &FrontProxy{CAFile: "/nonexistent"}}); err == nil {
		t.Error("an authority that is not there")
	}
}
