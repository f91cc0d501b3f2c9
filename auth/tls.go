// TLS configurations for both ends of a tunnel.

package auth

import (
	"crypto/tls"
	"crypto/x509"
)

// ServerTLS is the configuration of a listener that speaks TLS 1.3 only to
// clients with a certificate from cas. Both funcs are asked anew for each
// handshake, so that what has been replaced on disk is picked up.
func ServerTLS(cert func(*tls.ClientHelloInfo) (*tls.Certificate, error), cas func() (*x509.CertPool, error)) *tls.Config {
	base := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      x509.NewCertPool(), // trusts nobody, should the func below ever not be asked
		GetCertificate: cert,
		// Session tickets stay on: they save a client that comes back the
		// signatures, and package tls checks for each that the certificate in it
		// has not expired and that its authority is still one of ClientCAs.
	}
	c := base.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := cas()
		if err != nil {
			return nil, err
		}
		now := base.Clone()
		now.ClientCAs = pool
		return now, nil
	}
	return c
}

// ClientTLS is the configuration of a client that shows cert to a server whose
// certificate must be from cas and carry serverName.
func ClientTLS(cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error), cas *x509.CertPool, serverName string) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetClientCertificate: cert,
		RootCAs:              cas,
		ServerName:           serverName,
	}
}
