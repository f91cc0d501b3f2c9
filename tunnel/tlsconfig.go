// What every transport over TLS does to the configuration it is given.

package tunnel

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

// ServerTLS is a copy of c for the accepting end: TLS 1.3, a verified client
// certificate, this protocol and no other.
func ServerTLS(c *tls.Config) (*tls.Config, error) {
	if c == nil {
		return nil, errors.New("no TLS configuration")
	}
	c = shaped(c)
	if c.ClientAuth != tls.RequireAndVerifyClientCert {
		return nil, errors.New("TLS configuration does not require and verify client certificates")
	}
	if choose := c.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(h)
			if err != nil || chosen == nil {
				return nil, err
			}
			return shaped(chosen), nil
		}
	}
	return c, nil
}

// ClientTLS is a copy of c for the dialing end of a session with the server at
// addr.
func ClientTLS(c *tls.Config, addr string) (*tls.Config, error) {
	if c == nil {
		return nil, errors.New("no TLS configuration")
	}
	c = shaped(c)
	if c.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("server address: %w", err)
		}
		c.ServerName = host
	}
	return c, nil
}

func shaped(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.MinVersion = tls.VersionTLS13
	c.NextProtos = []string{ALPN}
	// A tunnel carries bulk as well as keystrokes, and a keystroke fills no
	// record anyway.
	c.DynamicRecordSizingDisabled = true
	return c
}

// CheckALPN says whether a handshake agreed on the tunnel's protocol.
func CheckALPN(s tls.ConnectionState) error {
	if s.NegotiatedProtocol != ALPN {
		return fmt.Errorf("peer does not speak %s", ALPN)
	}
	return nil
}
