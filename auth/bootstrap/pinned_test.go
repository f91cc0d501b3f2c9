// Tests of how a server is verified by the hash of its CA.

package bootstrap

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"
)

// While the cluster's CA is replaced the server has two, and shows a certificate of either.
// Any of those that were named verifies it, and what is found is the one that did.
func TestServerOfTwoAuthorities(t *testing.T) {
	old, next, foreign := newAuthority(t), newAuthority(t), newAuthority(t)
	bundle := []*x509.Certificate{old.Cert, next.Cert}
	both := []Pin{PinOf(old.Cert), PinOf(next.Cert)}
	for name, tt := range map[string]struct {
		by   *authority // of the certificate that the server shows
		pins []Pin
		want *authority // nil if the server is not believed
	}{
		"old one's, both named":     {old, both, old},
		"new one's, both named":     {next, both, next},
		"new one's, that one named": {next, both[1:], next},
		"new one's, the old named":  {next, both[:1], nil},
		"another's":                 {foreign, both, nil},
	} {
		leaf := tt.by.Issue(t, &x509.Certificate{DNSNames: []string{"api"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}).Leaf
		for how, p := range map[string]*pinned{
			"shown":     {host: "api", pins: tt.pins},
			"published": {host: "api", pins: tt.pins, known: bundle},
		} {
			shown := []*x509.Certificate{leaf}
			if how == "shown" {
				shown = append(shown, bundle...)
			}
			err := p.verify(tls.ConnectionState{PeerCertificates: shown})
			if tt.want == nil {
				if err == nil || errors.As(err, new(*PinError)) || p.ca() != nil {
					t.Errorf("%s, %s: %v, found %v", name, how, err, p.ca())
				}
				continue
			}
			if err != nil || !tt.want.Cert.Equal(p.ca()) {
				t.Errorf("%s, %s: %v, or another one was found", name, how, err)
			}
		}
	}
}
