// TLS configurations for both ends of a tunnel.

package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
)

// ServerTLS is the configuration of a TLS 1.3 listener for clients with a certificate
// from cas. Both funcs are called for each handshake, so that replaced files are used.
func ServerTLS(cert func(*tls.ClientHelloInfo) (*tls.Certificate, error), cas func() (*x509.CertPool, error)) *tls.Config {
	return serverTLS(cert, cas, nil)
}

func serverTLS(cert func(*tls.ClientHelloInfo) (*tls.Certificate, error), cas func() (*x509.CertPool, error), check func(tls.ConnectionState) error) *tls.Config {
	base := &tls.Config{
		MinVersion:       tls.VersionTLS13,
		ClientAuth:       tls.RequireAndVerifyClientCert,
		ClientCAs:        x509.NewCertPool(), // trusts no authority, in case the func below is not called
		GetCertificate:   cert,
		VerifyConnection: check, // also for resumed sessions
		// Session tickets stay on: they save the signatures of a reconnecting client. For
		// each, package tls checks that the certificate in it has not expired and that its
		// authority is still one of ClientCAs.
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

// ServerTLS is the configuration of ServerTLS with a as the authorities, and with
// Check.
func (a *Authorities) ServerTLS(cert func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return serverTLS(cert, func() (*x509.CertPool, error) { return a.Pool(), nil }, a.CheckConnection)
}

// Believe makes c verify servers by a's authorities at the time of each handshake, in
// place of RootCAs. It is for servers with a DNS name: package tls does not pass an IP
// address to VerifyConnection, and such a server is refused.
func (a *Authorities) Believe(c *tls.Config) { believe(c, a) }

// believed are the authorities of Believe.
type believed interface {
	Pool() *x509.CertPool
	Check(chains [][]*x509.Certificate) error
}

func believe(c *tls.Config, a believed) {
	c.RootCAs = x509.NewCertPool() // no authority, in case the func below is not called
	c.InsecureSkipVerify = true    // by the library, which has one pool: VerifyConnection verifies
	c.VerifyConnection = func(cs tls.ConnectionState) error { return verifyServer(cs, a) }
}

func verifyServer(cs tls.ConnectionState, a believed) error {
	if len(cs.PeerCertificates) == 0 || cs.ServerName == "" {
		return errors.New("the server shows no certificate, or is not called by a name")
	}
	others := x509.NewCertPool()
	for _, cert := range cs.PeerCertificates[1:] {
		others.AddCert(cert)
	}
	chains, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{DNSName: cs.ServerName, Roots: a.Pool(), Intermediates: others})
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
	}
	return a.Check(chains)
}

// ClientTLS is the configuration of a client with the certificate cert. The server's
// certificate must be from cas, have the name serverName and be no node's.
func ClientTLS(cert func(*tls.CertificateRequestInfo) (*tls.Certificate, error), cas *x509.CertPool, serverName string) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetClientCertificate: cert,
		RootCAs:              cas,
		ServerName:           serverName,
		VerifyConnection:     func(cs tls.ConnectionState) error { return NotNode(cs.PeerCertificates) },
	}
}

// ErrNodeAsServer means that the peer is not the server but has the certificate of a node.
var ErrNodeAsServer = errors.New("it is not the cluster's server; do not go on before you know why")

// NotNode returns ErrNodeAsServer if the first of a server's certificates is a node's. An
// authority may sign for nodes and for the server; a node with a certificate of such an
// authority must not be accepted as the server.
func NotNode(shown []*x509.Certificate) error {
	if len(shown) == 0 {
		return nil
	}
	if subject := shown[0].Subject; strings.HasPrefix(subject.CommonName, NodeUserPrefix) {
		return fmt.Errorf("the server shows the certificate of a node (%s): %w", subject.CommonName, ErrNodeAsServer)
	}
	return nil
}
