// Servers: how the servers of one cluster identify each other.

package auth

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// ServerUserPrefix is the prefix of a server's user name (certificate's common name); its
	// ID follows.
	ServerUserPrefix = "hawser:server:"
	// ServersGroup is the group (certificate's organization) of every server.
	ServersGroup = "hawser:servers"
)

// ErrNotServer is wrapped by errors about a certificate that is no server's.
var ErrNotServer = errors.New("not a server's certificate")

// ServerID is the ID of the server in its client certificate cert. It does not verify the
// certificate: call it with one that TLS has verified.
func ServerID(cert *x509.Certificate) (string, error) {
	if cert == nil {
		return "", fmt.Errorf("%w: there is none", ErrNotServer)
	}
	id, ok := strings.CutPrefix(cert.Subject.CommonName, ServerUserPrefix)
	if !ok {
		return "", fmt.Errorf("%w: common name %q does not begin with %s", ErrNotServer, cert.Subject.CommonName, ServerUserPrefix)
	}
	if !slices.Equal(cert.Subject.Organization, []string{ServersGroup}) {
		return "", fmt.Errorf("%w: organization %q is not %s alone", ErrNotServer, cert.Subject.Organization, ServersGroup)
	}
	if err := CheckServerID(id); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotServer, err)
	}
	return id, nil
}

// CheckServerID returns an error unless id is a DNS label (RFC 1123), of at most 63 bytes
// in lower case.
func CheckServerID(id string) error {
	if len(id) > 63 || !isLabel(id) {
		return fmt.Errorf("server ID %q must have 1 to 63 lower case letters, digits and '-', and start and end with a letter or digit", id)
	}
	return nil
}
