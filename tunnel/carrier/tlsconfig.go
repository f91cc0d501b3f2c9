// What every transport over TLS or QUIC does to the configuration it is given, and what
// it makes of the peer's certificate.

package carrier

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/hawser-project/hawser/tunnel"
)

// ServerTLS is a copy of c for the accepting end: TLS 1.3, a verified client
// certificate, these protocols (RFC 7301) and no others.
func ServerTLS(c *tls.Config, alpn ...string) (*tls.Config, error) {
	if c == nil {
		return nil, errors.New("no TLS configuration")
	}
	c = shaped(c, alpn)
	if c.ClientAuth != tls.RequireAndVerifyClientCert {
		return nil, errors.New("TLS configuration does not require and verify client certificates")
	}
	if choose := c.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(h)
			if err != nil || chosen == nil {
				return nil, err
			}
			return shaped(chosen, alpn), nil
		}
	}
	return c, nil
}

// ClientTLS is a copy of c for the dialing end of a session with the server at addr,
// which offers these protocols.
func ClientTLS(c *tls.Config, addr string, alpn ...string) (*tls.Config, error) {
	if c == nil {
		return nil, errors.New("no TLS configuration")
	}
	c = shaped(c, alpn)
	if c.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("server address: %w", err)
		}
		c.ServerName = host
	}
	return c, nil
}

func shaped(c *tls.Config, alpn []string) *tls.Config {
	c = c.Clone()
	c.MinVersion = tls.VersionTLS13
	c.NextProtos = alpn
	// A tunnel carries bulk as well as keystrokes, and a keystroke fills no
	// record anyway.
	c.DynamicRecordSizingDisabled = true
	return c
}

// checkALPN says whether a handshake agreed on one of these protocols.
func checkALPN(s tls.ConnectionState, alpn []string) error {
	if !slices.Contains(alpn, s.NegotiatedProtocol) {
		return fmt.Errorf("peer does not speak %s", alpn[len(alpn)-1])
	}
	return nil
}

// Identity says whose session a connection may begin and join. A node has another key
// after each renewal of its certificate: what stays is the subject.
func Identity(p tunnel.Peer) (string, error) {
	if p.TLS == nil || len(p.TLS.PeerCertificates) == 0 {
		return "", errors.New("no client certificate")
	}
	subject := p.TLS.PeerCertificates[0].Subject
	return fmt.Sprintf("%q %q", subject.CommonName, slices.Sorted(slices.Values(subject.Organization))), nil
}
