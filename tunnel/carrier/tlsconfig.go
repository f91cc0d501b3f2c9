// TLS configuration: what all transports require of it, and the identity of a peer.

package carrier

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/hawser-project/hawser/tunnel"
)

// ServerTLS is a copy of c for the accepting end. It requires TLS 1.3, a verified client
// certificate, and one of the protocols in alpn (RFC 7301).
func ServerTLS(c *tls.Config, alpn ...string) (*tls.Config, error) {
	if c == nil {
		return nil, errors.New("no TLS configuration")
	}
	c = configured(c, alpn)
	if c.ClientAuth != tls.RequireAndVerifyClientCert {
		return nil, errors.New("TLS configuration does not require and verify client certificates")
	}
	if choose := c.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(h)
			if err != nil || chosen == nil {
				return nil, err
			}
			return configured(chosen, alpn), nil
		}
	}
	return c, nil
}

// ClientTLS is a copy of c for the dialing end of a session with the server at addr. It
// offers the protocols in alpn.
func ClientTLS(c *tls.Config, addr string, alpn ...string) (*tls.Config, error) {
	if c == nil {
		return nil, errors.New("no TLS configuration")
	}
	c = configured(c, alpn)
	if c.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("server address: %w", err)
		}
		c.ServerName = host
	}
	return c, nil
}

func configured(c *tls.Config, alpn []string) *tls.Config {
	c = c.Clone()
	c.MinVersion = tls.VersionTLS13
	c.NextProtos = alpn
	// Small records would slow down bulk, and keystrokes make small records anyway.
	c.DynamicRecordSizingDisabled = true
	return c
}

// checkALPN fails if a handshake agreed on none of the protocols in alpn.
func checkALPN(s tls.ConnectionState, alpn []string) error {
	if !slices.Contains(alpn, s.NegotiatedProtocol) {
		return fmt.Errorf("peer does not speak %s", alpn[len(alpn)-1])
	}
	return nil
}

// Identity is the identity of a peer: its certificate's subject. The key changes with each
// renewal of the certificate.
func Identity(p tunnel.Peer) (string, error) {
	if p.TLS == nil || len(p.TLS.PeerCertificates) == 0 {
		return "", errors.New("no client certificate")
	}
	subject := p.TLS.PeerCertificates[0].Subject
	return fmt.Sprintf("%q %q", subject.CommonName, slices.Sorted(slices.Values(subject.Organization))), nil
}
